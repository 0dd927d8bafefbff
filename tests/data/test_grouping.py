"""Batches by length against plain loops over sorted lists, and results in the order of the items."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chainrule.data.grouping import by_equal_length, by_length, consecutive, in_windows, map_batches

LENGTHS = st.lists(st.integers(1, 40), max_size=60)
TOKENS = st.integers(1, 200)


def longest_first(lengths: list[int], rows: int, tokens: int, beams: int) -> Iterator[list[int]]:
    """Rows that a beam search decodes: each has an `eos` and is decoded `beams` times."""
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    while order:
        count = max(1, min(rows, tokens // ((lengths[order[0]] + 1) * beams)))
        yield order[:count]
        order = order[count:]


def shortest_first(lengths: list[int], tokens: int) -> Iterator[list[int]]:
    """Rows that a language model scores."""
    order = sorted(range(len(lengths)), key=lambda index: lengths[index])
    while order:
        count = max(1, min(len(order), tokens // lengths[order[0]]))
        yield order[:count]
        order = order[count:]


@given(LENGTHS, st.integers(1, 20), TOKENS, st.integers(1, 5))
def test_the_longest_come_first_and_count_as_they_are_padded(
    lengths: list[int], rows: int, tokens: int, beams: int
) -> None:
    sizes = [(length + 1) * beams for length in lengths]
    batches = list(by_length(sizes, max_tokens=tokens, max_rows=rows))
    assert batches == list(longest_first(lengths, rows, tokens, beams))
    for batch in batches:
        assert len(batch) == 1 or len(batch) * max(sizes[index] for index in batch) <= tokens


@given(LENGTHS, TOKENS)
def test_the_shortest_come_first(lengths: list[int], tokens: int) -> None:
    found = by_length(lengths, max_tokens=tokens, longest_first=False)
    assert list(found) == list(shortest_first(lengths, tokens))


@given(LENGTHS, st.integers(1, 20))
def test_a_number_of_rows_may_be_the_only_bound(lengths: list[int], rows: int) -> None:
    order = sorted(range(len(lengths)), key=lambda index: lengths[index])
    expected = [order[begin : begin + rows] for begin in range(0, len(order), rows)]
    assert list(by_length(lengths, max_rows=rows, longest_first=False)) == expected
    assert list(by_length(np.asarray(lengths, np.uint8), max_rows=rows, longest_first=False)) == expected


def test_items_of_equal_length_keep_their_order() -> None:
    lengths = [2, 3, 2, 3, 2]
    assert list(by_length(lengths, max_rows=2)) == [[1, 3], [0, 2], [4]]
    assert list(by_length(lengths)) == [[1, 3, 0, 2, 4]]
    assert list(by_length(lengths, longest_first=False)) == [[0, 2, 4, 1, 3]]


def test_an_item_that_exceeds_the_bound_is_alone() -> None:
    assert list(by_length([9, 1, 0, 0], max_tokens=2)) == [[0], [1, 2], [3]]


def test_nothing_gives_no_batch() -> None:
    assert list(by_length([], max_tokens=9)) == by_equal_length([]) == consecutive([], max_tokens=9) == []
    assert map_batches([], lambda batch: batch) == list(in_windows([], 8)) == []


def test_groups_of_equal_length_come_as_the_lengths_first_occur() -> None:
    assert by_equal_length([5, 2, 5, 9, 2, 5]) == [[0, 2, 5], [1, 4], [3]]


@given(LENGTHS, TOKENS, st.none() | st.integers(1, 20))
def test_consecutive_items_fill_each_batch(lengths: list[int], tokens: int, rows: int | None) -> None:
    """Against the longest prefix that fits, again and again."""
    expected, begin = [], 0
    while begin < len(lengths):
        fitting = [
            end
            for end in range(begin + 1, min(len(lengths), begin + (rows or len(lengths))) + 1)
            if (end - begin) * max(lengths[begin:end]) <= tokens
        ]
        expected.append(slice(begin, max([begin + 1, *fitting])))
        begin = expected[-1].stop
    assert consecutive(lengths, max_tokens=tokens, max_rows=rows) == expected
    assert consecutive(np.asarray(lengths, np.int64), max_tokens=tokens, max_rows=rows) == expected


@given(LENGTHS, TOKENS)
def test_results_are_in_the_order_of_the_items(lengths: list[int], tokens: int) -> None:
    seen: list[int] = []

    def compute(batch: list[int]) -> Iterator[str]:
        seen.extend(batch)
        return (f"{index}: {lengths[index]}" for index in batch)

    batches = list(by_length(lengths, max_tokens=tokens))
    assert map_batches(batches, compute) == [f"{index}: {length}" for index, length in enumerate(lengths)]
    assert seen == [index for batch in batches for index in batch]


def test_every_item_needs_one_result() -> None:
    with pytest.raises(ValueError, match="shorter"):
        map_batches([[0, 1]], lambda batch: [1])


def test_windows_double_up_to_the_largest() -> None:
    assert [len(window) for window in in_windows(range(100), 8, 32)] == [8, 16, 32, 32, 12]
    assert [len(window) for window in in_windows(range(10), 4)] == [4, 4, 2]
    assert [len(window) for window in in_windows(range(3), 1, 1)] == [1, 1, 1]
    assert [item for window in in_windows(range(100), 3, 20) for item in window] == list(range(100))


def test_windows_read_no_further_than_they_must() -> None:
    drawn: list[int] = []

    def items() -> Iterator[int]:
        for number in range(100):
            drawn.append(number)
            yield number

    windows = in_windows(items(), 2, 8)
    assert drawn == []
    assert next(windows) == [0, 1]
    assert drawn == [0, 1]
    assert next(windows) == [2, 3, 4, 5]
    assert len(drawn) == 6
