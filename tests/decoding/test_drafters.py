"""Drafters against plain Python loops."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import rows_by_steps, small_model, small_translator, some_source
from chainrule.decoding import FallbackDrafter, GivenTextDrafter, LookupDrafter, StepperDrafter

EOS = 0


def search_by_loop(tokens: list[int], count: int, longest: int, shortest: int) -> list[int]:
    """What follows the last earlier occurrence of the longest n-gram at the end; a repetition is continued."""
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
def test_lookup_finds_the_same_as_a_loop(text: list[int], count: int, gaps: list[int], known: list[int]) -> None:
    drafter = LookupDrafter(known, longest=4, shortest=2)
    end = 1
    for gap in [*gaps, 40]:
        assert drafter.propose(text[:end], count) == search_by_loop([*known, *text[:end]], count, 4, 2)
        end = min(len(text), end + gap)


@pytest.mark.parametrize(
    ("generated", "proposed"),
    [
        ([], [1, 2, 3, 4]),
        ([1, 2], [3, 4, 5, 6]),
        ([1, 2, 9], [4, 5, 6, 7]),  # another token instead of 3
        ([1, 2, 4], [5, 6, 7, 8]),  # 3 is skipped
        ([1, 2, 9, 3], [4, 5, 6, 7]),  # 9 is inserted
        ([1, 2, 3, 4, 5, 6, 7, 8], []),
    ],
)
def test_a_given_text_is_realigned_where_it_matches(generated: list[int], proposed: list[int]) -> None:
    for prompt in ([0], [0, 7, 7]):
        drafter = GivenTextDrafter([1, 2, 3, 4, 5, 6, 7, 8], prompt=len(prompt))
        for end in range(len(prompt), len(prompt) + len(generated)):
            drafter.propose([*prompt, *generated][:end], 3)
        assert drafter.propose([*prompt, *generated], 4) == proposed


def test_the_longest_match_counts_then_the_nearest_place() -> None:
    drafter = GivenTextDrafter([5, 1, 2, 3, 1, 2, 4, 1, 2, 6])
    assert drafter.propose([0, 5, 9, 3, 1, 2], 2) == [4, 1]
    assert GivenTextDrafter([1, 2, 1, 3, 1, 4]).propose([0, 9, 9, 1], 1) == [3]


@pytest.mark.parametrize("min_log_prob", [-99.0, -3.0, -1.0])
@pytest.mark.parametrize("name", ["ngram", "lstm", "transformer"])
def test_a_stepper_drafts_its_most_probable_tokens(name: str, min_log_prob: float) -> None:
    """Against a loop that scores every prefix from its beginning and stops where the draft becomes too improbable."""
    model = small_model(name)
    drafter = StepperDrafter(model, model.start(1), min_log_prob=min_log_prob)
    text = [EOS, 3, 1, 4, 1, 5, 9, 2, 6, 5]
    for end in (1, 2, 6, 10):
        expected: list[int] = []
        total = 0.0
        while len(expected) < 5:
            row_V = rows_by_steps(model, torch.tensor([[*text[1:end], *expected]], dtype=torch.int64))[0, -1].detach()
            total += float(row_V.max())
            if total < min_log_prob:
                break
            expected.append(int(row_V.argmax()))
        with torch.inference_mode():
            assert drafter.propose(text[:end], 5) == expected


@torch.inference_mode()
def test_a_stepper_drafts_no_further_than_its_window() -> None:
    model = small_translator("seq2seq-transformer", context=8)
    drafter = StepperDrafter(model, model.start(some_source([4])), window=8, min_log_prob=-99.0)
    lengths = [len(drafter.propose([EOS] * read, 4)) for read in (3, 5, 6, 8, 9, 12)]
    assert lengths == [4, 4, 3, 1, 0, 0]


def test_the_first_drafter_with_a_proposal_is_used() -> None:
    drafter = FallbackDrafter(LookupDrafter(shortest=2), GivenTextDrafter([7, 7, 7]))
    assert drafter.propose([0, 1, 2], 2) == [7]
    assert drafter.propose([0, 1, 2, 5, 1, 2], 2) == [5, 1]
    assert FallbackDrafter(LookupDrafter()).propose([0], 2) == []
