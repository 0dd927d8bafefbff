"""From estimates to the arrays of a table (`table.py`), a piece at a time: no step has a copy of a large array."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from chainrule.base.arrays import Array
from chainrule.engines.ngram.scratch import ArrayPool, pieces
from chainrule.engines.ngram.smoothing import Estimates
from chainrule.engines.ngram.table import BINS, GROUP, NgramTable, TableArrays
from chainrule.engines.ngram.trie import Trie

MAX_CODES = 1 << 16
LLOYD_ROUNDS = 30
"""Iterations of Lloyd's algorithm, which moves each bin to the mean of the values nearest to it."""


def make_table(
    trie: Trie, estimates: Estimates, pool: ArrayPool, *, thresholds: list[int], normalised: bool, quantize: bool
) -> NgramTable:
    """Pack probabilities and back-off weights, without the n-grams that are pruned."""
    with np.errstate(divide="ignore"):
        probs_J = np.log10(estimates.probs_J, out=estimates.probs_J)
        backoffs_Y = np.log10(estimates.backoffs_Y, out=estimates.backoffs_Y)
    starts, words_J, first_Y = trie.starts, trie.words_J, trie.first_Y
    if any(thresholds):
        keep_J = _unpruned(trie, thresholds, pool)
        starts, first_Y = _renumber(starts, first_Y, keep_J, pool)
        words_J, probs_J = pool.selected(words_J, keep_J), pool.selected(probs_J, keep_J)
        backoffs_Y = pool.selected(backoffs_Y, keep_J[: trie.contexts])
    arrays = pack(starts, words_J, first_Y, probs_J, backoffs_Y, quantize=quantize, pool=pool)
    absent = float(np.log10(estimates.absent))
    return NgramTable(arrays, trie.eos, trie.across_lines, normalised, absent)


def _unpruned(trie: Trie, thresholds: list[int], pool: ArrayPool) -> Array:
    keep_J = pool.empty(len(trie.words_J), bool)
    keep_J[: trie.vocab_size] = True
    for k in range(2, trie.order + 1):
        np.greater(trie.counts(k), thresholds[k - 1], out=keep_J[trie.level(k)])
    return keep_J


def _renumber(starts: Array, first_Y: Array, keep_J: Array, pool: ArrayPool) -> tuple[Array, Array]:
    """Levels and first children after pruning. No node is kept whose parent is pruned."""
    before_J = pool.sums(keep_J, np.int64)
    kept = pool.selected(first_Y[:-1], keep_J[: len(first_Y) - 1])
    first = pool.empty(len(kept) + 1, np.uint32)
    for piece in pieces(len(kept)):
        first[piece] = before_J[kept[piece]]
    first[-1] = before_J[-1]
    return before_J[starts], first


def pack(
    starts: Array,
    words_J: Array,
    first_Y: Array,
    probs_J: Array,
    backoffs_Y: Array,
    *,
    quantize: bool = False,
    pool: ArrayPool | None = None,
) -> TableArrays:
    """The arrays of a table; probabilities and back-off weights are given as log10."""
    pool, size = pool or ArrayPool(), int(starts[1])
    above_J = words_J[size:]
    if quantize:
        prob_codes, prob_table = _quantise(probs_J, starts, pool)
        codes, table = _quantise(backoffs_Y, starts[:-1], pool)
    else:
        prob_codes, prob_table = np.asarray(probs_J, np.float32), np.empty(0, np.float32)
        codes, table = _tabulate(np.asarray(backoffs_Y, np.float32), pool)
    groups, steps = _relative(first_Y[size:] if len(first_Y) > size else np.zeros(1, np.uint32), pool)
    return TableArrays(
        starts=np.asarray(starts, np.int64),
        words=pool.computed(len(above_J), np.uint16 if size <= 1 << 16 else np.uint32, lambda piece: above_J[piece]),
        first_words=np.resize(np.asarray(first_Y[:size], np.uint32), size),
        first_groups=groups,
        first_steps=steps,
        probs=prob_codes,
        prob_table=prob_table,
        backoffs=codes,
        backoff_table=table,
    )


