"""The n-grams of a text and their counts, as a trie in flat arrays.

Nodes are numbered level by level, and within a level in sorted order. The children of a node are therefore adjacent,
sorted by word, and followed by the children of the next node:

    level 1     every word of the vocabulary, seen or not: node w is the word w
    level k     the n-grams of k words; the last word of node j is words[j], its context is its parent
    children    of j: first[j] to first[j + 1]
    link        of j: the n-gram without its first word, one level up

A text that exceeds the memory limit is sorted in parts, which are stored on disk and merged; the result is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from chainrule.base.arrays import Array
from chainrule.base.parallel import compute_ahead
from chainrule.engines.ngram.merging import MAX_RUNS, merge_runs, runs_within
from chainrule.engines.ngram.scratch import ArrayPool, Number, pieces
from chainrule.engines.ngram.segments import (
    BYTES_PER_TOKEN,
    Counts,
    Shape,
    blocks_of,
    count_segment,
    join,
    merge_counts,
)
from chainrule.engines.ngram.windows import NOTHING, Windows, sort_windows, stream
from chainrule.errors import DataError

MAX_NODES = 0xFFFF_FFF0
GATHER = 4096
"""Windows fetched at once."""


@dataclass
class Trie:
    """N-grams with counts. Level k has the nodes starts[k - 1] to starts[k]."""

    order: int
    eos: int
    across_lines: bool
    opening: Array  # the first order - 1 tokens of the text
    starts: Array  # int64, O + 1
    words_J: Array  # uint32
    counts_J: Array  # uint32, or int64 beyond 2³² tokens; raw; of a word: how often it is predicted
    first_Y: Array  # uint32, Y + 1: one for each node below the highest level, and the end
    links_J: Array  # uint32; of words always 0, unused

    def level(self, k: int) -> slice:
        """The nodes of level k, from 1 to the order."""
        return slice(int(self.starts[k - 1]), int(self.starts[k]))

    @property
    def vocab_size(self) -> int:
        return int(self.starts[1])

    @property
    def contexts(self) -> int:
        """The number of nodes that can have children."""
        return len(self.first_Y) - 1

    def counts(self, k: int) -> Array:
        """Raw counts of the n-grams of k words."""
        return self.counts_J[self.level(k)]

    def ngrams(self, k: int) -> Array:
        """The n-grams of k words as sorted rows of k ids."""
        nodes = np.arange(self.starts[k - 1], self.starts[k])
        columns = []
        for level in range(k, 0, -1):
            columns.append(self.words_J[nodes])
            if level > 1:
                nodes = np.searchsorted(self.first_Y, nodes, side="right") - 1
        return np.stack(columns[::-1], 1)


def count(
    tokens: Array,
    *,
    order: int,
    eos: int,
    across_lines: bool,
    vocab_size: int,
    pool: ArrayPool | None = None,
    threads: int = 1,
) -> Trie:
    """All n-grams of up to `order` words of a text."""
    pool, shape = pool or ArrayPool(), Shape(order, eos, across_lines, vocab_size)
    places = len(tokens) + 1
    part = places if pool.memory is None else pool.memory // BYTES_PER_TOKEN
    if part < places and pool.folder is not None:
        counts = count_segment(blocks_of(tokens), shape, pool.new_path, part=part, threads=threads)
        whole = join([counts], shape, pool.new_path(), finish=True)
        return build_trie(whole, pool, pool.new_path(), threads, temporary=True)
    if places > MAX_NODES:
        raise DataError(f"the text has {len(tokens)} tokens, more than the limit of {MAX_NODES}; give --memory")
    ids = stream(tokens, 0, places, eos, order)
    windows = sort_windows(ids, places, order=order, vocab_size=vocab_size, eos=shape.ending, threads=threads)
    trie = _build([windows], _bounds(windows.shared, order), places, shape, pool)
    del windows  # as large as the text
    trie.opening = np.asarray(tokens[: order - 1])
    _link(trie, pool, threads)
    return trie


def build_trie(counts: Counts, pool: ArrayPool, scratch: Path, threads: int = 1, *, temporary: bool = False) -> Trie:
    """The n-grams of a whole text from its sorted windows; several runs are first merged into the file `scratch`.

    `temporary`: the files of the counts may be deleted.
    """
    # Of several runs only an upper bound of the sizes is known: in memory, what is not written costs nothing.
    if len(counts.runs) > (2 if pool.folder is not None else MAX_RUNS):
        several, counts = counts, merge_counts(counts, scratch, runs_within(pool.memory))
        if temporary:
            _delete_runs(several)
        temporary = True
    shape = counts.shape
    bounds = np.array([run.sizes for run in counts.runs], np.int64).sum(axis=0)
    merged = merge_runs(counts.runs, shape.order, shape.vocab_size)
    blocks = compute_ahead(merged) if threads > 1 else merged
    trie = _build(blocks, bounds, sum(run.windows for run in counts.runs), shape, pool)
    if temporary:
        _delete_runs(counts)
    trie.opening = np.array(counts.segment.opening, np.uint32)
    _link(trie, pool, threads)
    return trie


def _delete_runs(counts: Counts) -> None:
    for run in counts.runs:
        run.path.unlink()


@njit(cache=True, nogil=True)
def _bounds(shared: Array, order: int) -> Array:
    """Upper bounds of the number of n-grams of each order: the windows that differ from the previous one."""
    bounds = np.zeros(256, np.int64)
    for slot in range(len(shared)):
        bounds[shared[slot]] += 1
    return np.cumsum(bounds)[:order]


def _build(blocks: Iterable[Windows], bounds: Array, total: int, shape: Shape, pool: ArrayPool) -> Trie:
    """Build the nodes from sorted windows: first each level in a range of its upper bound, then without the gaps.

    `total` is the number of windows, which no count exceeds.
    """
    order, vocab_size = shape.order, shape.vocab_size
    bounds[0] = vocab_size
    offsets = np.concatenate([[0], np.cumsum(bounds)])
    words_J = pool.empty(int(offsets[-1]), np.uint32)
    counts_J = pool.empty(int(offsets[-1]), np.uint32 if total < 1 << 32 else np.int64)
    counts_J[:vocab_size] = 0
    first_Y = pool.empty(int(offsets[-2]) + 1, np.uint32)
    state = _BuildState(np.zeros(order + 1, np.int64), np.full(order, -1, np.int64), np.zeros(1, np.int64))
    for block in blocks:
        if not _append_nodes(*block, shape.ending, offsets, words_J, counts_J, first_Y, *state):
            raise DataError("the counts have more n-grams than they state; count their shards again")
    _finish(vocab_size, offsets, counts_J, first_Y, *state)
    counts_J[shape.eos] -= 1  # the eos before the text is not predicted
    sizes = np.concatenate([[vocab_size], state.sizes[1:order]])
    starts = np.concatenate([[0], np.cumsum(sizes)])
    if starts[-1] > MAX_NODES:
        raise DataError(f"the text has {starts[-1]} n-grams, more than the limit of {MAX_NODES}; choose a lower order")
    for k in range(order):
        _move_down(words_J, offsets[k], starts[k], sizes[k])
        _move_down(counts_J, offsets[k], starts[k], sizes[k])
        if k + 1 < order:
            _move_down(first_Y, offsets[k], starts[k], sizes[k], int(starts[k + 1]))
    first_Y[starts[-2]] = starts[-1]
    words_J[:vocab_size] = np.arange(vocab_size, dtype=np.uint32)
    return Trie(
        order,
        shape.eos,
        shape.across_lines,
        np.empty(0, np.uint32),
        starts,
        words_J[: starts[-1]],
        counts_J[: starts[-1]],
        first_Y[: starts[-2] + 1],
        pool.empty(int(starts[-1]), np.uint32),
    )


def _move_down(array: Array, source: int, target: int, size: int, added: int = 0) -> None:
    """Move a range of an array to a lower place, and add a number; a piece at a time, since the two may overlap."""
    for piece in pieces(size):
        values = array[source + piece.start : source + piece.stop] + array.dtype.type(added)
        array[target + piece.start : target + piece.stop] = values


class _BuildState(NamedTuple):
    """The state of building, carried from block to block."""

    sizes: Array  # nodes of each level so far; of level 1: the last word + 1
    opened: Array  # number of windows before the open node of each level; -1: no node is open
    total: Array  # number of windows so far


@njit(cache=True, nogil=True)
def _append_nodes(
    ids: Array,
    places: Array,
    shared: Array,
    counts: Array,
    eos: int,
    offsets: Array,
    words_J: Array,
    counts_J: Array,
    first_Y: Array,
    sizes: Array,
    opened: Array,
    total: Array,
) -> bool:
    """Append the nodes of sorted windows: one at each level from the first word that differs from the previous window.

    The last three arguments are the fields of a `_BuildState`. -> False if a level has more nodes than its bound.
    """
    order, seen = len(opened), total[0]
    windows, new = np.empty((GATHER, order), np.uint32), np.empty(GATHER, np.int64)
    slot = 0
    while slot < len(places):
        # The windows that differ from the previous one are fetched together: reads without branches overlap.
        used, last = 0, slot
        while last < len(places) and used < GATHER:
            new[used] = last
            used += shared[last] < order
            last += 1
        for number in range(used):
            place = np.int64(places[new[number]])
            for k in range(order):
                windows[number, k] = ids[place + k]
        for number in range(used):
            seen += _occurrences(counts, slot, new[number])
            slot = new[number]
            equal = np.int64(shared[slot])
            _close(equal, seen, offsets, counts_J, sizes, opened)
            for k in range(equal, order):
                token = windows[number, k]
                if token == NOTHING:
                    break
                if k == 0:
                    if order > 1:
                        for word in range(sizes[0], token + 1):
                            first_Y[word] = sizes[1]
                    sizes[0] = token + 1
                else:
                    node = offsets[k] + sizes[k]
                    if node >= offsets[k + 1]:
                        return False
                    words_J[node] = token
                    if k + 1 < order:
                        first_Y[node] = sizes[k + 1]
                    sizes[k] += 1
                opened[k] = seen
                if k > 0 and token == eos:
                    break
        seen += _occurrences(counts, slot, last)
        slot = last
    total[0] = seen
    return True


@njit(cache=True, nogil=True)
def _occurrences(counts: Array, begin: int, end: int) -> int:
    """The number of windows in a range of slots."""
    return counts[begin:end].sum() if len(counts) else end - begin


@njit(cache=True, nogil=True)
def _close(equal: Number, seen: Number, offsets: Array, counts_J: Array, sizes: Array, opened: Array) -> None:
    """Close the open nodes above level `equal` and store their counts."""
    for k in range(equal, len(opened)):
        if opened[k] >= 0:
            counts_J[offsets[k] + sizes[k] - 1] = seen - opened[k]
            opened[k] = -1


@njit(cache=True, nogil=True)
def _finish(
    vocab_size: int, offsets: Array, counts_J: Array, first_Y: Array, sizes: Array, opened: Array, total: Array
) -> None:
    """Close all open nodes, and give the words after the last one no children."""
    _close(0, total[0], offsets, counts_J, sizes, opened)
    if len(opened) > 1:
        for word in range(sizes[0], vocab_size):
            first_Y[word] = sizes[1]


def _link(trie: Trie, pool: ArrayPool, threads: int) -> None:
    """Find the link of every n-gram: the n-gram without its first word."""
    trie.links_J[: trie.vocab_size] = 0
    if trie.order > 1:
        trie.links_J[trie.level(2)] = trie.words_J[trie.level(2)]
    for k in range(3, trie.order + 1):
        pool.release()
        run_in_parts(trie.level(k - 1), threads, _link_children, trie.words_J, trie.first_Y, trie.links_J)


def run_in_parts(nodes: slice, threads: int, kernel: Callable[..., None], *arguments: Any) -> None:
    """Call kernel(begin, end, *arguments) for parts that cover the nodes, on several threads."""
    cuts = np.linspace(nodes.start, nodes.stop, (8 * threads if nodes.stop - nodes.start > 10_000 else 1) + 1)
    with ThreadPoolExecutor(threads) as executor:
        for job in [executor.submit(kernel, int(begin), int(end), *arguments) for begin, end in pairwise(cuts)]:
            job.result()


@njit(cache=True, nogil=True)
def _link_children(begin: int, end: int, words_J: Array, first_Y: Array, links_J: Array) -> None:
    """Link the children of a range of parents: they are among the children of the parent's link, in the same order."""
    for parent in range(begin, end):
        link = links_J[parent]
        low, high = np.int64(first_Y[link]), np.int64(first_Y[link + 1])
        for child in range(first_Y[parent], first_Y[parent + 1]):
            low = find(words_J, words_J[child], low, high)
            links_J[child] = low
            low += 1


@njit(cache=True, nogil=True)
def find(words_J: Array, word: Number, low: Number, high: Number) -> Number:
    """The position of a word in the sorted words_J[low:high], -1 if it is missing; words near the front are fastest."""
    step = 1
    while low + step < high and words_J[low + step] <= word:
        low += step
        step *= 2
    high = min(high, low + step)
    while high - low > 1:
        middle = (low + high) >> 1
        if words_J[middle] <= word:
            low = middle
        else:
            high = middle
    return low if low < high and words_J[low] == word else -1
