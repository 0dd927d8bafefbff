"""The scores that reports show: their names, their formats, and how they follow from summed statistics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from chainrule.base.arrays import Array
from chainrule.evaluation.metrics import Bleu, Chrf
from chainrule.evaluation.significance import (
    RESAMPLES,
    SEED,
    PairedResult,
    Ratio,
    SummedScore,
    compare_tables,
    interval,
    resample,
)
from chainrule.reports.system import Score, System

MOST_ITEMS = 20_000
"""Items of a table; more lines are joined to groups of consecutive lines."""


@dataclass(frozen=True)
class ReportMetric:
    """A score of a report."""

    name: str
    label: str
    digits: int
    lower_is_better: bool
    make: Callable[[], SummedScore]  # the score as a function of summed statistics

    def score(self, value: float, table_PF: Array, signature: str) -> Score:
        """A value with its interval by the bootstrap; with one item there is none."""
        table_PF = grouped(table_PF)
        bounds = interval(self.make().scores(resample(table_PF))) if len(table_PF) > 1 else None
        return Score(self.name, value, bounds, f"{signature}|bs:{RESAMPLES}|seed:{SEED}", table_PF)

    def better(self, difference: float) -> str:
        """What a difference means, in a word."""
        return "better" if (difference < 0) == self.lower_is_better else "worse"


METRICS = {
    one.name: one
    for one in (
        ReportMetric("bits_per_byte", "bits per byte", 4, True, Ratio),
        ReportMetric("bleu", "BLEU", 2, False, Bleu),
        ReportMetric("chrf", "chrF", 2, False, Chrf),
        ReportMetric("accuracy", "accuracy", 4, False, Ratio),
    )
}
"""By name."""


def grouped(table_PF: Array) -> Array:
    """The same sums over at most `MOST_ITEMS` groups of consecutive items -> PF."""
    size = -(-len(table_PF) // MOST_ITEMS)
    starts = np.arange(0, len(table_PF), size)
    return table_PF if size <= 1 else np.add.reduceat(table_PF, starts, axis=0)


def compare_pair(metric: ReportMetric, a: Score, b: Score) -> PairedResult | None:
    """Whether b differs from a on the same items; None: the items are not known or not as many."""
    if a.table_PF is None or b.table_PF is None or len(a.table_PF) != len(b.table_PF) or len(a.table_PF) < 2:
        return None
    return compare_tables(
        metric.name, metric.make(), (a.table_PF, b.table_PF), (a.value, b.value), signature=b.signature
    )


def ranked(systems: list[System], metric: ReportMetric) -> list[System]:
    """The systems by a score, best first; those without it last."""

    def key(system: System) -> tuple[bool, float]:
        score = system.score(metric.name)
        known = score is not None and score.value == score.value
        return not known, 0.0 if score is None or not known else score.value * (1 if metric.lower_is_better else -1)

    return sorted(systems, key=key)
