"""word2vec over a whole text: cut into chunks, which threads learn from one after the other.

A chunk is as much text as one learning rate is for, about 10,000 words. It ends where a line ends, and its draws follow
from the seed and its number alone, so that with one thread the vectors follow from the seed; several threads take the
next chunk each and change the same vectors without locks (Recht et al. 2011).

Legend: V words, D width, I ids of the tokeniser.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import NamedTuple

import numpy as np

from chainrule.base.huffman import Paths, paths
from chainrule.engines.word2vec.kernels import END, LEFT_OUT, Array, Options, Tables, Weights, make_sweep
from chainrule.engines.word2vec.sampling import alias_table, keep_limits, sigmoid_table, softplus_table

CHUNK = 10_000
"""Tokens of a chunk, and at most how far its ends are moved to where a line ends."""

MULTIPLE = 8
"""Numbers of a row that are computed at once: rows are filled up to that."""

ALIGNED = 64
BITS = (1 << 64) - 1


class Plan(NamedTuple):
    """What is learned, and how."""

    options: Options
    sample: float  # share of the text above which words are left out at random
    exponent: float  # of the counts, for the chance of being a negative word
    seed: int


class Vocabulary(NamedTuple):
    """The words among the ids of a tokeniser."""

    ids_V: Array  # of each word
    counts_V: Array
    size: int  # I
    eos: int


class Totals(NamedTuple):
    """What some chunks came to."""

    words: int = 0  # read, unknown ones too
    predictions: int = 0
    measured: int = 0  # predictions whose loss was added up
    loss: float = 0.0  # that sum, in nats

    def __add__(self, other: tuple[float, ...]) -> Totals:  # type: ignore[override]
        words, predictions, measured, loss = (a + b for a, b in zip(self, other, strict=True))
        return Totals(int(words), int(predictions), int(measured), loss)


def make_tables(plan: Plan, vocabulary: Vocabulary) -> Tables:
    """Everything that is looked up."""
    words_I = np.full(vocabulary.size, LEFT_OUT, np.int32)
    words_I[vocabulary.ids_V] = np.arange(len(vocabulary.ids_V))
    words_I[vocabulary.eos] = END
    counts_V = vocabulary.counts_V
    nothing = Paths(np.zeros(1, np.int64), np.empty(0, np.int32), np.empty(0, np.float32))
    return Tables(
        words_I,
        keep_limits(counts_V, plan.sample),
        alias_table(counts_V**plan.exponent) if plan.options.negatives else np.zeros(1, np.uint64),
        sigmoid_table(),
        softplus_table(),
        *(paths(counts_V) if plan.options.hierarchical else nothing),
    )


def first_weights(plan: Plan, words: int, width: int) -> Weights:
    """Small random inputs, and zeros for the rest; rows are filled up with zeros, which no step changes."""
    whole = -(-width // MULTIPLE) * MULTIPLE
    inputs_VD = aligned_zeros(words, whole)
    rng = np.random.default_rng(plan.seed)
    for row_D in inputs_VD:  # row by row: a whole second matrix would be the most memory of all
        row_D[:width] = (rng.random(width, np.float32) - 0.5) / width
    outputs_VD = aligned_zeros(words if plan.options.negatives else 0, whole)
    return Weights(inputs_VD, outputs_VD, aligned_zeros(words if plan.options.hierarchical else 0, whole))


def aligned_zeros(rows: int, width: int) -> Array:
    """A matrix of zeros, float32, that begins where a line of the cache does."""
    spare = ALIGNED // 4
    flat = np.zeros(rows * width + spare, np.float32)
    first = -flat.ctypes.data % ALIGNED // 4
    return flat[first : first + rows * width].reshape(rows, width)


class Sweeper:
    """Learns from the chunks of a text, which are numbered on from epoch to epoch."""

    def __init__(self, plan: Plan, tokens_T: Array, vocabulary: Vocabulary, tables: Tables, weights: Weights) -> None:
        self.plan, self.tokens_T, self.eos = plan, tokens_T, vocabulary.eos
        self.tables, self.weights = tables, weights
        self.chunks = max(1, -(-len(tokens_T) // CHUNK))  # of an epoch
        chosen = plan.options
        width = weights.inputs_VD.shape[1]
        self._kernel = make_sweep(width, chosen.skip_gram, chosen.hierarchical, chosen.negatives > 0)

    def chunk(self, number: int) -> Array:
        """The tokens of a chunk."""
        number %= self.chunks
        return self.tokens_T[self._cut(number) : self._cut(number + 1)]

    def _cut(self, number: int) -> int:
        """Where a chunk begins: after the next line end, or right there if none is near."""
        place = number * CHUNK
        if number == 0 or place >= len(self.tokens_T):
            return min(place, len(self.tokens_T))
        ends = np.flatnonzero(self.tokens_T[place - 1 : place - 1 + CHUNK] == self.eos)
        return place + int(ends[0]) if len(ends) else place

    def warm_up(self) -> None:
        """Have the loops compiled, which takes seconds where nobody used them before."""
        self._learn(self.tokens_T[:0], 0, 0.0)

    def learn(self, number: int, rate: float) -> Totals:
        """Learn from one chunk."""
        return self._learn(self.chunk(number), number, rate)

    def _learn(self, tokens_T: Array, number: int, rate: float) -> Totals:
        totals, seed = np.zeros(4), chunk_seed(self.plan.seed, number)
        tokens_T = tokens_T.astype(np.int32)  # of whatever width they are kept: loops are compiled for one
        self._kernel(tokens_T, self.tables, self.weights, self.plan.options, np.float32(rate), seed, totals)
        return Totals() + tuple(totals.tolist())

    def go(
        self, first: int, end: int, rate: Callable[[int], float], threads: int, going: Callable[[], bool]
    ) -> tuple[int, Totals]:
        """Learn from the chunks from `first` on, each at its rate, before `end` and while going -> the next, totals."""
        numbers, lock, shares = count(first), threading.Lock(), [Totals()] * threads
        reached = first

        def work(thread: int) -> None:
            nonlocal reached
            while going():
                with lock:
                    if (number := next(numbers)) >= end:
                        return
                    reached = number + 1
                shares[thread] += self.learn(number, rate(number))

        if threads == 1:
            work(0)
        else:
            with ThreadPoolExecutor(threads) as pool:
                list(pool.map(work, range(threads)))
        return reached, sum(shares, Totals())


def chunk_seed(seed: int, number: int) -> np.uint64:
    """Where the draws of a chunk begin."""
    return np.uint64((seed * 0xD1342543DE82EF95 + number * 0xDA942042E4DD58B5 + 1) & BITS)
