"""From tokens to a finished table: count, smooth, leave out, pack."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from chainrule.engines.ngram.scratch import Array, open_room
from chainrule.engines.ngram.smoothing import SMOOTHINGS, Note, Sample
from chainrule.engines.ngram.table import Table, make_table
from chainrule.engines.ngram.trie import count

BYTES_A_TOKEN = 80
"""About what counting and smoothing hold in memory for each token of a text."""


@dataclass(frozen=True)
class Plan:
    """What is to be estimated."""

    order: int
    smoothing: str
    delta: float
    prune: tuple[int, ...]
    across_lines: bool
    quantize: bool

    @property
    def thresholds(self) -> list[int]:
        """By order: n-grams seen so often or less are left out; the last given holds for all above."""
        last = self.prune[-1] if self.prune else 0
        return [*self.prune, *[last] * self.order][: self.order]


def estimate(
    plan: Plan,
    tokens: Array,
    valid: Array,
    *,
    eos: int,
    vocab_size: int,
    memory: int | None = None,
    scratch: Path | None = None,
    threads: int = 1,
    note: Note = lambda text: None,
) -> Table:
    """The table of a text. With `memory` (bytes), what does not fit is sorted and kept in files in `scratch`."""
    with open_room(memory, BYTES_A_TOKEN * len(tokens), scratch) as room:
        trie = count(
            tokens,
            order=plan.order,
            eos=eos,
            across_lines=plan.across_lines,
            vocab_size=vocab_size,
            room=room,
            threads=threads,
        )
        sample = Sample(trie, room, note, np.asarray(valid), plan.delta, plan.thresholds, threads)
        estimates = SMOOTHINGS[plan.smoothing](sample)
        room.rest()
        return make_table(
            trie,
            estimates,
            thresholds=plan.thresholds,
            normalised=plan.smoothing != "stupid-backoff",
            quantize=plan.quantize,
        )
