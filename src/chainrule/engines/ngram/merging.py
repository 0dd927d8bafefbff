"""External sorting: sorted parts of a text are written to disk, then merged into one sorted sequence.

A run is a part of the text after sorting: its distinct windows as rows of `order` ids, filled up with NOTHING after the
end of a window, with their counts. All runs are stored back to back in two files, one of rows and one of counts, and
are read in parallel from front to back.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit

from chainrule.base.arrays import Array
from chainrule.engines.ngram.scratch import Number
from chainrule.engines.ngram.windows import NOTHING, Windows

BLOCK = 1 << 18
"""Rows written or merged at once."""


class SortedRuns:
    """Sorted runs on disk: written one by one, then merged."""

    def __init__(self, folder: Path, order: int, eos: int) -> None:
        self._row_path, self._count_path = folder / "rows", folder / "weights"
        self._order, self._eos = order, eos
        self._ends = [0]

    def add(self, windows: Windows) -> None:
        """Append a run."""
        rows, counts = np.empty((BLOCK, self._order), np.uint32), np.empty(BLOCK, np.uint32)
        slot, total = 0, self._ends[-1]
        with self._row_path.open("ab") as row_file, self._count_path.open("ab") as count_file:
            while slot < len(windows.places):
                slot, used = _collect_distinct(
                    windows.ids, windows.places, windows.shared, self._eos, slot, rows, counts
                )
                row_file.write(rows[:used].tobytes())
                count_file.write(counts[:used].tobytes())
                total += used
        self._ends.append(total)

    def __len__(self) -> int:
        """The number of rows of all runs."""
        return self._ends[-1]

    def merge(self) -> Iterator[Windows]:
        """The distinct rows of all runs in sorted order, with the sums of their counts, in blocks."""
        rows = np.memmap(self._row_path, np.uint32, "r").reshape(-1, self._order)
        row_counts = np.memmap(self._count_path, np.uint32, "r")
        cursors, ends = np.array(self._ends[:-1]), np.array(self._ends[1:])
        heap = np.arange(len(cursors))[cursors < ends]
        _heapify(rows, cursors, heap)
        size = np.array([len(heap)])
        last, places = np.full(self._order, NOTHING, np.uint32), np.arange(BLOCK, dtype=np.uint32) * self._order
        has_last = False
        while size[0]:
            merged, counts = np.empty((BLOCK, self._order), np.uint32), np.empty(BLOCK, np.uint32)
            used = _merge_block(rows, row_counts, cursors, ends, heap, size, merged, counts)
            shared = np.empty(used, np.uint8)
            _compare(merged, last, has_last, shared)
            has_last, last = True, merged[used - 1].copy()
            yield Windows(merged.reshape(-1), places[:used], shared, counts[:used])


@njit(cache=True, nogil=True)
def _collect_distinct(
    ids: Array, places: Array, shared: Array, eos: int, slot: int, rows: Array, counts: Array
) -> tuple[int, int]:
    """Fill rows with the distinct windows from `slot` on -> the slot to continue from, and the rows used."""
    order, used = rows.shape[1], 0
    while slot < len(places):
        if used == 0 or shared[slot] < order:
            if used == len(rows):
                break
            ended = False
            for k in range(order):
                token = NOTHING if ended else ids[places[slot] + k]
                rows[used, k] = token
                ended = ended or token == NOTHING or (k > 0 and token == eos)
            counts[used] = 0
            used += 1
        counts[used - 1] += 1
        slot += 1
    return slot, used


@njit(cache=True, nogil=True)
def _precedes(rows: Array, one: Number, other: Number) -> Any:
    """Whether one row sorts before another; NOTHING sorts before every token."""
    for k in range(rows.shape[1]):
        a, b = np.uint32(rows[one, k] + np.uint32(1)), np.uint32(rows[other, k] + np.uint32(1))
        if a != b:
            return a < b
    return False


@njit(cache=True, nogil=True)
def _sift(rows: Array, cursors: Array, heap: Array, size: int, place: int) -> None:
    """Restore the order of a min-heap of runs below `place`; runs compare by their current rows."""
    run = heap[place]
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        if child + 1 < size and _precedes(rows, cursors[heap[child + 1]], cursors[heap[child]]):
            child += 1
        if not _precedes(rows, cursors[heap[child]], cursors[run]):
            break
        heap[place] = heap[child]
        place = child
    heap[place] = run


@njit(cache=True, nogil=True)
def _heapify(rows: Array, cursors: Array, heap: Array) -> None:
    for place in range(len(heap) // 2 - 1, -1, -1):
        _sift(rows, cursors, heap, len(heap), place)


@njit(cache=True, nogil=True)
def _merge_block(
    rows: Array, row_counts: Array, cursors: Array, ends: Array, heap: Array, size: Array, merged: Array, counts: Array
) -> int:
    """Move the least rows of all runs to `merged` until it is full or the runs are exhausted -> rows used."""
    used, order = 0, rows.shape[1]
    while size[0] > 0:
        run = heap[0]
        row = cursors[run]
        equal = used > 0
        for k in range(order):
            if not equal:
                break
            equal = merged[used - 1, k] == rows[row, k]
        if not equal:
            if used == len(merged):
                break
            merged[used] = rows[row]
            counts[used] = 0
            used += 1
        counts[used - 1] += row_counts[row]
        cursors[run] += 1
        if cursors[run] == ends[run]:
            size[0] -= 1
            heap[0] = heap[size[0]]
        _sift(rows, cursors, heap, size[0], 0)
    return used


@njit(cache=True, nogil=True)
def _compare(rows: Array, last: Array, has_last: bool, shared: Array) -> None:
    """The number of leading words that each row shares with the previous one; `last` ends the previous block."""
    for number in range(len(shared)):
        equal = 0
        if number > 0 or has_last:
            while equal < rows.shape[1]:
                before = rows[number - 1, equal] if number else last[equal]
                if before != rows[number, equal] or before == NOTHING:
                    break
                equal += 1
        shared[number] = equal
