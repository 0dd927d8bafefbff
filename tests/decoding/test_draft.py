"""A draft changes nothing: texts with and without one are the same, token for token, whatever is drafted.

Models are in double precision where texts are compared: in single precision a pass over several tokens and a step may
differ in the last bit, and a tie may fall the other way.

Legend: B batch, T time, V vocabulary.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from builders import (
    LANGUAGE_MODELS,
    TRANSLATORS,
    rows_by_steps,
    small_model,
    small_translator,
    some_source,
    some_tokens,
)
from chainrule.decoding import (
    Chooser,
    DraftStatistics,
    Drafter,
    FallbackDrafter,
    GivenTextDrafter,
    Greedy,
    LookupDrafter,
    Sample,
    StepperDrafter,
    beam_search,
    generate_with_drafts,
    stream_with_drafts,
    generate,
)
from chainrule.decoding.speculative import MAX_REREAD
from chainrule.errors import ConfigError
from chainrule.types import extend
from toy import TableModel, TablePrefix, _mix

EOS = 0
WINDOWED = [("transformer", {"positions": kind, "context": 7}) for kind in ("rotary", "sinusoidal", "learned", "none")]
KINDS: list[tuple[str, dict[str, Any]]] = [*((name, {}) for name in (*LANGUAGE_MODELS, *TRANSLATORS)), *WINDOWED]


class ParallelTable(TableModel):
    """The table model with passes: the tokens of each pass are counted."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.passes: list[int] = []

    def extend(self, state: TablePrefix, tokens_BT: Tensor) -> tuple[Tensor, TablePrefix]:
        self.passes.append(tokens_BT.shape[1])
        hash_B, rows = state.hash_B, []
        for token_B in tokens_BT.unbind(1):
            hash_B = _mix(hash_B, token_B)
            rows.append(self._row(hash_B))
        return torch.stack(rows, 1), TablePrefix(hash_B, None)

    def step(self, state: TablePrefix, token_B: Tensor) -> tuple[Tensor, TablePrefix]:
        self.passes.append(1)
        return super().step(state, token_B)


class Noise:
    """Drafts anything, of any length, numbers that are no tokens among it."""

    def __init__(self, seed: int, size: int) -> None:
        self.random, self.size = random.Random(seed), size

    def propose(self, tokens: Sequence[int], count: int) -> list[int]:
        return [self.random.randrange(-1, self.size + 1) for _ in range(self.random.randint(0, count))]


class Prophet:
    """Knows the text that comes about, and is wrong now and then."""

    def __init__(self, text: list[int], prompt: int, seed: int, wrong: float, size: int) -> None:
        self.text, self.prompt, self.wrong, self.size = text, prompt, wrong, size
        self.random = random.Random(seed)

    def propose(self, tokens: Sequence[int], count: int) -> list[int]:
        assert list(tokens[self.prompt :]) == self.text[: len(tokens) - self.prompt], "the text so far is another"
        assert count >= 1
        coming = self.text[len(tokens) - self.prompt :][:count]
        return [self.random.randrange(self.size) if self.random.random() < self.wrong else one for one in coming]


@cache
def model_of(kind: int, seed: int) -> Any:
    name, options = KINDS[kind]
    with torch.inference_mode(False):  # kept for tests that are in another mode
        return small_model(name, seed=seed, **options).double()


# What a pass answers, and what is taken back


@pytest.mark.parametrize("kind", range(len(KINDS)), ids=lambda kind: str(KINDS[kind]))
@torch.inference_mode()
def test_a_pass_answers_what_steps_answer(kind: int) -> None:
    """Also after other passes, and where a window begins again in the middle of one."""
    model, tokens_BT = model_of(kind, 0), some_tokens(2, 17)
    tokens_BT[:, 0] = EOS
    state, rows = model.start(2), []
    for part_BT in tokens_BT.split([1, 3, 9, 2, 2], 1):
        row_BTV, state = extend(model, state, part_BT)
        rows.append(row_BTV)
    torch.testing.assert_close(torch.cat(rows, 1), rows_by_steps(model, tokens_BT[:, 1:]))


