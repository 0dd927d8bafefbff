"""From tokens to a finished table: count, smooth, prune, pack."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from chainrule.base.arrays import Array
from chainrule.engines.ngram.packing import make_table
from chainrule.engines.ngram.scratch import SCRATCH_PREFIX, ArrayPool, open_array_pool
from chainrule.engines.ngram.segments import Counts, Shape, join
from chainrule.engines.ngram.smoothing import SMOOTHINGS, Note, SmoothingInput
from chainrule.engines.ngram.table import NgramTable
from chainrule.engines.ngram.trie import Trie, build_trie, count

BYTES_PER_TOKEN = 80
"""Approximate memory that counting and smoothing need per token of the text."""


@dataclass(frozen=True)
class EstimationPlan:
    """The settings of an estimation."""

    order: int
    smoothing: str
    delta: float
    prune: tuple[int, ...]
    across_lines: bool
    quantize: bool

    @property
    def thresholds(self) -> list[int]:
        """By order: n-grams with at most this count are pruned; the last value given applies to all higher orders."""
        last = self.prune[-1] if self.prune else 0
        return [*self.prune, *[last] * self.order][: self.order]


def estimate(
    plan: EstimationPlan,
    tokens: Array,
    valid: Array,
    *,
    eos: int,
    vocab_size: int,
    memory: int | None = None,
    scratch: Path | None = None,
    threads: int = 1,
    note: Note = lambda text: None,
) -> NgramTable:
    """The table of a text. `memory` limits the bytes in use: larger texts are sorted in files inside `scratch`."""
    with open_array_pool(memory, BYTES_PER_TOKEN * len(tokens), scratch) as pool:
        trie = count(
            tokens,
            order=plan.order,
            eos=eos,
            across_lines=plan.across_lines,
            vocab_size=vocab_size,
            pool=pool,
            threads=threads,
        )
        return _smooth(plan, trie, pool, valid, threads, note)


def estimate_from_counts(
    plan: EstimationPlan,
    parts: list[Counts],
    shape: Shape,
    valid: Array,
    *,
    scratch: Path,
    memory: int | None = None,
    threads: int = 1,
    note: Note = lambda text: None,
) -> tuple[NgramTable, Array]:
    """The table of a text whose parts are counted, in the order of the text, and the counts of its words V."""
    needed = BYTES_PER_TOKEN * sum(part.segment.tokens for part in parts)
    with (
        tempfile.TemporaryDirectory(dir=scratch, prefix=SCRATCH_PREFIX) as folder,
        open_array_pool(memory, needed, Path(folder)) as pool,
    ):
        whole = join(parts, shape, Path(folder, "ends"), finish=True)
        trie = build_trie(whole, pool, Path(folder, "merged"), threads)
        counts_V = trie.counts(1).astype(np.int64)
        return _smooth(plan, trie, pool, valid, threads, note), counts_V


def _smooth(plan: EstimationPlan, trie: Trie, pool: ArrayPool, valid: Array, threads: int, note: Note) -> NgramTable:
    """From counts to a table."""
    given = SmoothingInput(trie, pool, note, np.asarray(valid), plan.delta, plan.thresholds, threads)
    estimates = SMOOTHINGS[plan.smoothing](given)
    pool.release()
    return make_table(
        trie,
        estimates,
        pool,
        thresholds=plan.thresholds,
        normalised=plan.smoothing != "stupid-backoff",
        quantize=plan.quantize,
    )
