"""The n-grams of a text and their counts, as a trie in flat arrays.

Nodes are numbered level by level, and within a level in sorted order, so the children of a node lie side by side, in
order of their words, and those of the next node follow them:

    level 1     every word of the vocabulary, seen or not: node w is the word w
    level k     the n-grams of k words; node x has the word words[x], its context is its parent
    children    of x: first[x] to first[x + 1]
    link        of x: the n-gram without its first word, one level up

A text larger than the memory it may use is sorted in pieces that are kept on disk and merged; the result is the same.

Legend: N order, X nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from chainrule.engines.ngram.merging import Runs
from chainrule.engines.ngram.scratch import Array, Number, Room
from chainrule.engines.ngram.windows import NOTHING, Windows, sort_windows, stream
from chainrule.errors import DataError

BYTES_A_TOKEN = 24
"""Memory that sorting takes for each token of a piece."""

MOST_NODES = 0xFFFF_FFF0
GATHER = 4096
"""Windows fetched at once."""


@dataclass
class Trie:
    """N-grams with counts. Level k has the nodes starts[k - 1] to starts[k]."""

    order: int
    eos: int
    across_lines: bool
    opening: Array  # the first N - 1 tokens of the text
    starts: Array  # int64, N + 1
    words_X: Array  # uint32
    counts_X: Array  # uint32, raw; of a word: how often it is predicted
    first_X: Array  # uint32, one for each node below level N, and one more
    links_X: Array  # uint32; of a word: 0, which means nothing

    def level(self, k: int) -> slice:
        """The nodes of level k, 1 to N."""
        return slice(int(self.starts[k - 1]), int(self.starts[k]))

    @property
    def vocab_size(self) -> int:
        return int(self.starts[1])

    @property
    def contexts(self) -> int:
        """How many nodes may have children."""
        return len(self.first_X) - 1

    def counts(self, k: int) -> Array:
        """Raw counts of the n-grams of k words."""
        return self.counts_X[self.level(k)]

    def ngrams(self, k: int) -> Array:
        """The n-grams of k words as rows of ids, sorted -> (n, k)."""
        nodes = np.arange(self.starts[k - 1], self.starts[k])
        columns = []
        for level in range(k, 0, -1):
            columns.append(self.words_X[nodes])
            if level > 1:
                nodes = np.searchsorted(self.first_X, nodes, side="right") - 1
        return np.stack(columns[::-1], 1)


def count(
    tokens: Array,
    *,
    order: int,
    eos: int,
    across_lines: bool,
    vocab_size: int,
    room: Room | None = None,
    threads: int = 1,
) -> Trie:
    """All n-grams of up to `order` words of a text."""
    room = room or Room()
    places, ending = len(tokens) + 1, -1 if across_lines else eos
    if places > MOST_NODES:
        raise DataError(f"the text has {len(tokens)} tokens, more than {MOST_NODES}; count a part of it")
    piece = max(order, min(places, places if room.memory is None else room.memory // BYTES_A_TOKEN))
    runs = None if piece >= places or room.folder is None else Runs(room.folder, order, ending)
    bounds = np.zeros(order, np.int64)
    for begin in range(0, places, piece):
        end = min(begin + piece, places)
        ids = stream(tokens, begin, end, eos, order)
        windows = sort_windows(ids, end - begin, order=order, vocab_size=vocab_size, eos=ending, threads=threads)
        bounds += _bounds(windows.shared, order)
        if runs is not None:
            runs.add(windows)
    blocks = [windows] if runs is None else runs.merged()
    trie = _build(blocks, bounds, order, eos, across_lines, vocab_size, room)
    del windows, blocks  # as large as the text
    trie.opening = np.asarray(tokens[: order - 1])
    trie.counts_X[:vocab_size] = _word_counts(tokens, vocab_size)
    _link(trie, room, threads)
    return trie


@njit(cache=True, nogil=True)
def _bounds(shared: Array, order: int) -> Array:
    """At most how many n-grams of each order the windows hold: those that differ from the window before."""
    bounds = np.zeros(256, np.int64)
    for slot in range(len(shared)):
        bounds[shared[slot]] += 1
    return np.cumsum(bounds)[:order]


def _word_counts(tokens: Array, vocab_size: int, step: int = 1 << 22) -> Array:
    counts_V = np.zeros(vocab_size, np.int64)
    for begin in range(0, len(tokens), step):
        counts_V += np.bincount(tokens[begin : begin + step], minlength=vocab_size)
    return counts_V


def _build(
    blocks: Iterable[Windows],
    bounds: Array,
    order: int,
    eos: int,
    across_lines: bool,
    vocab_size: int,
    room: Room,
) -> Trie:
    """Read the nodes off sorted windows; first each level in a place of its own that is surely large enough."""
    bounds[0] = vocab_size
    offsets = np.concatenate([[0], np.cumsum(bounds)])
    words_X, counts_X = room.empty(int(offsets[-1]), np.uint32), room.empty(int(offsets[-1]), np.uint32)
    first_X = room.empty(int(offsets[-2]) + 1, np.uint32)
    state = _State(np.zeros(order + 1, np.int64), np.full(order, -1, np.int64), np.zeros(1, np.int64))
    ending = -1 if across_lines else eos
    for block in blocks:
        _read_off(*block, ending, offsets, words_X, counts_X, first_X, *state)
    _finish(vocab_size, offsets, counts_X, first_X, *state)
    sizes = np.concatenate([[vocab_size], state.sizes[1:order]])
    starts = np.concatenate([[0], np.cumsum(sizes)])
    if starts[-1] > MOST_NODES:
        raise DataError(f"the text has {starts[-1]} n-grams, more than {MOST_NODES}; choose a lower order")
    for k in range(order):  # close the ranks
        source, target = slice(offsets[k], offsets[k] + sizes[k]), slice(starts[k], starts[k + 1])
        words_X[target], counts_X[target] = words_X[source], counts_X[source]
        if k + 1 < order:
            first_X[target] = first_X[source] + np.uint32(starts[k + 1])
    contexts = starts[-2]
    first_X[contexts] = starts[-1]
    words_X[:vocab_size] = np.arange(vocab_size)
    links_X = room.empty(int(starts[-1]), np.uint32)
    return Trie(
        order,
        eos,
        across_lines,
        np.empty(0, np.uint32),
        starts,
        words_X[: starts[-1]],
        counts_X[: starts[-1]],
        first_X[: contexts + 1],
        links_X,
    )


class _State(NamedTuple):
    """Where reading off stands, from one block to the next."""

    sizes: Array  # nodes of each level so far; of level 1: the last word, and one
    begun: Array  # windows seen before the open node of each level; -1: none is open
    total: Array  # windows seen


@njit(cache=True, nogil=True)
def _read_off(
    ids: Array,
    places: Array,
    shared: Array,
    weights: Array,
    eos: int,
    offsets: Array,
    words_X: Array,
    counts_X: Array,
    first_X: Array,
    sizes: Array,
    begun: Array,
    total: Array,
) -> None:
    """Append the nodes of sorted windows: one at each level below which a window differs from the one before."""
    order, seen = len(begun), total[0]
    windows, new = np.empty((GATHER, order), np.uint32), np.empty(GATHER, np.int64)
    slot = 0
    while slot < len(places):
        # The windows that differ from the one before, fetched all at once: reads without branches overlap.
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
            seen += _between(weights, slot, new[number])
            slot = new[number]
            equal = np.int64(shared[slot])
            _close(equal, seen, offsets, counts_X, sizes, begun)
            for k in range(equal, order):
                token = windows[number, k]
                if token == NOTHING:
                    break
                if k == 0:
                    if order > 1:
                        for word in range(sizes[0], token + 1):
                            first_X[word] = sizes[1]
                    sizes[0] = token + 1
                else:
                    node = offsets[k] + sizes[k]
                    words_X[node] = token
                    if k + 1 < order:
                        first_X[node] = sizes[k + 1]
                    sizes[k] += 1
                begun[k] = seen
                if k > 0 and token == eos:
                    break
        seen += _between(weights, slot, last)
        slot = last
    total[0] = seen


@njit(cache=True, nogil=True)
def _between(weights: Array, begin: int, end: int) -> int:
    """How many windows lie between two slots."""
    return weights[begin:end].sum() if len(weights) else end - begin


@njit(cache=True, nogil=True)
def _close(equal: Number, seen: Number, offsets: Array, counts_X: Array, sizes: Array, begun: Array) -> None:
    """Nothing more comes of the open nodes above level `equal`: note their counts."""
    for k in range(equal, len(begun)):
        if begun[k] >= 0:
            counts_X[offsets[k] + sizes[k] - 1] = seen - begun[k]
            begun[k] = -1


@njit(cache=True, nogil=True)
def _finish(
    vocab_size: int, offsets: Array, counts_X: Array, first_X: Array, sizes: Array, begun: Array, total: Array
) -> None:
    """Close what is open, and give the words that never came no children."""
    _close(0, total[0], offsets, counts_X, sizes, begun)
    if len(begun) > 1:
        for word in range(sizes[0], vocab_size):
            first_X[word] = sizes[1]


def _link(trie: Trie, room: Room, threads: int) -> None:
    """Find every n-gram without its first word."""
    trie.links_X[: trie.vocab_size] = 0
    if trie.order > 1:
        trie.links_X[trie.level(2)] = trie.words_X[trie.level(2)]
    for k in range(3, trie.order + 1):
        room.rest()
        share_out(trie.level(k - 1), threads, _link_children, trie.words_X, trie.first_X, trie.links_X)


def share_out(nodes: slice, threads: int, kernel: Callable[..., None], *arguments: Any) -> None:
    """kernel(begin, end, *arguments) for all of the nodes, in parts that threads take one after the other."""
    cuts = np.linspace(nodes.start, nodes.stop, (8 * threads if nodes.stop - nodes.start > 10_000 else 1) + 1)
    with ThreadPoolExecutor(threads) as pool:
        for job in [pool.submit(kernel, int(begin), int(end), *arguments) for begin, end in pairwise(cuts)]:
            job.result()


@njit(cache=True, nogil=True)
def _link_children(begin: int, end: int, words_X: Array, first_X: Array, links_X: Array) -> None:
    """Link the children of some parents. They are found among the children of the parent's link, in the same order."""
    for parent in range(begin, end):
        link = links_X[parent]
        low, high = np.int64(first_X[link]), np.int64(first_X[link + 1])
        for child in range(first_X[parent], first_X[parent + 1]):
            low = find(words_X, words_X[child], low, high)
            links_X[child] = low
            low += 1


@njit(cache=True, nogil=True)
def find(words_X: Array, word: Number, low: Number, high: Number) -> Number:
    """The place of a word among sorted words[low:high], -1 if it is not there. Near the front it is found at once."""
    step = 1
    while low + step < high and words_X[low + step] <= word:
        low += step
        step *= 2
    high = min(high, low + step)
    while high - low > 1:
        middle = (low + high) >> 1
        if words_X[middle] <= word:
            low = middle
        else:
            high = middle
    return low if low < high and words_X[low] == word else -1