@torch.inference_mode()
def test_a_pass_after_scoring_reads_the_token_that_was_only_scored() -> None:
    for name in ("transformer", "lstm"):
        model, tokens_BT = small_model(name), some_tokens(2, 8)
        _, state = model.score(tokens_BT[:, :5], model.start(2))
        row_BTV, _ = model.extend(state, tokens_BT[:, 5:])
        torch.testing.assert_close(row_BTV, rows_by_steps(model, tokens_BT)[:, 6:])


@pytest.mark.parametrize("kind", range(len(KINDS)), ids=lambda kind: str(KINDS[kind]))
@torch.inference_mode()
def test_what_is_taken_back_was_never_read(kind: int) -> None:
    model = model_of(kind, 1)
    tokens_BT, others_BT = some_tokens(2, 20), some_tokens(2, 20, seed=1)
    if not hasattr(model, "rewindable") or model.rewindable(model.start(2)) is None:
        return
    for before, read, back in [(1, 4, 2), (2, 3, 3), (8, 2, 1), (9, 1, 1)]:
        _, state = extend(model, model.start(2), tokens_BT[:, :before])
        if read > model.rewindable(state):
            continue
        kept_BTV, longer = extend(model, state, tokens_BT[:, before : before + read])
        again = model.rewind(longer, back)
        row_BTV, _ = extend(model, again, others_BT[:, :3])
        whole_BT = torch.cat([tokens_BT[:, : before + read - back], others_BT[:, :3]], 1)
        torch.testing.assert_close(row_BTV, _rows(model, whole_BT)[:, -3:])
        # The longer state is still what it was.
        went_on_BTV, _ = extend(model, longer, others_BT[:, 3:5])
        torch.testing.assert_close(
            torch.cat([kept_BTV, went_on_BTV], 1),
            _rows(model, torch.cat([tokens_BT[:, : before + read], others_BT[:, 3:5]], 1))[:, before:],
        )


def _rows(model: Any, tokens_BT: Tensor) -> Tensor:
    """log p(. | prefix) after each token, by steps, BTV."""
    state, rows = model.start(len(tokens_BT)), []
    for token_B in tokens_BT.unbind(1):
        row_BV, state = model.step(state, token_B)
        rows.append(row_BV)
    return torch.stack(rows, 1)


# The text stays the same


def drafter_of(kind: str, text: list[int], prompt: list[int], seed: int, model: Any) -> Drafter:
    size = model.vocab_size
    if kind == "model":
        other = model_of(LANGUAGE_MODELS.index("lstm"), seed)
        return StepperDrafter(other, other.start(1))
    if kind == "counts":
        counted = model_of(LANGUAGE_MODELS.index("ngram"), seed)
        return FallbackDrafter(LookupDrafter(shortest=3), StepperDrafter(counted, counted.start(1)))
    if kind == "lookup":
        return LookupDrafter(longest=4, shortest=1)
    if kind == "given":
        mangled = [one for one in text if one % 5]
        return GivenTextDrafter(mangled, prompt=1 + len(prompt))
    if kind == "noise":
        return Noise(seed, size)
    return Prophet(text, 1 + len(prompt), seed, {"right": 0.0, "mostly right": 0.2, "wrong": 1.0}[kind], size)


@settings(max_examples=100, deadline=None)
@given(
    kind=st.integers(0, len(KINDS) - 1),
    seed=st.integers(0, 2),
    prompt=st.lists(st.integers(0, 12), max_size=9),
    drafts=st.sampled_from(["right", "mostly right", "wrong", "noise", "lookup", "given", "model", "counts"]),
    choice=st.sampled_from([{}, {"temperature": 1.0}, {"temperature": 0.5, "top_k": 4}, {"top_p": 0.8}]),
    limit=st.integers(1, 22),
    most=st.integers(1, 9),
    stops=st.booleans(),
)
def test_a_draft_changes_nothing(
    kind: int, seed: int, prompt: list[int], drafts: str, choice: dict[str, Any], limit: int, most: int, stops: bool
) -> None:
    model = model_of(kind, seed)
    limit = min(limit, 23 - len(prompt))  # the translators' context is 24
    eos = EOS if stops else None
    random_numbers = [torch.Generator().manual_seed(seed) for _ in range(2)]
    choosers: list[Chooser] = [Sample(**choice, generator=one) if choice else Greedy() for one in random_numbers]
    prompt_T = torch.tensor(prompt, dtype=torch.int64)
    text = generate(model, prompt_T, eos=eos, bos=EOS, max_new_tokens=limit, choose=choosers[0])[0].tolist()
    drafter = drafter_of(drafts, text, prompt, seed, model)
    found, told = generate_with_drafts(
        model, model.start(1), torch.tensor([[EOS, *prompt]]), drafter, eos, limit, choosers[1], most
    )
    assert found == text
    assert told.emitted == len(text)
    ended_early = stops and told.passes + told.accepted == told.emitted + 1  # an eos that was drafted has no successor
    assert ended_early or told.passes + told.accepted == told.emitted
    assert told.accepted <= told.proposed
    assert random_numbers[0].get_state().equal(random_numbers[1].get_state())  # and what is drawn next stays the same
    if drafts == "right" and not stops and model.__class__.__name__ != "Given":
        assert told.accepted == told.proposed


