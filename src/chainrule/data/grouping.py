"""Batches of items of similar length, results in the original order, and windows over a stream.

Padding wastes least when the items of a batch are about equally long. The usual pattern:

    batches = by_length([len(row) for row in rows], max_tokens=8192)
    results = map_batches(batches, lambda batch: compute([rows[index] for index in batch]))

Sorting is stable: items of equal length keep their order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

import numpy as np

from chainrule.base.arrays import Array
from chainrule.base.forking import map_shared

T = TypeVar("T")


def by_length(
    lengths: Sequence[int] | Array,
    *,
    max_tokens: int | None = None,
    max_rows: int | None = None,
    longest_first: bool = True,
) -> Iterator[list[int]]:
    """Indices of the items sorted by length, cut into batches of at least one.

    A batch has at most `max_rows` items, and at most `max_tokens` divided by the length of its first item. With
    `longest_first` this bounds the padded size of the batch; without, later items of a batch may exceed it.
    """
    lengths_N = np.asarray(lengths, np.int64)
    order = np.argsort(-lengths_N if longest_first else lengths_N, kind="stable").tolist()
    begin = 0
    while begin < len(order):
        rows = len(order) if max_rows is None else max_rows
        if max_tokens is not None:
            rows = min(rows, max_tokens // max(1, int(lengths_N[order[begin]])))
        end = begin + max(1, rows)
        yield order[begin:end]
        begin = end


def by_equal_length(lengths: Sequence[int]) -> list[list[int]]:
    """Indices of the items of each length, the lengths in the order in which they first occur."""
    groups: dict[int, list[int]] = {}
    for index, length in enumerate(lengths):
        groups.setdefault(length, []).append(index)
    return list(groups.values())


def consecutive(lengths: Sequence[int] | Array, *, max_tokens: int, max_rows: int | None = None) -> list[slice]:
    """Cut items, without reordering, into batches: items times greatest length is at most `max_tokens`.

    A batch has at least one item, however long, and at most `max_rows`.
    """
    cuts, longest = [0], 0
    sizes = np.asarray(lengths).tolist()
    for index, length in enumerate(sizes):
        rows, longest = index + 1 - cuts[-1], max(longest, length)
        if rows > 1 and (rows * longest > max_tokens or (max_rows is not None and rows > max_rows)):
            cuts.append(index)
            longest = length
    return [slice(begin, end) for begin, end in zip(cuts, [*cuts[1:], len(sizes)], strict=True) if begin < end]


def map_batches(
    batches: Iterable[list[int]], compute: Callable[[list[int]], Iterable[T]], model: object | None = None
) -> list[T]:
    """Compute the results of each batch of indices; return the results of all items in the order of the items.

    `model` is the model that `compute` uses if several processes may share the batches: where one batch depends on no
    other, and all that remains of `compute` is its result.
    """
    every, results = list(batches), dict[int, T]()
    computed = map(compute, every) if model is None else map_shared(model, every, lambda batch: list(compute(batch)))
    for batch, found in zip(every, computed, strict=True):
        results.update(zip(batch, found, strict=True))
    return [results[index] for index in range(len(results))]


def in_windows(items: Iterable[T], first: int, largest: int | None = None) -> Iterator[list[T]]:
    """Lists of consecutive items: `first` of them, then twice as many each time, up to `largest` (default: `first`).

    The first results of a stream are ready soon, and later windows are large enough to be sorted into full batches.
    """
    rest, size = iter(items), first
    while window := list(islice(rest, size)):
        yield window
        size = min(2 * size, first if largest is None else largest)
