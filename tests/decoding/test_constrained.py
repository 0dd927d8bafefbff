"""Constrained beam search against enumeration of the sequences with the phrases, and against `beam_search`."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from chainrule.decoding import ControlledStepper, Controls, beam_search
from chainrule.decoding.constrained import constrained_beam_search
from chainrule.decoding.phrases import Phrase, Phrases
from chainrule.errors import ConfigError
from toy import TableModel

EOS = 0


def occurrences(tokens: list[int], phrase: Phrase) -> int:
    """How many places of a text end with a spelling of the phrase, and with a follower if it must have one."""
    ends = [
        end
        for end in range(1, len(tokens) + 1)
        if any(tuple(tokens[:end][-len(one) :]) == one for one in phrase.spellings)
    ]
    if phrase.followers is None:
        return len(ends)
    return sum(end < len(tokens) and tokens[end] in phrase.followers for end in ends)


def exhaustive(model: TableModel, phrases: list[Phrase], limit: int, penalty: float) -> list[tuple[float, list[int]]]:
    """Every sequence that contains the phrases, best first."""
    found = []
    for length in range(1, limit + 1):
        for body in itertools.product(range(1, model.vocab_size), repeat=length - 1):
            for last in range(model.vocab_size) if length == limit else [EOS]:
                tokens = [*body, last]
                times = [occurrences(tokens, phrase) for phrase in phrases]
                wanted = [(phrase.count, phrase.count if phrase.exact else limit) for phrase in phrases]
                if all(least <= time <= most for time, (least, most) in zip(times, wanted, strict=True)):
                    log_prob = float(model.log_probs(torch.tensor([tokens])).double().sum())
                    found.append((log_prob / length**penalty, tokens))
    return sorted(found, reverse=True)


def search(model: Any, phrases: list[list[Phrase]], limit: int, **options: Any) -> Any:
    first_B1 = torch.full((len(phrases), 1), EOS)
    options = {"eos": EOS, "length_penalty": 1.0, **options}
    return constrained_beam_search(
        model, model.start(len(phrases)), first_B1, phrases, max_new_tokens=[limit] * len(phrases), **options
    )


CASES = [
    [Phrase(((1, 2),))],
    [Phrase(((3,),)), Phrase(((1, 2),))],
    [Phrase(((2, 2),))],
    [Phrase(((1, 2), (3, 1)))],
    [Phrase(((1,),), count=2)],
    [Phrase(((1,),), exact=True)],
    [Phrase(((2, 1),), exact=True), Phrase(((3,),), count=2, exact=True)],
    [Phrase(((1,),), followers=frozenset({0, 2}))],
    [Phrase(((1, 2),), followers=frozenset({0, 3}))],
    [Phrase(((1,),), followers=frozenset({0, 2})), Phrase(((2, 3),))],
    [Phrase(((1,), (2, 2)), count=2, followers=frozenset({0, 3}))],
    [Phrase(((1,),), exact=True, followers=frozenset({0, 2}))],
]


@pytest.mark.parametrize("phrases", CASES, ids=str)
@pytest.mark.parametrize("penalty", [0.0, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_full_width_is_exhaustive_search(seed: int, penalty: float, phrases: list[Phrase]) -> None:
    model = TableModel(4, seed)
    expected = exhaustive(model, phrases, 5, penalty)
    wide = {"beams": 4**5, "num_return_sequences": 5, "length_penalty": penalty}
    found = search(model, [phrases], 5, **wide)[0]
    assert [one.tokens for one in found] == [tokens for _, tokens in expected[:5]]
    assert [one.score for one in found] == pytest.approx([score for score, _ in expected[:5]], abs=1e-4)


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 5), st.integers(3, 7), st.sampled_from([0.0, 0.6, 1.0]))
def test_without_phrases_it_is_beam_search(seed: int, beams: int, vocab: int, penalty: float) -> None:
    model = TableModel(vocab, seed)
    options: dict[str, Any] = {"eos": EOS, "beams": beams, "length_penalty": penalty, "num_return_sequences": 1}
    expected = beam_search(model, model.start(2), torch.tensor([[EOS], [1]]), max_new_tokens=7, **options)
    found = constrained_beam_search(
        model, model.start(2), torch.tensor([[EOS], [1]]), [[], []], max_new_tokens=[7, 7], **options
    )
    for ours, theirs in zip(found, expected, strict=True):
        assert ours[0].score == pytest.approx(theirs[0].score, abs=1e-5)
        assert ours[0].tokens == theirs[0].tokens


@settings(max_examples=100, deadline=None)
@given(
    st.integers(0, 10**6),
    st.integers(1, 4),
    st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=4), min_size=1, max_size=3),
    st.integers(0, 6),
)
def test_every_hypothesis_contains_its_phrases(seed: int, beams: int, forced: list[list[int]], spare: int) -> None:
    model = TableModel(6, seed, sharpness=8.0)
    phrases = [Phrase((tuple(tokens),)) for tokens in forced]
    limit = sum(map(len, forced)) + spare
    for row in search(model, [phrases, phrases[:1]], limit, beams=beams, num_return_sequences=beams):
        assert row
    for one in search(model, [phrases], limit, beams=beams, num_return_sequences=beams)[0]:
        assert all(occurrences(one.tokens, phrase) for phrase in phrases)
        assert len(one.tokens) <= limit
        exact = float(model.log_probs(torch.tensor([one.tokens])).double().sum())
        assert math.isclose(one.log_prob, exact, abs_tol=1e-3)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.integers(0, 3), max_size=9),
    st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=3), min_size=1, max_size=3),
    st.sampled_from([None, frozenset({0, 2})]),
    st.booleans(),
    st.integers(0, 9),
)
def test_whether_a_text_contains_phrases_is_counted(
    text: list[int], some: list[list[int]], followers: Any, exact: bool, cut: int
) -> None:
    phrases = [Phrase((tuple(tokens),), exact=exact, followers=followers) for tokens in some]
    times = [occurrences(text, phrase) for phrase in phrases]
    expected = all(time == 1 if exact else time >= 1 for time in times)
    assert Phrases(phrases).occur_in([], text) == expected
    assert Phrases(phrases[:1]).occur_in(text[:cut], text[cut:]) or times[0] != 1


def test_a_batch_gives_the_same_as_each_prompt_alone() -> None:
    model = TableModel(9, 4)
    phrases = [[Phrase(((3, 4),))], [], [Phrase(((8,),)), Phrase(((7, 1, 1),))]]
    together = search(model, phrases, 9, beams=3, num_return_sequences=2)
    for some, found in zip(phrases, together, strict=True):
        assert search(model, [some], 9, beams=3, num_return_sequences=2)[0] == found


def test_a_forced_phrase_overrides_a_control() -> None:
    model = TableModel(6, 2)
    stepper = ControlledStepper(model, Controls(no_unk=True).chain(eos=EOS, unk=3), EOS)
    for one in search(stepper, [[Phrase(((2, 3),))]], 8, beams=3, num_return_sequences=3)[0]:
        assert occurrences(one.tokens, Phrase(((2, 3),))) == 1
        assert one.tokens.count(3) == 1


def test_a_prompt_may_contain_the_phrase() -> None:
    model = TableModel(6, 2)
    options: dict[str, Any] = {"eos": EOS, "beams": 2}
    given = constrained_beam_search(
        model, model.start(1), torch.tensor([[EOS, 2, 3]]), [[Phrase(((2, 3),))]], max_new_tokens=[1], **options
    )
    assert len(given[0][0].tokens) == 1


def test_phrases_longer_than_the_text_are_refused() -> None:
    with pytest.raises(ConfigError) as refused:
        search(TableModel(4, 1), [[Phrase(((1, 2, 3),))]], 2, beams=2)
    assert str(refused.value) == (
        "the forced phrases have 3 tokens, but a text may have 2; raise max_new_tokens, or leave out a phrase"
    )