@pytest.mark.parametrize("name", TRANSLATORS)
def test_translations_are_those_of_a_beam_of_one(name: str) -> None:
    model = small_translator(name, seed=3).double()
    smaller = small_translator("seq2seq-rnn", seed=4).double()
    counted = small_model("ngram")
    for row in range(4):
        source = some_source([3 + row], seed=row, size=13)
        prompt_1T = torch.tensor([[EOS]])
        (best,) = beam_search(model, model.start(source), prompt_1T, eos=EOS, beams=1, max_new_tokens=20)
        for drafter in (
            StepperDrafter(smaller, smaller.start(source), window=8),
            StepperDrafter(counted, counted.start(1)),
            LookupDrafter(source.tokens_BS[0].tolist()),
            GivenTextDrafter(best[0].tokens),
        ):
            tokens, told = generate_with_drafts(model, model.start(source), prompt_1T, drafter, EOS, 20)
            assert tokens == best[0].tokens
        assert told.acceptance == 1  # a draft that is the text itself
        assert told.passes <= 1 + len(tokens) // 9


# The distribution stays the same


def chi_square(counts: Counter[tuple[int, ...]], shares: dict[tuple[int, ...], float]) -> float:
    """The probability that counts differ from what is expected as much as these, if nothing but chance is at work."""
    whole = sum(counts.values())
    statistic = sum((counts[cell] - whole * share) ** 2 / (whole * share) for cell, share in shares.items())
    freedom = torch.tensor((len(shares) - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(freedom, torch.tensor(statistic / 2, dtype=torch.float64)))


def shares_by_enumeration(model: TableModel, length: int, temperature: float) -> dict[tuple[int, ...], float]:
    """The probability of every sequence of so many tokens."""
    shares = {}
    for cell in itertools.product(range(model.vocab_size), repeat=length):
        rows_TV = _rows(model, torch.tensor([[EOS, *cell]]))[0].double()
        tempered_TV = (rows_TV / temperature).softmax(1)
        shares[cell] = float(torch.stack([tempered_TV[t, token] for t, token in enumerate(cell)]).prod())
    return shares


@pytest.mark.parametrize(("drafts", "temperature"), [("noise", 1.0), ("the best", 0.5)])
def test_drawn_tokens_have_the_model_s_distribution(drafts: str, temperature: float) -> None:
    model, other = ParallelTable(3, 5, sharpness=1.0), TableModel(3, 6)
    shares = shares_by_enumeration(model, 3, temperature)
    assert sum(shares.values()) == pytest.approx(1)
    generator = torch.Generator().manual_seed(7)
    choose = Sample(temperature, generator=generator)
    counts: Counter[tuple[int, ...]] = Counter()
    accepted = 0
    for number in range(900):
        drafter = Noise(number, 3) if drafts == "noise" else StepperDrafter(model, model.start(1), least=-99.0)
        tokens, told = generate_with_drafts(model, model.start(1), torch.tensor([[EOS]]), drafter, None, 3, choose)
        counts[tuple(tokens)] += 1
        accepted += told.accepted
    assert accepted > 200
    assert chi_square(counts, shares) > 0.01
    assert chi_square(counts, shares_by_enumeration(other, 3, temperature)) < 1e-9  # the test can tell


# What it costs


def test_a_right_draft_is_read_in_as_few_passes_as_can_be() -> None:
    model = ParallelTable(9, 2)
    text = generate(model, eos=None, bos=EOS, max_new_tokens=50, choose=Greedy())[0].tolist()
    model.passes.clear()
    drafter = Prophet(text, 1, 0, 0.0, 9)
    tokens, told = generate_with_drafts(model, model.start(1), torch.tensor([[EOS]]), drafter, None, 50)
    assert tokens == text
    assert (told.passes, told.proposed, told.accepted, told.emitted) == (6, 44, 44, 50)
    assert model.passes == [9, 9, 9, 9, 9, 5]
    assert told.acceptance == 1
    assert told.tokens_per_pass == pytest.approx(50 / 6)


def test_drafts_grow_while_they_are_right_and_shrink_when_they_are_not() -> None:
    asked: list[int] = []

    class Moody(Prophet):
        def propose(self, tokens: Sequence[int], count: int) -> list[int]:
            asked.append(count)
            right = super().propose(tokens, count)
            return right if len(asked) > 6 else [(one + 1) % 9 for one in right]

    model = ParallelTable(9, 2)
    text = generate(model, eos=None, bos=EOS, max_new_tokens=60, choose=Greedy())[0].tolist()
    assert generate_with_drafts(model, model.start(1), torch.tensor([[EOS]]), Moody(text, 1, 0, 0.0, 9), None, 60)[0] == text
    assert asked[:6] == [8, 5, 3, 2, 2, 2]
    assert asked[6:11] == [2, 4, 6, 8, 8]
    assert max(asked) == 8


class Contrary:
    """Drafts what the table model finds least probable."""

    asked = 0

    def propose(self, tokens: Sequence[int], count: int) -> list[int]:
        self.asked += 1
        return [int(_rows(TableModel(9, 2), torch.tensor([list(tokens)]))[0, -1].argmin())] * count


def test_what_cannot_be_taken_back_is_read_again_but_not_for_ever() -> None:
    model = ParallelTable(9, 2)
    drafter = Contrary()
    tokens, told = generate_with_drafts(model, model.start(1), torch.tensor([[EOS]]), drafter, None, 61)
    assert tokens == generate(model, eos=None, bos=EOS, max_new_tokens=61, choose=Greedy())[0].tolist()
    assert told.accepted == 0
    assert told.passes == 61
    assert max(model.passes) <= MAX_REREAD + 8
    assert drafter.asked == 25 + 3  # 25 times in vain, then after 3, 6 and 12 passes without


def test_tokens_come_while_they_are_made_and_the_mode_is_left_alone() -> None:
    model, told = ParallelTable(9, 2), DraftStatistics()
    options: dict[str, Any] = {"eos": None, "max_new_tokens": 30, "choose": Greedy(), "record": told}
    tokens = stream_with_drafts(model, model.start(1), torch.tensor([[EOS, 3]]), Noise(0, 9), **options)
    next(tokens)
    assert told.passes == 1
    assert not torch.is_inference_mode_enabled()
    assert len(list(tokens)) == 29
    assert told.emitted == 30
    assert told.seconds > 0


def test_nothing_drafted_is_nothing_accepted() -> None:
    assert (DraftStatistics().acceptance, DraftStatistics().tokens_per_pass) == (0, 0)
    whole = DraftStatistics(1, 2, 1, 2, 0.5)
    whole.add(DraftStatistics(2, 4, 3, 5, 0.25))
    assert whole == DraftStatistics(3, 6, 4, 7, 0.75)


# Where drafts come from


def found_by_hand(tokens: list[int], count: int, longest: int, shortest: int) -> list[int]:
    """What follows the latest earlier occurrence of the longest run that ends the text; what repeats, repeats on."""
    for size in range(longest, shortest - 1, -1):
        for start in range(len(tokens) - size - 1, -1, -1):
            if len(tokens) > size and tokens[start : start + size] == tokens[-size:]:
                longer = list(tokens)
                for place in range(start + size, start + size + count):
                    longer.append(longer[place])
                return longer[len(tokens) :]
    return []


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.integers(0, 2), min_size=1, max_size=40),
    st.integers(1, 9),
    st.lists(st.integers(1, 7), max_size=5),
    st.lists(st.integers(0, 2), max_size=6),
)
def test_look_up_finds_what_a_search_finds(text: list[int], count: int, gaps: list[int], known: list[int]) -> None:
    drafter = LookupDrafter(known, longest=4, shortest=2)
    end = 1
    for gap in [*gaps, 40]:
        assert drafter.propose(text[:end], count) == found_by_hand([*known, *text[:end]], count, 4, 2)
        end = min(len(text), end + gap)


