"""Sorted pieces of a text on disk, and one sorted sequence out of them.

A run is a piece of the text after sorting: its different windows as rows of N ids (NOTHING after the end of a window)
with their counts. All runs lie one after the other in two files, and are read side by side from front to back.

Legend: N order, R runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit

from chainrule.engines.ngram.scratch import Array, Number
from chainrule.engines.ngram.windows import NOTHING, Windows

BLOCK = 1 << 18
"""Rows written or merged at once."""


class Runs:
    """Runs being written, then merged."""

    def __init__(self, folder: Path, order: int, eos: int) -> None:
        self._rows, self._weights = folder / "rows", folder / "weights"
        self._order, self._eos = order, eos
        self._ends = [0]

    def add(self, windows: Windows) -> None:
        """Append a sorted piece."""
        rows, weights = np.empty((BLOCK, self._order), np.uint32), np.empty(BLOCK, np.uint32)
        slot, total = 0, self._ends[-1]
        with self._rows.open("ab") as row_file, self._weights.open("ab") as weight_file:
            while slot < len(windows.places):
                slot, used = _unique(windows.ids, windows.places, windows.shared, self._eos, slot, rows, weights)
                row_file.write(rows[:used].tobytes())
                weight_file.write(weights[:used].tobytes())
                total += used
        self._ends.append(total)

    def __len__(self) -> int:
        """All rows of all runs."""
        return self._ends[-1]

    def merged(self) -> Iterator[Windows]:
        """The rows of all runs in order, equal ones as one, in blocks."""
        rows = np.memmap(self._rows, np.uint32, "r").reshape(-1, self._order)
        weights = np.memmap(self._weights, np.uint32, "r")
        cursors, ends = np.array(self._ends[:-1]), np.array(self._ends[1:])
        heap = np.arange(len(cursors))[cursors < ends]
        _heapify(rows, cursors, heap)
        size = np.array([len(heap)])
        last, places = np.full(self._order, NOTHING, np.uint32), np.arange(BLOCK, dtype=np.uint32) * self._order
        begun = False
        while size[0]:
            out, counts = np.empty((BLOCK, self._order), np.uint32), np.empty(BLOCK, np.uint32)
            used = _merge(rows, weights, cursors, ends, heap, size, out, counts)
            shared = np.empty(used, np.uint8)
            _compare(out, last, begun, shared)
            begun, last = True, out[used - 1].copy()
            yield Windows(out.reshape(-1), places[:used], shared, counts[:used])


@njit(cache=True, nogil=True)
def _unique(
    ids: Array, places: Array, shared: Array, eos: int, slot: int, rows: Array, weights: Array
) -> tuple[int, int]:
    """Fill rows with the different windows from `slot` on -> the slot to go on from, and the rows used."""
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
            weights[used] = 0
            used += 1
        weights[used - 1] += 1
        slot += 1
    return slot, used


@njit(cache=True, nogil=True)
def _before(rows: Array, one: Number, other: Number) -> Any:
    """Whether a row sorts before another; NOTHING sorts before every token."""
    for k in range(rows.shape[1]):
        a, b = np.uint32(rows[one, k] + np.uint32(1)), np.uint32(rows[other, k] + np.uint32(1))
        if a != b:
            return a < b
    return False


@njit(cache=True, nogil=True)
def _sift(rows: Array, cursors: Array, heap: Array, size: int, place: int) -> None:
    """Let a run sink to where it belongs in the heap of runs, the least row on top."""
    run = heap[place]
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        if child + 1 < size and _before(rows, cursors[heap[child + 1]], cursors[heap[child]]):
            child += 1
        if not _before(rows, cursors[heap[child]], cursors[run]):
            break
        heap[place] = heap[child]
        place = child
    heap[place] = run


@njit(cache=True, nogil=True)
def _heapify(rows: Array, cursors: Array, heap: Array) -> None:
    for place in range(len(heap) // 2 - 1, -1, -1):
        _sift(rows, cursors, heap, len(heap), place)


@njit(cache=True, nogil=True)
def _merge(
    rows: Array, weights: Array, cursors: Array, ends: Array, heap: Array, size: Array, out: Array, counts: Array
) -> int:
    """Take the least rows of all runs until `out` is full or the runs are at their end -> rows used."""
    used, order = 0, rows.shape[1]
    while size[0] > 0:
        run = heap[0]
        row = cursors[run]
        equal = used > 0
        for k in range(order):
            if not equal:
                break
            equal = out[used - 1, k] == rows[row, k]
        if not equal:
            if used == len(out):
                break
            out[used] = rows[row]
            counts[used] = 0
            used += 1
        counts[used - 1] += weights[row]
        cursors[run] += 1
        if cursors[run] == ends[run]:
            size[0] -= 1
            heap[0] = heap[size[0]]
        _sift(rows, cursors, heap, size[0], 0)
    return used


@njit(cache=True, nogil=True)
def _compare(rows: Array, last: Array, begun: bool, shared: Array) -> None:
    """How many leading words each row shares with the one before it; the first with the last of the block before."""
    for number in range(len(shared)):
        equal = 0
        if number > 0 or begun:
            while equal < rows.shape[1]:
                before = rows[number - 1, equal] if number else last[equal]
                if before != rows[number, equal] or before == NOTHING:
                    break
                equal += 1
        shared[number] = equal
