"""A finished n-gram model as flat arrays that are used directly from the mapped file, without unpacking.

Nodes are numbered as in the trie (`trie.py`): the children of a node are adjacent and sorted by word. The arrays are

    words       of the nodes from level 2 on, two bytes each where the vocabulary allows
    first       child of each context: absolute for words; above them, relative to the first of a group of 64 contexts
    probs       log10 p of every node
    backoffs    log10 of the back-off weight of every context, usually as codes into a table of the distinct values

In a quantised model, probabilities and back-off weights are bytes: codes into a table per level, whose entries are the
means of the values nearest to them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from chainrule.base.arrays import Array, open_arrays, write_arrays
from chainrule.engines.ngram.smoothing import Estimates
from chainrule.engines.ngram.trie import Trie
from chainrule.errors import RunError

FORMAT = "chainrule n-grams 1"
SHIFT = 6
GROUP = 1 << SHIFT
BINS = 256
MAX_CODES = 1 << 16
LLOYD_ROUNDS = 30
"""Iterations of Lloyd's algorithm, which moves each bin to the mean of the values nearest to it."""


class TableArrays(NamedTuple):
    """The arrays that the kernels read; the field names are the names in the file."""

    starts: Array  # int64, O + 1: the first node of each level, and the number of nodes
    words: Array  # uint16 or uint32, of nodes from V on
    first_words: Array  # uint32, V
    first_groups: Array  # uint32, one for every 64 contexts from V on
    first_steps: Array  # uint16 or uint32, one for every context from V on, and one more
    probs: Array  # float32, or uint8 codes into the table
    prob_table: Array  # float32, O × 256, or empty
    backoffs: Array  # float32, or uint8 or uint16 codes into the table
    backoff_table: Array  # float32: O × 256 for bytes, otherwise one table for all levels


@dataclass
class NgramTable:
    """The arrays of an n-gram model, and what a query has to know about them."""

    arrays: TableArrays
    eos: int
    across_lines: bool
    normalised: bool  # whether the numbers are probabilities, not just scores
    absent: float  # log10 of the back-off weight of contexts that are not in the table

    @property
    def order(self) -> int:
        return len(self.arrays.starts) - 1

    @property
    def vocab_size(self) -> int:
        return int(self.arrays.starts[1])

    @property
    def sizes(self) -> list[int]:
        """The number of n-grams of each order."""
        return [int(size) for size in np.diff(self.arrays.starts)]

    def save(self, path: Path, extra: dict[str, Array]) -> None:
        """Write to a file, together with other arrays of the model."""
        about = {
            "format": FORMAT,
            "eos": str(self.eos),
            "across_lines": str(int(self.across_lines)),
            "normalised": str(int(self.normalised)),
            "absent": repr(self.absent),
        }
        write_arrays(path, {**self.arrays._asdict(), **extra}, about)


def load_table(path: Path) -> tuple[NgramTable, dict[str, Array]]:
    """The table in a file, mapped into memory, and the other arrays of the file."""
    arrays, about = open_arrays(path)
    if about.get("format") != FORMAT or not arrays.keys() >= set(TableArrays._fields):
        raise RunError(f"{path} is not the file of an n-gram model; restore the original file of the run")
    own = TableArrays(*(np.asarray(arrays.pop(name)) for name in TableArrays._fields))
    across_lines, normalised = bool(int(about["across_lines"])), bool(int(about["normalised"]))
    return NgramTable(own, int(about["eos"]), across_lines, normalised, float(about["absent"])), arrays


# Packing


def make_table(
    trie: Trie, estimates: Estimates, *, thresholds: list[int], normalised: bool, quantize: bool
) -> NgramTable:
    """Pack probabilities and back-off weights, without the n-grams that are pruned."""
    with np.errstate(divide="ignore"):
        probs_J = np.log10(estimates.probs_J, out=estimates.probs_J)
        backoffs_Y = np.log10(estimates.backoffs_Y, out=estimates.backoffs_Y)
    starts, words_J, first_Y = trie.starts, trie.words_J, trie.first_Y
    if any(thresholds):
        keep_J = _unpruned(trie, thresholds)
        starts, first_Y = _renumber(starts, first_Y, keep_J)
        words_J, probs_J, backoffs_Y = words_J[keep_J], probs_J[keep_J], backoffs_Y[keep_J[: trie.contexts]]
    arrays = pack(starts, words_J, first_Y, probs_J, backoffs_Y, quantize=quantize)
    absent = float(np.log10(estimates.absent))
    return NgramTable(arrays, trie.eos, trie.across_lines, normalised, absent)


