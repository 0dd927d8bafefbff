"""word2vec over a whole text: the text is divided into chunks, from which threads learn one after the other.

A chunk is about 10,000 tokens, learned at one learning rate. It ends at the end of a line, and its random draws depend
on the seed and its number alone; with one thread the vectors are therefore reproducible. Several threads each take the
next chunk and update the same vectors without locks (Recht et al. 2011).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import NamedTuple

import numpy as np

from chainrule.base.arrays import Array
from chainrule.base.huffman import TreePaths, huffman_paths
from chainrule.engines.word2vec.kernels import (
    SENTENCE_END,
    UNKNOWN,
    LookupTables,
    SweepOptions,
    Word2VecWeights,
    make_sweep,
)
from chainrule.engines.word2vec.sampling import alias_table, keep_limits, sigmoid_table, softplus_table

CHUNK = 10_000
"""Tokens of a chunk; its end moves by at most this many to the end of a line."""

MULTIPLE = 8
"""Rows are padded to a multiple of this, the numbers of a vector instruction."""

ALIGNMENT = 64
BITS = (1 << 64) - 1


class SweepPlan(NamedTuple):
    """The settings of a training."""

    options: SweepOptions
    sample: float  # subsampling threshold: words of a larger relative frequency are dropped at random
    exponent: float  # of the counts, in the distribution of negative words
    seed: int


class WordList(NamedTuple):
    """The words to learn, a subset of the ids of a tokeniser."""

    ids_V: Array  # of each word
    counts_V: Array
    size: int  # number of ids, I
    eos: int


class SweepTotals(NamedTuple):
    """Sums over some chunks."""

    words: int = 0  # read, including unknown ones
    predictions: int = 0
    measured: int = 0  # predictions whose loss was measured
    loss: float = 0.0  # the sum of these losses, in nats

    def __add__(self, other: tuple[float, ...]) -> SweepTotals:  # type: ignore[override]
        words, predictions, measured, loss = (a + b for a, b in zip(self, other, strict=True))
        return SweepTotals(int(words), int(predictions), int(measured), loss)


def make_tables(plan: SweepPlan, words: WordList) -> LookupTables:
    """The lookup tables of a training."""
    words_I = np.full(words.size, UNKNOWN, np.int32)
    words_I[words.ids_V] = np.arange(len(words.ids_V))
    words_I[words.eos] = SENTENCE_END
    counts_V = words.counts_V
    no_paths = TreePaths(np.zeros(1, np.int64), np.empty(0, np.int32), np.empty(0, np.float32))
    return LookupTables(
        words_I,
        keep_limits(counts_V, plan.sample),
        alias_table(counts_V**plan.exponent) if plan.options.negatives else np.zeros(1, np.uint64),
        sigmoid_table(),
        softplus_table(),
        *(huffman_paths(counts_V) if plan.options.hierarchical else no_paths),
    )


def initial_weights(plan: SweepPlan, words: int, width: int) -> Word2VecWeights:
    """Small random inputs, zeros elsewhere. Rows are padded with zeros, which no step changes."""
    padded = -(-width // MULTIPLE) * MULTIPLE
    inputs_VD = aligned_zeros(words, padded)
    rng = np.random.default_rng(plan.seed)
    for row_D in inputs_VD:  # row by row: a second matrix would double the peak memory
        row_D[:width] = (rng.random(width, np.float32) - 0.5) / width
    outputs_VD = aligned_zeros(words if plan.options.negatives else 0, padded)
    return Word2VecWeights(inputs_VD, outputs_VD, aligned_zeros(words if plan.options.hierarchical else 0, padded))


def aligned_zeros(rows: int, width: int) -> Array:
    """A float32 matrix of zeros that begins at a cache line."""
    spare = ALIGNMENT // 4
    flat = np.zeros(rows * width + spare, np.float32)
    first = -flat.ctypes.data % ALIGNMENT // 4
    return flat[first : first + rows * width].reshape(rows, width)


class Sweeper:
    """Learns from the chunks of a text. Their numbers continue from epoch to epoch."""

    def __init__(
        self, plan: SweepPlan, tokens_N: Array, words: WordList, tables: LookupTables, weights: Word2VecWeights
    ) -> None:
        self.plan, self.tokens_N, self.eos = plan, tokens_N, words.eos
        self.tables, self.weights = tables, weights
        self.chunks = max(1, -(-len(tokens_N) // CHUNK))  # per epoch
        options = plan.options
        width = weights.inputs_VD.shape[1]
        self._kernel = make_sweep(width, options.skip_gram, options.hierarchical, options.negatives > 0)

    def chunk(self, number: int) -> Array:
        """The tokens of a chunk."""
        number %= self.chunks
        return self.tokens_N[self._start(number) : self._start(number + 1)]

    def _start(self, number: int) -> int:
        """Where a chunk begins: after the next end of a line, or at its nominal start if there is none nearby."""
        place = number * CHUNK
        if number == 0 or place >= len(self.tokens_N):
            return min(place, len(self.tokens_N))
        ends = np.flatnonzero(self.tokens_N[place - 1 : place - 1 + CHUNK] == self.eos)
        return place + int(ends[0]) if len(ends) else place

    def warm_up(self) -> None:
        """Compile the loops, which takes seconds if they are not cached."""
        self._learn(self.tokens_N[:0], 0, 0.0)

    def learn(self, number: int, rate: float) -> SweepTotals:
        """Learn from one chunk."""
        return self._learn(self.chunk(number), number, rate)

    def _learn(self, tokens_N: Array, number: int, rate: float) -> SweepTotals:
        totals, seed = np.zeros(4), chunk_seed(self.plan.seed, number)
        tokens_N = tokens_N.astype(np.int32)  # the loops are compiled for one type of tokens
        self._kernel(tokens_N, self.tables, self.weights, self.plan.options, np.float32(rate), seed, totals)
        return SweepTotals() + tuple(totals.tolist())

    def sweep(
        self, first: int, end: int, rate: Callable[[int], float], threads: int, proceed: Callable[[], bool]
    ) -> tuple[int, SweepTotals]:
        """Learn from chunks `first` to `end`, each at its own rate, while `proceed()` -> the next chunk, and totals."""
        numbers, lock, shares = count(first), threading.Lock(), [SweepTotals()] * threads
        reached = first

        def work(thread: int) -> None:
            nonlocal reached
            while proceed():
                with lock:
                    if (number := next(numbers)) >= end:
                        return
                    reached = number + 1
                shares[thread] += self.learn(number, rate(number))

        if threads == 1:
            work(0)
        else:
            with ThreadPoolExecutor(threads) as executor:
                list(executor.map(work, range(threads)))
        return reached, sum(shares, SweepTotals())


def chunk_seed(seed: int, number: int) -> np.uint64:
    """The seed of the random draws of a chunk."""
    return np.uint64((seed * 0xD1342543DE82EF95 + number * 0xDA942042E4DD58B5 + 1) & BITS)
