"""Merging of sorted runs: many files are read in parallel, from front to back, as one sorted sequence of windows.

Every run has a buffer, which is filled again when it may not hold a whole row. A heap holds the runs by their current
rows. `sorted_runs.py` describes the bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numba import njit

from chainrule.base.arrays import Array
from chainrule.engines.ngram.scratch import Number
from chainrule.engines.ngram.sorted_runs import BLOCK, RunWriter, SortedRun, max_row_bytes
from chainrule.engines.ngram.windows import NOTHING, Windows
from chainrule.errors import DataError

BUFFER = 1 << 18
"""Bytes read at once of each run."""

MAX_RUNS = 256
"""Runs merged at once: more are first merged in groups, so that disks read long pieces and few files are open."""

DONE, STARVED, DAMAGED = 0, 1, 2


def merge_runs(runs: Sequence[SortedRun], order: int, vocab_size: int) -> Iterator[Windows]:
    """The distinct windows of all runs in sorted order, with the sums of their counts, in blocks that stay valid."""
    last, places, begun = np.full(order, NOTHING, np.uint32), np.arange(BLOCK, dtype=np.uint32) * order, False
    for rows, counts in merge_rows(runs, order, vocab_size):
        shared = np.empty(len(rows), np.uint8)
        _compare(rows, last, begun, shared)
        begun, last = True, rows[-1].copy()
        yield Windows(rows.reshape(-1).copy(), places[: len(rows)], shared, counts.copy())


def merge_rows(runs: Sequence[SortedRun], order: int, vocab_size: int) -> Iterator[tuple[Array, Array]]:
    """The same as rows, filled up with NOTHING, and counts; the arrays are overwritten by the next block."""
    runs = [run for run in runs if run.rows]
    if not runs:
        return
    rows, counts = np.empty((BLOCK, order), np.uint32), np.empty(BLOCK, np.int64)
    with ExitStack() as stack:
        merger = _Merger([(run.path, stack.enter_context(run.path.open("rb"))) for run in runs], order, vocab_size)
        while used := merger.fill(rows, counts):
            yield rows[:used], counts[:used]


def runs_within(memory: int | None) -> int:
    """The number of runs that are merged at once if their buffers may take a quarter of `memory` bytes."""
    return MAX_RUNS if memory is None else max(2, min(MAX_RUNS, memory // (4 * BUFFER)))


def merge_into(
    path: Path, runs: Sequence[SortedRun], order: int, vocab_size: int, at_once: int = MAX_RUNS
) -> SortedRun:
    """Merge runs into one file; more than `at_once` are first merged in groups, in files beside it."""
    groups = 0
    while len(runs) > at_once:
        groups += 1
        merged = merge_into(path.with_name(f"{path.name}-{groups}"), runs[:at_once], order, vocab_size, at_once)
        runs = [*runs[at_once:], merged]
    writer = RunWriter(path, order)
    for rows, counts in merge_rows(runs, order, vocab_size):
        writer.add_rows(rows, counts)
    for number in range(1, groups + 1):
        path.with_name(f"{path.name}-{number}").unlink()
    return writer.close()


class _Merger:
    """The state of a merge: buffers of coded rows, the current row of each run, and the heap."""

    def __init__(self, files: list[tuple[Path, BinaryIO]], order: int, vocab_size: int) -> None:
        self._files, self._vocab_size, size = files, vocab_size, len(files)
        self._needed = max_row_bytes(order)
        self._buffers = np.empty((size, BUFFER), np.uint8)
        self._cursors, self._ends = np.zeros(size, np.int64), np.zeros(size, np.int64)
        self._exhausted = np.zeros(size, np.bool_)
        self._rows, self._counts = np.full((size, order), NOTHING, np.uint32), np.zeros(size, np.int64)
        self._heap, self._size = np.arange(size), np.array([size])
        for run in range(size):
            self._refill(run)
            if not _advance(*self._reading, run, vocab_size, self._rows, self._counts):
                raise self._damaged(run)
        _heapify(self._rows, self._heap)

    @property
    def _reading(self) -> tuple[Array, Array, Array]:
        return self._buffers, self._cursors, self._ends

    def fill(self, rows: Array, counts: Array) -> int:
        """Fill a block with the least rows -> their number; 0 once all runs are exhausted."""
        used = np.zeros(1, np.int64)
        while True:
            status, run = _merge_block(
                *self._reading,
                self._exhausted,
                self._needed,
                self._vocab_size,
                self._rows,
                self._counts,
                self._heap,
                self._size,
                rows,
                counts,
                used,
            )
            if status == DONE:
                return int(used[0])
            if status == DAMAGED:
                raise self._damaged(run)
            self._refill(run)

    def _refill(self, run: int) -> None:
        """Move the rest of a buffer to its front and read the next bytes of its file."""
        buffer, rest = self._buffers[run], self._ends[run] - self._cursors[run]
        buffer[:rest] = buffer[self._cursors[run] : self._ends[run]].copy()
        found = self._files[run][1].readinto(buffer[rest:].data)  # type: ignore[attr-defined]  # a buffered file
        self._cursors[run], self._ends[run] = 0, rest + found
        self._exhausted[run] = found == 0

    def _damaged(self, run: int) -> DataError:
        return DataError(f"{self._files[run][0]} is damaged: it holds no rows of counts; count its shard again")


@njit(cache=True, nogil=True)
def _advance(
    buffers: Array, cursors: Array, ends: Array, run: Number, vocab_size: int, rows: Array, counts: Array
) -> Any:
    """Read the next row of a run -> False if the bytes are no row."""
    order, at, end = rows.shape[1], cursors[run], ends[run]
    head = np.int64(buffers[run, at]) if at < end else np.int64(0)
    equal, new = head & 15, head >> 4
    at += 1
    if new == 0 or equal + new > order or (equal > 0 and rows[run, equal - 1] == NOTHING):
        return False
    for k in range(equal, equal + new + 1):
        value, shift = np.uint64(0), np.uint64(0)
        while True:
            if at >= end or shift > np.uint64(63):
                return False
            byte = np.uint64(buffers[run, at])
            at += 1
            value |= (byte & np.uint64(127)) << shift
            shift += np.uint64(7)
            if byte < np.uint64(128):
                break
        if k == equal + new:
            counts[run] = np.int64(value)
            break
        if k == equal and rows[run, k] != NOTHING:
            if value == 0:
                return False
            value += np.uint64(rows[run, k])
        if value >= np.uint64(vocab_size):
            return False
        rows[run, k] = np.uint32(value)
    rows[run, equal + new :] = NOTHING
    cursors[run] = at
    return counts[run] > 0


@njit(cache=True, nogil=True)
def _precedes(rows: Array, one: Number, other: Number) -> Any:
    """Whether the row of one run sorts before that of another; NOTHING sorts before every id."""
    for k in range(rows.shape[1]):
        a, b = np.uint32(rows[one, k] + np.uint32(1)), np.uint32(rows[other, k] + np.uint32(1))
        if a != b:
            return a < b
    return False


@njit(cache=True, nogil=True)
def _sift(rows: Array, heap: Array, size: int, place: int) -> None:
    """Restore the order of a min-heap of runs below `place`; runs compare by their current rows."""
    run = heap[place]
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        if child + 1 < size and _precedes(rows, heap[child + 1], heap[child]):
            child += 1
        if not _precedes(rows, heap[child], run):
            break
        heap[place] = heap[child]
        place = child
    heap[place] = run


@njit(cache=True, nogil=True)
def _heapify(rows: Array, heap: Array) -> None:
    for place in range(len(heap) // 2 - 1, -1, -1):
        _sift(rows, heap, len(heap), place)


@njit(cache=True, nogil=True)
def _merge_block(
    buffers: Array,
    cursors: Array,
    ends: Array,
    exhausted: Array,
    needed: int,
    vocab_size: int,
    rows: Array,
    counts: Array,
    heap: Array,
    size: Array,
    merged: Array,
    sums: Array,
    used: Array,
) -> tuple[int, int]:
    """Move the least rows of all runs to `merged` until it is full, the runs are exhausted, or one needs more bytes.

    -> the status, and the run that it is about.
    """
    order, filled = rows.shape[1], used[0]
    while size[0] > 0:
        run = heap[0]
        if ends[run] - cursors[run] < needed and not exhausted[run]:
            used[0] = filled
            return STARVED, run
        equal = filled > 0
        for k in range(order):
            if not equal:
                break
            equal = merged[filled - 1, k] == rows[run, k]
        if not equal:
            if filled == len(merged):
                break
            merged[filled] = rows[run]
            sums[filled] = 0
            filled += 1
        sums[filled - 1] += counts[run]
        if cursors[run] == ends[run]:
            size[0] -= 1
            heap[0] = heap[size[0]]
        elif not _advance(buffers, cursors, ends, run, vocab_size, rows, counts):
            return DAMAGED, run
        _sift(rows, heap, size[0], 0)
    used[0] = filled
    return DONE, 0


@njit(cache=True, nogil=True)
def _compare(rows: Array, last: Array, begun: bool, shared: Array) -> None:
    """The number of leading ids that each row shares with the previous one; `last` ends the previous block."""
    for number in range(len(shared)):
        equal = 0
        if number > 0 or begun:
            while equal < rows.shape[1]:
                before = rows[number - 1, equal] if number else last[equal]
                if before != rows[number, equal] or before == NOTHING:
                    break
                equal += 1
        shared[number] = equal
