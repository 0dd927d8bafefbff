"""Counts against a Counter: any text, any order, lines independent or not, in memory or with sorted runs on disk."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chainrule.engines.ngram.scratch import open_array_pool
from chainrule.engines.ngram.trie import Trie, count
from engines.ngram.naive import Stream

few = settings(max_examples=40, deadline=None)
LITTLE = 240  # bytes, about ten tokens: every text but the smallest makes several runs on disk


@st.composite
def streams(draw: st.DrawFn) -> Stream:
    vocab_size = draw(st.integers(3, 6))
    length = draw(st.integers(5, 60))
    text = draw(st.lists(st.integers(0, vocab_size - 1), min_size=length, max_size=length))
    return Stream(text, vocab_size, eos=draw(st.integers(0, vocab_size - 1)), across_lines=draw(st.booleans()))


def counted(stream: Stream, order: int, dtype: Any = np.int64, **options: Any) -> Trie:
    return count(
        np.asarray(stream.text, dtype=dtype),
        order=order,
        eos=stream.eos,
        across_lines=stream.across_lines,
        vocab_size=stream.vocab_size,
        **options,
    )


@contextmanager
def counted_on_disk(stream: Stream, order: int) -> Iterator[Trie]:
    with open_array_pool(LITTLE, needed=LITTLE + 1, scratch=None) as pool:
        yield counted(stream, order, pool=pool)


def assert_counts(trie: Trie, stream: Stream, order: int) -> None:
    """The n-grams of every order in sorted order with their counts, including unseen words."""
    for length in range(1, order + 1):
        want = stream.counts(length)
        ngrams = [(word,) for word in range(stream.vocab_size)] if length == 1 else sorted(want)
        assert list(map(tuple, trie.ngrams(length).tolist())) == ngrams
        assert trie.counts(length).tolist() == [want[ngram] for ngram in ngrams]


def assert_links(trie: Trie, order: int) -> None:
    """Every n-gram links to the n-gram without its first word."""
    for length in range(2, order + 1):
        shorter = trie.links_J[trie.level(length)].astype(np.int64) - int(trie.starts[length - 2])
        np.testing.assert_array_equal(trie.ngrams(length - 1)[shorter], trie.ngrams(length)[:, 1:])


def assert_identical(one: Trie, other: Trie) -> None:
    for field in ("starts", "words_J", "counts_J", "first_Y", "links_J"):
        np.testing.assert_array_equal(getattr(one, field), getattr(other, field), err_msg=field)


def zipfian(vocab_size: int, length: int, across_lines: bool = False) -> Stream:
    """Ids of the whole vocabulary with Zipfian frequencies; eos is the second most frequent."""
    generator = np.random.default_rng(7)
    ids = generator.permutation(vocab_size)
    text = ids[np.minimum(generator.zipf(1.3, size=length), vocab_size) - 1]
    return Stream(text.tolist(), vocab_size, eos=int(ids[1]), across_lines=across_lines)


def test_lines_bound_ngrams_unless_they_run_across() -> None:
    text, opening = [1, 0, 0, 2], {(0, 1): 1, (1, 0): 1, (0, 0): 1, (0, 2): 1}
    by_line, across = Stream(text, 3, eos=0, across_lines=False), Stream(text, 3, eos=0, across_lines=True)
    assert by_line.counts(1) == across.counts(1) == {(1,): 1, (0,): 2, (2,): 1}
    assert by_line.counts(2) == across.counts(2) == opening
    assert by_line.counts(3) == {(0, 1, 0): 1}
    assert across.counts(3) == {(0, 1, 0): 1, (1, 0, 0): 1, (0, 0, 2): 1}
    for stream in (by_line, across):
        assert_counts(counted(stream, 3), stream, 3)


def test_adjusted_counts_by_hand() -> None:
    text = [1, 0, 1, 0, 1]
    by_line, across = Stream(text, 2, eos=0, across_lines=False), Stream(text, 2, eos=0, across_lines=True)
    assert by_line.adjusted_counts(1) == across.adjusted_counts(1) == {(0,): 1, (1,): 1}
    assert by_line.adjusted_counts(2) == {(0, 1): 3, (1, 0): 1}  # three lines begin with 1
    assert across.adjusted_counts(2) == {(0, 1): 2, (1, 0): 1}  # after 1, and at the start of the stream


@few
@given(stream=streams(), length=st.integers(2, 5))
def test_with_independent_lines_eos_is_only_first_or_last_in_an_ngram(stream: Stream, length: int) -> None:
    """The reference itself by another route: all windows of the stream except those with an eos inside."""
    tokens = (stream.eos, *stream.text)
    windows = [tokens[start : start + length] for start in range(len(tokens) - length + 1)]
    allowed = [window for window in windows if stream.across_lines or stream.eos not in window[1:-1]]
    assert stream.counts(length) == Counter(allowed)


@few
@given(stream=streams(), order=st.integers(1, 8))
def test_counts_are_those_of_a_counter(stream: Stream, order: int) -> None:
    trie = counted(stream, order)
    assert_counts(trie, stream, order)
    assert_links(trie, order)


@few
@given(stream=streams(), order=st.integers(1, 8))
def test_limited_memory_gives_the_same_counts(stream: Stream, order: int) -> None:
    with counted_on_disk(stream, order) as trie:
        assert_identical(trie, counted(stream, order))


@pytest.mark.parametrize("across_lines", [False, True])
@pytest.mark.parametrize("order", [1, 2, 5, 8])
def test_many_runs_merge_into_the_same_counts(order: int, across_lines: bool) -> None:
    stream = zipfian(50, 4000, across_lines)
    with counted_on_disk(stream, order) as trie:
        assert_counts(trie, stream, order)
        assert_identical(trie, counted(stream, order))


@pytest.mark.parametrize("vocab_size", [2, 255, 256, 257, 65_535, 65_537, 300_007])
def test_ids_of_any_width_stay_distinct(vocab_size: int) -> None:
    stream = zipfian(vocab_size, 1500)
    trie = counted(stream, 8)
    assert_counts(trie, stream, 8)
    assert_links(trie, 8)
    with counted_on_disk(stream, 8) as merged:
        assert_identical(merged, trie)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int32])
def test_the_dtype_of_the_tokens_changes_nothing(dtype: Any) -> None:
    stream = zipfian(100, 1000)
    assert_identical(counted(stream, 4, dtype), counted(stream, 4))


def test_threads_change_nothing() -> None:
    stream = zipfian(100, 5000)
    assert_identical(counted(stream, 5, threads=3), counted(stream, 5))


@pytest.mark.parametrize("across_lines", [False, True])
@pytest.mark.parametrize(
    "text",
    [
        pytest.param([0], id="one empty line"),
        pytest.param([2], id="one token, no eos"),
        pytest.param([0, 0, 0], id="empty lines only"),
        pytest.param([1] * 300, id="one token, repeated"),
        pytest.param([1, 2] * 40, id="no eos"),
        pytest.param([0, 1, 2, 0, 0, 1, 2], id="an empty line first, none last"),
    ],
)
def test_odd_texts(text: list[int], across_lines: bool) -> None:
    stream = Stream(text, 3, eos=0, across_lines=across_lines)
    assert_counts(counted(stream, 5), stream, 5)
    with counted_on_disk(stream, 5) as trie:
        assert_counts(trie, stream, 5)
