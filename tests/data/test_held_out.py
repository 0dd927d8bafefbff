"""Validation data held out of the training data: nothing lost, nothing twice, by a fixed rule."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chainrule.data.held_out import first_held_out_pair, held_out_pairs, hold_out_examples, hold_out_text
from chainrule.errors import DataError
from chainrule.text.formats.pairs import Pairs
from chainrule.text.readers import Texts, lines_in, text_of


def content(texts: Texts) -> bytes:
    return b"".join(block.data for block in texts.blocks())


# Text


@given(
    st.lists(st.binary(max_size=20).map(lambda line: line.replace(b"\n", b" ")), min_size=2, max_size=40), st.booleans()
)
def test_the_two_parts_are_the_text_and_meet_at_a_line_end(lines: list[bytes], ended: bool) -> None:
    whole = b"\n".join(lines) + (b"\n" if ended else b"x")
    first, last = hold_out_text(text_of(whole), 0.1) or (None, None)
    if first is None or last is None:
        assert whole.rstrip(b"\n").count(b"\n") == 0 or whole.count(b"\n") <= 1
        return
    assert content(first) + content(last) == whole
    assert content(first).endswith(b"\n")
    assert content(last)


def test_about_the_given_share_is_held_out() -> None:
    whole = b"".join(b"line %04d\n" % number for number in range(1000))
    first, last = hold_out_text(text_of(whole, "book"), 0.1) or (None, None)
    assert first is not None
    assert last is not None
    assert last.size == 1000
    assert first.size == 9000
    assert (first.name, last.name) == ("book (first 90%)", "book (last 10%)")


def test_nothing_is_held_out_of_one_line() -> None:
    assert hold_out_text(text_of(b"only one line\n"), 0.1) is None
    assert hold_out_text(text_of(b"only one line"), 0.1) is None


# Pairs


@pytest.mark.parametrize(
    ("count", "share", "first"), [(2, 0.05, 1), (200, 0.0625, 187), (1000, 0.05, 950), (10**6, 0.05, 998_000)]
)
def test_the_last_pairs_are_held_out(count: int, share: float, first: int) -> None:
    assert first_held_out_pair(count, share) == first


def test_held_out_pairs_are_the_same_lines_of_both_sides() -> None:
    lines = [str(number) for number in range(50)]
    source, target = (text_of("".join(f"{prefix}{line}\n" for line in lines)) for prefix in "ab")
    pairs = held_out_pairs(Pairs(source, target), 0.1)
    assert list(lines_in(pairs.source)) == [f"a{line}" for line in lines[45:]]
    assert list(lines_in(pairs.target)) == [f"b{line}" for line in lines[45:]]


def test_one_pair_cannot_be_held_out() -> None:
    with pytest.raises(DataError) as caught:
        first_held_out_pair(1, 0.05)
    assert str(caught.value) == (
        "there is one pair only, so none can be held out; give more pairs, or others with --valid."
    )


# Examples


@pytest.mark.parametrize(("count", "share"), [(2, 0.05), (99, 0.1), (1000, 0.05), (200_000, 0.05)])
def test_examples_are_drawn_without_replacement(count: int, share: float) -> None:
    train_P, valid_P = hold_out_examples(count, share, "a.tsv")
    assert len(valid_P) == min(5000, math.ceil(count * share))
    assert np.array_equal(np.sort(np.concatenate([train_P, valid_P])), np.arange(count))
    assert (np.diff(train_P) > 0).all()
    assert (np.diff(valid_P) > 0).all()


def test_the_draw_is_always_the_same() -> None:
    """The draw of numpy's generator with seed 0, whatever the seed of the run."""
    _, valid_P = hold_out_examples(20, 0.2, "a.tsv")
    assert valid_P.tolist() == sorted(np.random.default_rng(0).permutation(20)[:4].tolist()) == [2, 4, 6, 19]


def test_examples_from_the_whole_file_are_held_out() -> None:
    _, valid_P = hold_out_examples(10_000, 0.05, "sorted by label")
    assert np.histogram(valid_P, 5, (0, 10_000))[0].min() > 70  # of 100


def test_one_example_cannot_be_held_out() -> None:
    with pytest.raises(DataError) as caught:
        hold_out_examples(1, 0.05, "a.tsv")
    assert str(caught.value) == (
        "a.tsv holds one text only, so none can be held out; give more, or others with --valid."
    )