@pytest.mark.parametrize(
    ("written", "proposed"),
    [
        ([], [1, 2, 3, 4]),
        ([1, 2], [3, 4, 5, 6]),
        ([1, 2, 9], [4, 5, 6, 7]),  # another token in the place of 3
        ([1, 2, 4], [5, 6, 7, 8]),  # 3 is left out
        ([1, 2, 9, 3], [4, 5, 6, 7]),  # 9 comes in
        ([1, 2, 3, 4, 5, 6, 7, 8], []),
    ],
)
def test_a_given_text_is_taken_up_where_it_agrees(written: list[int], proposed: list[int]) -> None:
    for prompt in ([0], [0, 7, 7]):
        drafter = GivenTextDrafter([1, 2, 3, 4, 5, 6, 7, 8], prompt=len(prompt))
        for end in range(len(prompt), len(prompt) + len(written)):
            drafter.propose([*prompt, *written][:end], 3)
        assert drafter.propose([*prompt, *written], 4) == proposed


def test_of_several_places_the_one_with_the_longest_past_is_taken_then_the_nearest() -> None:
    drafter = GivenTextDrafter([5, 1, 2, 3, 1, 2, 4, 1, 2, 6])
    assert drafter.propose([0, 5, 9, 3, 1, 2], 2) == [4, 1]
    assert GivenTextDrafter([1, 2, 1, 3, 1, 4]).propose([0, 9, 9, 1], 1) == [3]


