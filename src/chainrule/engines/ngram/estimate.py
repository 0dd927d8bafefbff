"""From tokens to a finished table: count, smooth, prune, pack."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from chainrule.base.arrays import Array
from chainrule.engines.ngram.scratch import open_array_pool
from chainrule.engines.ngram.smoothing import SMOOTHINGS, Note, SmoothingInput
from chainrule.engines.ngram.table import NgramTable, make_table
from chainrule.engines.ngram.trie import count

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
        given = SmoothingInput(trie, pool, note, np.asarray(valid), plan.delta, plan.thresholds, threads)
        estimates = SMOOTHINGS[plan.smoothing](given)
        pool.release()
        return make_table(
            trie,
            estimates,
            thresholds=plan.thresholds,
            normalised=plan.smoothing != "stupid-backoff",
            quantize=plan.quantize,
        )
