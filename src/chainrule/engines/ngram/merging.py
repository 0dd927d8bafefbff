"""Merging of sorted runs: many files are read in parallel, from front to back, as one sorted sequence of windows.

Every run has a buffer, which is filled again when it may not hold a whole row. `sorted_runs.py` describes the bytes. A
tournament holds the runs by their current rows: each inner node of a binary tree has the run that lost there, and the
winner of all is the next row. Its successor in the same run plays against the losers on its path alone.

Rows are compared by codes (Conner 1977, "offset-value codes"): how many leading ids a row shares with the row that it
lost to, and its next id. A larger number of shared ids, or else a smaller id, comes first. Only rows with equal codes
are compared id by id, from the next one on. The code of the successor is the beginning of its bytes in the file, and
the code of the winner is what it shares with the row before it.
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

WORD_BITS = 33
"""Bits of a code for an id plus one."""

EQUAL, EXHAUSTED = 0, (1 << 63) - 1
"""Codes of a row that equals the one before it, and of a run without rows."""


def merge_runs(runs: Sequence[SortedRun], order: int, vocab_size: int) -> Iterator[Windows]:
    """The distinct windows of all runs in sorted order, with the sums of their counts, in blocks that stay valid."""
    places = np.arange(BLOCK, dtype=np.uint32) * order
    for rows, counts, shared in merge_rows(runs, order, vocab_size):
        yield Windows(rows.reshape(-1).copy(), places[: len(rows)], shared.copy(), counts.copy())


def merge_rows(runs: Sequence[SortedRun], order: int, vocab_size: int) -> Iterator[tuple[Array, Array, Array]]:
    """The same as rows, filled up with NOTHING, their counts, and the number of leading ids equal to the row before.

    The arrays are overwritten by the next block.
    """
    runs = [run for run in runs if run.rows]
    if not runs:
        return
    rows, counts, shared = np.empty((BLOCK, order), np.uint32), np.empty(BLOCK, np.int64), np.empty(BLOCK, np.uint8)
    with ExitStack() as stack:
        merger = _Merger([(run.path, stack.enter_context(run.path.open("rb"))) for run in runs], order, vocab_size)
        while used := merger.fill(rows, counts, shared):
            yield rows[:used], counts[:used], shared[:used]


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
    for rows, counts, _ in merge_rows(runs, order, vocab_size):
        writer.add_rows(rows, counts)
    for number in range(1, groups + 1):
        path.with_name(f"{path.name}-{number}").unlink()
    return writer.close()


class _Merger:
    """The state of a merge: buffers of coded rows, the current row of each run with its code, and the tournament."""

    def __init__(self, files: list[tuple[Path, BinaryIO]], order: int, vocab_size: int) -> None:
        self._files, self._vocab_size, size = files, vocab_size, len(files)
        self._needed = max_row_bytes(order)
        self._buffers = np.empty((size, BUFFER), np.uint8)
        self._cursors, self._ends = np.zeros(size, np.int64), np.zeros(size, np.int64)
        self._exhausted = np.zeros(size, np.bool_)
        self._rows, self._counts = np.full((size, order), NOTHING, np.uint32), np.zeros(size, np.int64)
        self._codes, self._losers = np.zeros(size, np.int64), np.zeros(size, np.int64)
        for run in range(size):
            self._refill(run)
            if not _advance(*self._reading, run, vocab_size, self._rows, self._counts, self._codes):
                raise self._damaged(run)
        _begin_tournament(self._rows, self._codes, self._losers)

    @property
    def _reading(self) -> tuple[Array, Array, Array]:
        return self._buffers, self._cursors, self._ends

    def fill(self, rows: Array, counts: Array, shared: Array) -> int:
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
                self._codes,
                self._losers,
                rows,
                counts,
                shared,
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
    buffers: Array, cursors: Array, ends: Array, run: Number, vocab_size: int, rows: Array, counts: Array, codes: Array
) -> Any:
    """Read the next row of a run and its code after the one before -> False if the bytes are no row."""
    order, at, end = rows.shape[1], cursors[run], ends[run]
    head = np.int64(buffers[run, at]) if at < end else np.int64(0)
    equal, new = head & 15, head >> 4
    length = equal + new
    at += 1
    if new == 0 or length > order or (equal > 0 and rows[run, equal - 1] == NOTHING):
        return False
    for k in range(equal, length + 1):
        if at >= end:
            return False
        value = np.uint64(buffers[run, at])
        at += 1
        if value >= np.uint64(128):
            value, at = _long_number(buffers, run, at, end, value)
            if at < 0:
                return False
        if k == length:
            counts[run] = np.int64(value)
            break
        if k == equal and rows[run, k] != NOTHING:
            if value == 0:
                return False
            value += np.uint64(rows[run, k])
        if value >= np.uint64(vocab_size):
            return False
        rows[run, k] = np.uint32(value)
    for k in range(length, order):
        rows[run, k] = NOTHING
    cursors[run] = at
    codes[run] = _code(order - equal, rows[run, equal])
    return counts[run] > 0


@njit(cache=True, nogil=True)
def _long_number(buffers: Array, run: Number, at: Number, end: Number, value: Number) -> tuple[Any, Any]:
    """A varint whose first byte is known -> its value and the place after it; -1 if the bytes are none."""
    value, shift = value & np.uint64(127), np.uint64(7)
    while at < end and shift <= np.uint64(63):
        byte = np.uint64(buffers[run, at])
        at += 1
        value |= (byte & np.uint64(127)) << shift
        shift += np.uint64(7)
        if byte < np.uint64(128):
            return value, at
    return value, np.int64(-1)


@njit(cache=True, nogil=True)
def _code(left: Number, word: Number) -> Any:
    """The code of a row of which all but the last `left` ids are shared; NOTHING sorts before every id."""
    return (np.int64(left) << WORD_BITS) | np.int64(np.uint32(word + np.uint32(1)))


@njit(cache=True, nogil=True)
def _precedes(rows: Array, codes: Array, one: Number, other: Number) -> Any:
    """Whether the row of one run sorts before, or equals, that of another; gives the later one a code after the other.

    Both have codes after the same row. The code of the later one is the same after both, unless they are equal.
    """
    if codes[one] != codes[other]:
        return codes[one] < codes[other]
    order = rows.shape[1]
    if codes[one] == EXHAUSTED or codes[one] == EQUAL:
        return True
    for k in range(order - (codes[one] >> WORD_BITS) + 1, order):
        mine, theirs = _code(order - k, rows[one, k]), _code(order - k, rows[other, k])
        if mine != theirs:
            codes[other if mine < theirs else one] = max(mine, theirs)
            return mine < theirs
    codes[other] = EQUAL
    return True


@njit(cache=True, nogil=True)
def _begin_tournament(rows: Array, codes: Array, losers: Array) -> None:
    """Let all runs play; the tree has the runs as its leaves, and losers[0] is the winner."""
    size = len(losers)
    winners = np.empty(2 * size, np.int64)
    winners[size:] = np.arange(size)
    for node in range(size - 1, 0, -1):
        one, other = winners[2 * node], winners[2 * node + 1]
        if not _precedes(rows, codes, one, other):
            one, other = other, one
        winners[node], losers[node] = one, other
    losers[0] = winners[1]


@njit(cache=True, nogil=True)
def _play(rows: Array, codes: Array, losers: Array, run: Number) -> None:
    """Let the new row of the last winner play against the losers on its path."""
    node = (run + len(losers)) >> 1
    while node > 0:
        other = losers[node]
        if not _precedes(rows, codes, run, other):
            losers[node], run = run, other
        node >>= 1
    losers[0] = run


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
    codes: Array,
    losers: Array,
    merged: Array,
    sums: Array,
    shared: Array,
    used: Array,
) -> tuple[int, int]:
    """Move the least rows of all runs to `merged` until it is full, the runs are exhausted, or one needs more bytes.

    -> the status, and the run that it is about.
    """
    order, filled = rows.shape[1], used[0]
    while codes[losers[0]] != EXHAUSTED:
        run = losers[0]
        if ends[run] - cursors[run] < needed and not exhausted[run]:
            used[0] = filled
            return STARVED, run
        if codes[run] != EQUAL:
            if filled == len(merged):
                break
            for k in range(order):
                merged[filled, k] = rows[run, k]
            shared[filled] = order - (codes[run] >> WORD_BITS)
            sums[filled] = 0
            filled += 1
        sums[filled - 1] += counts[run]
        if cursors[run] == ends[run]:
            codes[run] = EXHAUSTED
        elif not _advance(buffers, cursors, ends, run, vocab_size, rows, counts, codes):
            return DAMAGED, run
        _play(rows, codes, losers, run)
    used[0] = filled
    return DONE, 0
