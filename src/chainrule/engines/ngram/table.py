"""A finished n-gram model as flat arrays that are used where they lie: mapped from the file, nothing is unpacked.

Nodes are those of the trie (`trie.py`): children side by side in order of their words. Kept of it are

    words       of the nodes from level 2 on, two bytes where the vocabulary allows
    first       child of each context: of words as it is; further up as a distance from the first of 64 neighbours
    probs       log10 p of every node
    backoffs    log10 of the back-off weight of every context, often through a table: few different ones occur

Quantised, probabilities and back-off weights are bytes that point into a table for each level, whose entries are the
means of the values nearest to them.

Legend: N order, X nodes, H contexts, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from chainrule.base.arrays import open_arrays, write_arrays
from chainrule.engines.ngram.scratch import Array
from chainrule.engines.ngram.smoothing import Estimates
from chainrule.engines.ngram.trie import Trie
from chainrule.errors import RunError

FORMAT = "chainrule n-grams 1"
SHIFT = 6
GROUP = 1 << SHIFT
BINS = 256
MOST_CODES = 1 << 16
LLOYD = 30
"""Rounds in which quantised values move to the mean of what is nearest to them."""


class Arrays(NamedTuple):
    """What the kernels read."""

    starts: Array  # int64, N + 1: where each level begins
    words: Array  # uint16 or uint32, of nodes from V on
    first_words: Array  # uint32, V
    first_groups: Array  # uint32, one for every 64 contexts from V on
    first_steps: Array  # uint16 or uint32, one for every context from V on, and one more
    probs: Array  # float32, or uint8 into the table
    prob_table: Array  # float32, N × 256, or empty
    backoffs: Array  # float32, or uint8 or uint16 into the table
    backoff_table: Array  # float32: N × 256 for bytes, one for all levels otherwise


@dataclass
class Table:
    """The arrays, and what they are of."""

    arrays: Arrays
    eos: int
    across_lines: bool
    normalised: bool  # probabilities, or only scores
    absent: float  # log10 of the back-off weight of contexts that are not there

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
        """Write to a file, with other arrays that belong to the model."""
        about = {
            "format": FORMAT,
            "eos": str(self.eos),
            "across_lines": str(int(self.across_lines)),
            "normalised": str(int(self.normalised)),
            "absent": repr(self.absent),
        }
        write_arrays(path, {**self.arrays._asdict(), **extra}, about)


def load_table(path: Path) -> tuple[Table, dict[str, Array]]:
    """The table in a file, mapped, and the other arrays there."""
    arrays, about = open_arrays(path)
    if about.get("format") != FORMAT or not arrays.keys() >= set(Arrays._fields):
        raise RunError(f"{path} is not of an n-gram model; restore the run's own file")
    kept = Arrays(*(np.asarray(arrays.pop(name)) for name in Arrays._fields))
    lines, normalised = bool(int(about["across_lines"])), bool(int(about["normalised"]))
    return Table(kept, int(about["eos"]), lines, normalised, float(about["absent"])), arrays


# Making


def make_table(trie: Trie, estimates: Estimates, *, thresholds: list[int], normalised: bool, quantize: bool) -> Table:
    """Put probabilities into their final form, without the n-grams that were seen too rarely."""
    with np.errstate(divide="ignore"):
        probs_X = np.log10(estimates.probs_X, out=estimates.probs_X)
        backoffs_H = np.log10(estimates.backoffs_H, out=estimates.backoffs_H)
    starts, words_X, first_X = trie.starts, trie.words_X, trie.first_X
    if any(thresholds):
        keep_X = _kept(trie, thresholds)
        starts, first_X = _renumber(starts, first_X, keep_X)
        words_X, probs_X, backoffs_H = words_X[keep_X], probs_X[keep_X], backoffs_H[keep_X[: trie.contexts]]
    arrays = pack(starts, words_X, first_X, probs_X, backoffs_H, quantize=quantize)
    absent = float(np.log10(estimates.absent))
    return Table(arrays, trie.eos, trie.across_lines, normalised, absent)


def _kept(trie: Trie, thresholds: list[int]) -> Array:
    keep_X = np.ones(len(trie.words_X), bool)
    for k in range(2, trie.order + 1):
        keep_X[trie.level(k)] = trie.counts(k) > thresholds[k - 1]
    return keep_X


def _renumber(starts: Array, first_X: Array, keep_X: Array) -> tuple[Array, Array]:
    """Levels and first children after some nodes are left out. Nobody stays whose parent goes."""
    before_X = np.concatenate([[0], np.cumsum(keep_X)])
    contexts = len(first_X) - 1
    kept_first = before_X[first_X[:-1][keep_X[:contexts]]]
    return before_X[starts], np.append(kept_first, before_X[-1]).astype(np.uint32)


def pack(
    starts: Array, words_X: Array, first_X: Array, probs_X: Array, backoffs_H: Array, *, quantize: bool = False
) -> Arrays:
    """The arrays of a table; probabilities and back-off weights are given as log10."""
    size = int(starts[1])
    steps = np.asarray(first_X[size:], np.uint32) if len(first_X) > size else np.zeros(1, np.uint32)
    groups = steps[::GROUP].copy()
    steps = steps - np.repeat(groups, GROUP)[: len(steps)]
    small = len(steps) == 0 or steps.max() < 1 << 16
    if quantize:
        prob_codes, prob_table = _quantise(probs_X, starts)
        codes, table = _quantise(backoffs_H, starts[:-1])
    else:
        prob_codes, prob_table = np.asarray(probs_X, np.float32), np.empty(0, np.float32)
        codes, table = _tabulate(np.asarray(backoffs_H, np.float32))
    return Arrays(
        starts=np.asarray(starts, np.int64),
        words=np.asarray(words_X[size:], np.uint16 if size <= 1 << 16 else np.uint32),
        first_words=np.resize(np.asarray(first_X[:size], np.uint32), size),
        first_groups=groups,
        first_steps=steps.astype(np.uint16) if small else steps,
        probs=prob_codes,
        prob_table=prob_table,
        backoffs=codes,
        backoff_table=table,
    )


def _tabulate(values: Array) -> tuple[Array, Array]:
    """Few different values as two-byte codes into a table, which loses nothing; many as they are."""
    sample = np.unique(values[:: max(1, len(values) // 1_000_000)])
    if len(sample) > MOST_CODES:
        return values, np.empty(0, np.float32)
    table = np.unique(values)
    if len(table) > MOST_CODES:
        return values, np.empty(0, np.float32)
    return np.searchsorted(table, values).astype(np.uint16), table


def _quantise(values: Array, starts: Array) -> tuple[Array, Array]:
    """Each level's values as bytes into its own table of bin means."""
    codes, tables = np.empty(len(values), np.uint8), np.zeros((len(starts) - 1, BINS), np.float32)
    for k in range(len(starts) - 1):
        level = slice(int(starts[k]), int(starts[k + 1]))
        table = _bins(np.sort(values[level]))
        tables[k, : len(table)] = table
        codes[level] = np.clip(np.searchsorted((table[1:] + table[:-1]) / 2, values[level]), 0, len(table) - 1)
    return codes, tables.reshape(-1)


def _bins(ordered: Array) -> Array:
    """At most 256 values that stand for sorted ones, near in square. -inf, and 0 which is log 1, stay what they are."""
    different = np.unique(ordered)
    if len(different) <= BINS:
        return different
    exact = [value for value in (-np.inf, 0.0) if value in different]
    inner = ordered[np.isfinite(ordered) & (ordered != 0)]
    sums = np.concatenate([[0.0], np.cumsum(inner, dtype=np.float64)])
    centres = np.linspace(inner[0], inner[-1], BINS - len(exact), dtype=np.float64)
    for _ in range(LLOYD):
        cuts = np.searchsorted(inner, (centres[1:] + centres[:-1]) / 2)
        begins, ends = np.concatenate([[0], cuts]), np.append(cuts, len(inner))
        held = ends > begins
        centres[held] = (sums[ends[held]] - sums[begins[held]]) / (ends[held] - begins[held])
    return np.unique(np.array([*exact, *centres], np.float32))
