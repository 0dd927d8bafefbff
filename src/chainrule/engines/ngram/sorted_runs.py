"""Sorted windows in a file: distinct, with their counts, each coded as the difference from the one before it.

A run is a sequence of rows in ascending order. A row is a window of 1 to `order` ids with its count; a window sorts
after its own beginnings, and ids sort by number. In the file a row is

    1 byte      s + 16 n: the first s ids are those of the row before, n ≥ 1 ids follow; s = 0 in the first row
    varint      the first of these ids; if the row before is longer than s, less its id at this place, so at least 1
    varints     the other n - 1 ids
    varint      the count, at least 1

A varint has 7 bits per byte, the lowest first; the highest bit of a byte is set if another one follows. Rows follow one
another without a gap, and the file has nothing else. Every such sequence of bytes is in order by construction.
`merging.py` reads it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numba import njit

from chainrule.base.arrays import Array
from chainrule.base.files import disk_errors
from chainrule.engines.ngram.windows import NOTHING, Windows

BLOCK = 1 << 17
"""Rows coded or merged at once."""

GATHER = 1 << 12
"""Windows fetched at once."""


def max_row_bytes(order: int) -> int:
    """The largest number of bytes of a row: five for an id of 32 bits, ten for a count of 63."""
    return 1 + 5 * order + 10


@dataclass(frozen=True)
class SortedRun:
    """A file of sorted windows."""

    path: Path
    rows: int  # distinct windows
    windows: int  # the sum of their counts
    sizes: tuple[int, ...]  # number of distinct beginnings of 1, 2, … ids: the n-grams of each order
    bytes: int
    checksum: str  # of the file: BLAKE2b of 16 bytes in hexadecimal digits


class RunWriter:
    """Writes one run, in blocks of ascending windows."""

    def __init__(self, path: Path, order: int) -> None:
        self.path, self._order = path, order
        self._last = np.full(order, NOTHING, np.uint32)
        self._sizes = np.zeros(order, np.int64)
        self._buffer = np.empty(BLOCK * max_row_bytes(order), np.uint8)
        self._digest = hashlib.blake2b(digest_size=16)
        self._rows = self._windows = self._bytes = 0
        with disk_errors(path):
            self._file = path.open("wb")

    def add(self, windows: Windows, ending: int) -> None:
        """Append sorted windows, equal ones together; `ending` is the id that ends a window, or -1."""
        rows, counts, slot = np.empty((BLOCK, self._order), np.uint32), np.empty(BLOCK, np.int64), 0
        while slot < len(windows.places):
            slot, used = _collect_distinct(*windows[:3], ending, slot, rows, counts)
            self.add_rows(rows[:used], counts[:used])

    def add_rows(self, rows: Array, counts: Array) -> None:
        """Append at most BLOCK rows, filled up with NOTHING, and their counts."""
        used = _encode(rows, counts, self._last, self._sizes, self._buffer)
        data = self._buffer[:used].data
        with disk_errors(self.path):
            self._file.write(data)
        self._digest.update(data)
        self._rows, self._bytes = self._rows + len(rows), self._bytes + used
        self._windows += int(counts.sum())

    def close(self) -> SortedRun:
        """End the file."""
        with disk_errors(self.path):
            self._file.close()
        sizes = tuple(map(int, self._sizes))
        return SortedRun(self.path, self._rows, self._windows, sizes, self._bytes, self._digest.hexdigest())


@njit(cache=True, nogil=True)
def _collect_distinct(
    ids: Array, places: Array, shared: Array, ending: int, slot: int, rows: Array, counts: Array
) -> tuple[int, int]:
    """Fill rows with the distinct windows from `slot` on -> the slot to continue from, and the rows used."""
    order, used = rows.shape[1], 0
    new = np.empty(GATHER, np.int64)
    while slot < len(places) and used < len(rows):
        # The slots that differ from the previous one are listed first: reads without branches overlap.
        room, found, last = min(GATHER, len(rows) - used), 1, slot + 1
        new[0] = slot
        while last < len(places):
            if shared[last] < order:
                if found == room:
                    break
                new[found] = last
                found += 1
            last += 1
        for number in range(found):
            place = np.int64(places[new[number]])
            for k in range(order):
                rows[used + number, k] = ids[place + k]
        for number in range(found):
            counts[used + number] = (new[number + 1] if number + 1 < found else last) - new[number]
            _fill_after_end(rows[used + number], ending)
        used, slot = used + found, last
    return slot, used


@njit(cache=True, nogil=True)
def _fill_after_end(row: Array, ending: int) -> None:
    """Put NOTHING after the id that ends a window."""
    ended = row[0] == NOTHING
    for k in range(1, len(row)):
        if ended:
            row[k] = NOTHING
        ended = ended or row[k] == NOTHING or row[k] == ending


@njit(cache=True, nogil=True)
def _encode(rows: Array, counts: Array, last: Array, sizes: Array, buffer: Array) -> int:
    """Code rows after the row `last`, which is replaced by the last of them -> the bytes used."""
    order, at = len(last), 0
    for number in range(len(rows)):
        equal = 0
        while equal < order and rows[number, equal] == last[equal] and last[equal] != NOTHING:
            equal += 1
        head, length = at, equal
        at += 1
        while length < order and rows[number, length] != NOTHING:
            value = np.uint64(rows[number, length])
            if length == equal and last[length] != NOTHING:
                value -= np.uint64(last[length])
            at = _put_number(value, buffer, at)
            last[length] = rows[number, length]
            sizes[length] += 1
            length += 1
        buffer[head] = equal + 16 * (length - equal)
        at = _put_number(np.uint64(counts[number]), buffer, at)
        last[length:] = NOTHING
    return at


@njit(cache=True, nogil=True)
def _put_number(value: np.uint64, buffer: Array, at: int) -> int:
    """Write a varint -> the place after it."""
    while value >= np.uint64(128):
        buffer[at] = np.uint8((value & np.uint64(127)) | np.uint64(128))
        value >>= np.uint64(7)
        at += 1
    buffer[at] = np.uint8(value)
    return at + 1