def _relative(first: Array, pool: ArrayPool) -> tuple[Array, Array]:
    """The first of each group of contexts, and every one less the first of its group."""
    groups = np.asarray(first[::GROUP], np.uint32).copy()

    def steps(piece: slice) -> Array:
        own = groups[piece.start // GROUP : -(-piece.stop // GROUP)]
        return np.asarray(first[piece], np.uint32) - np.repeat(own, GROUP)[: piece.stop - piece.start]

    largest = max((int(steps(piece).max()) for piece in pieces(len(first))), default=0)
    return groups, pool.computed(len(first), np.uint16 if largest < 1 << 16 else np.uint32, steps)


def _tabulate(values: Array, pool: ArrayPool) -> tuple[Array, Array]:
    """Two-byte codes into a table of the distinct values, without loss; unchanged if there are too many of them."""
    sample = values[:: max(1, len(values) // 1_000_000)]
    table = _distinct(sample, MAX_CODES)
    if table is not None:
        table = _distinct(values, MAX_CODES)
    if table is None:
        return values, np.empty(0, np.float32)
    return pool.computed(len(values), np.uint16, lambda piece: np.searchsorted(table, values[piece])), table


def _distinct(values: Array, most: int) -> Array | None:
    """The distinct values in order, or None if there are more than `most`."""
    found = np.empty(0, values.dtype)
    for piece in pieces(len(values)):
        found = np.union1d(found, values[piece])
        if len(found) > most:
            return None
    return found


def _quantise(values: Array, starts: Array, pool: ArrayPool) -> tuple[Array, Array]:
    """The values of each level as bytes, codes into a table of the level's bins."""
    codes, tables = pool.empty(len(values), np.uint8), np.zeros((len(starts) - 1, BINS), np.float32)
    for k, (begin, end) in enumerate(pairwise(map(int, starts))):
        level = values[begin:end]
        ordered = pool.computed(len(level), level.dtype, level.__getitem__)
        ordered.sort()
        table = _bins(ordered, pool)
        tables[k, : len(table)] = table
        borders = (table[1:] + table[:-1]) / 2
        for piece in pieces(len(level)):
            codes[begin + piece.start : begin + piece.stop] = np.searchsorted(borders, level[piece])
    return codes, tables.reshape(-1)


def _bins(ordered: Array, pool: ArrayPool) -> Array:
    """At most 256 values that approximate sorted ones with a small squared error; -inf and 0 (log 1) stay exact."""
    distinct = _distinct(ordered, BINS)
    if distinct is not None:
        return distinct
    exact = [value for value in (-np.inf, 0.0) if value in ordered[places_below(ordered, np.array([value]))[0] :][:1]]
    inner = pool.selected(ordered, pool.computed(len(ordered), bool, lambda piece: _is_inner(ordered[piece])))
    sums = pool.sums(inner, np.float64)
    centres = np.linspace(inner[0], inner[-1], BINS - len(exact), dtype=np.float64)
    for _ in range(LLOYD_ROUNDS):
        cuts = places_below(inner, (centres[1:] + centres[:-1]) / 2)
        begins, ends = np.concatenate([[0], cuts]), np.append(cuts, len(inner))
        used = ends > begins
        centres[used] = (sums[ends[used]] - sums[begins[used]]) / (ends[used] - begins[used])
    return np.unique(np.array([*exact, *centres], np.float32))


def places_below(ordered: Array, limits: Array) -> Array:
    """The number of sorted values below each limit. `searchsorted` would copy all values for limits of another type."""
    rounded = limits.astype(ordered.dtype)
    rounded = np.where(rounded < limits, np.nextafter(rounded, np.inf, dtype=ordered.dtype), rounded)  # rounded up
    return np.searchsorted(ordered, rounded)


def _is_inner(values: Array) -> Array:
    inner: Array = np.isfinite(values) & (values != 0)
    return inner
