"""Counting a text in segments: each is counted on its own, and what crosses their ends is added when they are joined.

A window starts at `eos` before the text and at every token. A segment counts the windows that it holds whole:

    by line       a window ends with its line. A line begins with the `eos` before it, so every segment starts with one.
                  Whole lines are counted in whichever segment they are; only a last line without its end stays open
    across lines  a window has n tokens. Those that start at the last n - 1 tokens of a segment end in the next one

The open windows follow from a few tokens: the last n - 1 before the end (`closing`) and, across lines, the first n - 1
(`opening`). Joining is associative, so segments may be joined in groups. By line it does not depend on their order.
Between two segments of which the first does not end with a line, an `eos` is added, as a text file is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from chainrule.base.arrays import Array
from chainrule.engines.ngram.merging import MAX_RUNS, merge_into
from chainrule.engines.ngram.sorted_runs import BLOCK, RunWriter, SortedRun
from chainrule.engines.ngram.windows import NOTHING, sort_windows

BYTES_PER_TOKEN = 24
"""Memory that sorting takes per token of a part."""

Row = tuple[int, ...]


@dataclass(frozen=True)
class Shape:
    """What all segments of one text share."""

    order: int
    eos: int
    across_lines: bool
    vocab_size: int

    @property
    def ending(self) -> int:
        """The id that ends a window; -1: none."""
        return -1 if self.across_lines else self.eos

    @property
    def overlap(self) -> int:
        """The largest number of open windows at the end of a segment."""
        return self.order - 1


@dataclass(frozen=True)
class Segment:
    """The size and the ends of a part of a text."""

    tokens: int = 0
    opening: Row = ()
    closing: Row = ()
    ends_line: bool = True


@dataclass(frozen=True)
class Counts:
    """The windows of a segment as sorted runs, and its ends."""

    shape: Shape
    segment: Segment
    runs: tuple[SortedRun, ...]


# Counting


def count_segment(
    blocks: Iterable[Array], shape: Shape, new_path: Callable[[], Path], *, part: int, threads: int = 1
) -> Counts:
    """Count tokens that come in blocks; at most about `part` of them are sorted at once, one run each."""
    counter = _SegmentCounter(shape, new_path, max(part, shape.order), threads)
    for block in blocks:
        counter.add(block)
    return counter.finish()


def blocks_of(tokens: Array, size: int = 1 << 20) -> Iterator[Array]:
    """An array of tokens, which may be mapped, in blocks."""
    for begin in range(0, len(tokens), size):
        yield tokens[begin : begin + size]


class _SegmentCounter:
    """Collects tokens in a buffer and sorts it whenever it is full."""

    def __init__(self, shape: Shape, new_path: Callable[[], Path], part: int, threads: int) -> None:
        self._shape, self._new_path, self._threads = shape, new_path, threads
        self._ids = np.empty(part + 2 * shape.order, np.uint32)
        self._kept = max(1, shape.overlap)  # the last token stays: a line may end with it
        self._full = part + self._kept
        self._used = 0
        self._tokens, self._opening = 0, np.empty(0, np.uint32)
        self._runs: list[SortedRun] = []
        if not shape.across_lines:
            self._ids[0], self._used = shape.eos, 1

    def add(self, block: Array) -> None:
        """Append tokens."""
        self._tokens += len(block)
        if (missing := self._shape.overlap - len(self._opening)) > 0:
            self._opening = np.concatenate([self._opening, block[:missing]])
        begin = 0
        while begin < len(block):
            taken = min(len(block) - begin, self._full - self._used)
            self._ids[self._used : self._used + taken] = block[begin : begin + taken]
            self._used, begin = self._used + taken, begin + taken
            if self._used == self._full:
                self._sort(self._used - self._kept)

    def finish(self) -> Counts:
        """Sort the rest."""
        shape, known = self._shape, self._ids[: self._used]
        complete = max(0, self._used - shape.overlap)
        if not shape.across_lines:
            ends = np.flatnonzero(known == shape.eos)
            last = int(ends[-1]) if len(ends) else -1
            complete = last if last == self._used - 1 else max(complete, last)
        closing = tuple(known[complete:].tolist())
        ends_line = bool(known[-1] == shape.eos) if len(known) else True
        if ends_line and not shape.across_lines:
            closing = ()
        self._ids[self._used : self._used + shape.order] = NOTHING
        self._sort(complete)
        opening = tuple(self._opening.tolist()) if shape.across_lines else ()
        return Counts(shape, Segment(self._tokens, opening, closing, ends_line), tuple(self._runs))

    def _sort(self, places: int) -> None:
        """Write the windows at the first places as a run, and keep the tokens after them."""
        shape = self._shape
        if places > 0:
            windows = sort_windows(
                self._ids,
                places,
                order=shape.order,
                vocab_size=shape.vocab_size,
                eos=shape.ending,
                threads=self._threads,
            )
            writer = RunWriter(self._new_path(), shape.order)
            writer.add(windows, shape.ending)
            self._runs.append(writer.close())
        rest = self._used - places
        self._ids[:rest] = self._ids[places : self._used].copy()
        self._used = rest


# Joining


class Joints:
    """Joins segments in the order of the text and collects the windows that cross their ends."""

    def __init__(self, shape: Shape) -> None:
        self.shape, self.segment = shape, Segment()
        self.windows: list[Row] = []

    def append(self, other: Segment) -> None:
        """Join the next segment."""
        if self.segment.tokens and not self.segment.ends_line:
            self._end_line()
        if self.shape.across_lines:
            self._extend(other)
        else:
            mine = self.segment
            self.segment = Segment(mine.tokens + other.tokens, (), other.closing, other.ends_line)

    def finish(self) -> None:
        """Add the windows at both ends of the text."""
        closing, ends_line = self.segment.closing, self.segment.ends_line
        if self.shape.across_lines:
            self.windows.append((self.shape.eos, *self.segment.opening)[: self.shape.order])
        elif ends_line:
            self.windows.append((self.shape.eos,))  # the last one
        self.windows.extend(closing[place:] for place in range(len(closing)))

    def _end_line(self) -> None:
        """Append eos."""
        eos, mine = (self.shape.eos,), self.segment
        if self.shape.across_lines:
            ends = eos[: self.shape.overlap]
            self._extend(Segment(1, ends, ends))
            if not ends:
                self.windows.append(eos)
            return
        self.windows.extend(mine.closing[place:] + eos for place in range(len(mine.closing)))
        self.segment = Segment(mine.tokens + 1)

    def _extend(self, other: Segment) -> None:
        """Join a segment across lines: a window is added once it has all of its tokens."""
        mine, overlap = self.segment, self.shape.overlap
        around = mine.closing + other.opening
        for place in range(len(mine.closing)):
            if len(mine.closing) - place - 1 + other.tokens >= overlap:
                self.windows.append(around[place : place + self.shape.order])
        last = mine.closing + other.closing
        self.segment = Segment(
            mine.tokens + other.tokens,
            (mine.opening + other.opening)[:overlap],
            last[max(0, len(last) - overlap) :],
            other.ends_line,
        )


def join(parts: Iterable[Counts], shape: Shape, path: Path, *, finish: bool = False) -> Counts:
    """The counts of all parts: their runs, and one at `path` with the windows across their ends.

    `finish`: the parts are a whole text, whose first and last windows are added.
    """
    joints = Joints(shape)
    runs: list[SortedRun] = []
    for part in parts:
        joints.append(part.segment)
        runs.extend(part.runs)
    if finish:
        joints.finish()
    if joints.windows:
        runs.append(_write_rows(joints.windows, shape, path))
    return Counts(shape, joints.segment, tuple(runs))


def merge_counts(counts: Counts, path: Path, at_once: int = MAX_RUNS) -> Counts:
    """The same counts as a single run at `path`, unless they are one already; at most `at_once` are merged at once."""
    if len(counts.runs) < 2:
        return counts
    run = merge_into(path, counts.runs, counts.shape.order, counts.shape.vocab_size, at_once)
    return Counts(counts.shape, counts.segment, (run,))


def _write_rows(windows: list[Row], shape: Shape, path: Path) -> SortedRun:
    """Sort a few windows and write them as a run."""
    rows = np.full((len(windows), shape.order), NOTHING, np.uint32)
    for number, window in enumerate(windows):
        ended = next((k + 1 for k, token in enumerate(window) if k and token == shape.ending), len(window))
        rows[number, :ended] = window[:ended]
    keys = (rows + np.uint32(1)).T[::-1]  # NOTHING sorts first
    rows = rows[np.lexsort(keys)]
    distinct = np.flatnonzero(np.append(True, (rows[1:] != rows[:-1]).any(1)))
    counts = np.diff(np.append(distinct, len(rows)))
    writer = RunWriter(path, shape.order)
    for begin in range(0, len(distinct), BLOCK):
        writer.add_rows(rows[distinct[begin : begin + BLOCK]], counts[begin : begin + BLOCK])
    return writer.close()