@pytest.mark.parametrize("least", [-99.0, -3.0, -1.0])
@pytest.mark.parametrize("name", ["ngram", "lstm", "transformer"])
def test_a_model_drafts_its_best_tokens(name: str, least: float) -> None:
    """By hand: score every prefix from its beginning, and stop where the draft becomes too improbable."""
    model = small_model(name)
    drafter, text = StepperDrafter(model, model.start(1), least=least), [EOS, 3, 1, 4, 1, 5, 9, 2, 6, 5]
    for end in (1, 2, 6, 10):
        expected: list[int] = []
        together = 0.0
        while len(expected) < 5:
            row_V = _rows(model, torch.tensor([[*text[:end], *expected]]))[0, -1].detach()
            together += float(row_V.max())
            if together < least:
                break
            expected.append(int(row_V.argmax()))
        with torch.inference_mode():
            assert drafter.propose(text[:end], 5) == expected


@torch.inference_mode()
def test_a_model_drafts_no_further_than_it_can_read() -> None:
    model = small_translator("seq2seq-transformer", context=8)
    drafter = StepperDrafter(model, model.start(some_source([4])), window=8, least=-99.0)
    lengths = [len(drafter.propose([EOS] * read, 4)) for read in (3, 5, 6, 8, 9, 12)]
    assert lengths == [4, 4, 3, 1, 0, 0]


def test_the_first_that_has_a_draft_gives_it() -> None:
    drafter = FallbackDrafter(LookupDrafter(shortest=2), GivenTextDrafter([7, 7, 7]))
    assert drafter.propose([0, 1, 2], 2) == [7]
    assert drafter.propose([0, 1, 2, 5, 1, 2], 2) == [5, 1]
    assert FallbackDrafter(LookupDrafter()).propose([0], 2) == []


# Mistakes


def test_mistakes_have_their_sentence() -> None:
    model = TableModel(3)
    options: dict[str, Any] = {"eos": 0, "max_new_tokens": 3, "choose": Greedy()}
    with pytest.raises(ConfigError) as caught:
        stream_with_drafts(model, model.start(2), torch.zeros(2, 1, dtype=torch.int64), LookupDrafter(), **options)
    assert str(caught.value) == "a draft is for one sequence at a time, but the prompt has 2 rows."
    with pytest.raises(ConfigError) as caught:
        stream_with_drafts(model, model.start(1), torch.tensor([[0]]), LookupDrafter(), **options, draft_tokens=0)
    assert str(caught.value) == (
        "draft_tokens is 0, but at least 1 token must be drafted; leave the draft out to have none."
    )
    with pytest.raises(ConfigError) as caught:
        generate_with_drafts(model, model.start(1), torch.tensor([[0]]), LookupDrafter(), None, 0)
    assert str(caught.value) == "max_new_tokens is 0, but at least 1 token must be asked for."