def _unpruned(trie: Trie, thresholds: list[int]) -> Array:
    keep_J = np.ones(len(trie.words_J), bool)
    for k in range(2, trie.order + 1):
        keep_J[trie.level(k)] = trie.counts(k) > thresholds[k - 1]
    return keep_J


def _renumber(starts: Array, first_Y: Array, keep_J: Array) -> tuple[Array, Array]:
    """Levels and first children after pruning. No node is kept whose parent is pruned."""
    before_J = np.concatenate([[0], np.cumsum(keep_J)])
    contexts = len(first_Y) - 1
    kept_first = before_J[first_Y[:-1][keep_J[:contexts]]]
    return before_J[starts], np.append(kept_first, before_J[-1]).astype(np.uint32)


def pack(
    starts: Array, words_J: Array, first_Y: Array, probs_J: Array, backoffs_Y: Array, *, quantize: bool = False
) -> TableArrays:
    """The arrays of a table; probabilities and back-off weights are given as log10."""
    size = int(starts[1])
    steps = np.asarray(first_Y[size:], np.uint32) if len(first_Y) > size else np.zeros(1, np.uint32)
    groups = steps[::GROUP].copy()
    steps = steps - np.repeat(groups, GROUP)[: len(steps)]
    small = len(steps) == 0 or steps.max() < 1 << 16
    if quantize:
        prob_codes, prob_table = _quantise(probs_J, starts)
        codes, table = _quantise(backoffs_Y, starts[:-1])
    else:
        prob_codes, prob_table = np.asarray(probs_J, np.float32), np.empty(0, np.float32)
        codes, table = _tabulate(np.asarray(backoffs_Y, np.float32))
    return TableArrays(
        starts=np.asarray(starts, np.int64),
        words=np.asarray(words_J[size:], np.uint16 if size <= 1 << 16 else np.uint32),
        first_words=np.resize(np.asarray(first_Y[:size], np.uint32), size),
        first_groups=groups,
        first_steps=steps.astype(np.uint16) if small else steps,
        probs=prob_codes,
        prob_table=prob_table,
        backoffs=codes,
        backoff_table=table,
    )


def _tabulate(values: Array) -> tuple[Array, Array]:
    """Two-byte codes into a table of the distinct values, without loss; unchanged if there are too many of them."""
    sample = np.unique(values[:: max(1, len(values) // 1_000_000)])
    if len(sample) > MAX_CODES:
        return values, np.empty(0, np.float32)
    table = np.unique(values)
    if len(table) > MAX_CODES:
        return values, np.empty(0, np.float32)
    return np.searchsorted(table, values).astype(np.uint16), table


def _quantise(values: Array, starts: Array) -> tuple[Array, Array]:
    """The values of each level as bytes, codes into a table of the level's bins."""
    codes, tables = np.empty(len(values), np.uint8), np.zeros((len(starts) - 1, BINS), np.float32)
    for k in range(len(starts) - 1):
        level = slice(int(starts[k]), int(starts[k + 1]))
        table = _bins(np.sort(values[level]))
        tables[k, : len(table)] = table
        codes[level] = np.clip(np.searchsorted((table[1:] + table[:-1]) / 2, values[level]), 0, len(table) - 1)
    return codes, tables.reshape(-1)


def _bins(ordered: Array) -> Array:
    """At most 256 values that approximate sorted ones with a small squared error; -inf and 0 (log 1) stay exact."""
    distinct = np.unique(ordered)
    if len(distinct) <= BINS:
        return distinct
    exact = [value for value in (-np.inf, 0.0) if value in distinct]
    inner = ordered[np.isfinite(ordered) & (ordered != 0)]
    sums = np.concatenate([[0.0], np.cumsum(inner, dtype=np.float64)])
    centres = np.linspace(inner[0], inner[-1], BINS - len(exact), dtype=np.float64)
    for _ in range(LLOYD_ROUNDS):
        cuts = np.searchsorted(inner, (centres[1:] + centres[:-1]) / 2)
        begins, ends = np.concatenate([[0], cuts]), np.append(cuts, len(inner))
        used = ends > begins
        centres[used] = (sums[ends[used]] - sums[begins[used]]) / (ends[used] - begins[used])
    return np.unique(np.array([*exact, *centres], np.float32))
