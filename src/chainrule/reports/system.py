"""A measured system: a run, its scores, and the statistics of every test item behind them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from chainrule.base.arrays import Array
from chainrule.base.results import json_value


@dataclass(frozen=True)
class Score:
    """One score of a system, with what an interval and a paired test need."""

    metric: str  # a name of `METRICS`
    value: float
    interval: tuple[float, float] | None  # 95%
    signature: str
    table_PF: Array | None = None  # statistics of each item of the test data; None: not known

    def to_dict(self) -> dict[str, Any]:
        """For JSON; the statistics are kept, so that reports can be compared."""
        return {
            "metric": self.metric,
            "value": json_value(self.value),
            "interval": self.interval,
            "signature": self.signature,
            "items": None if self.table_PF is None else [[_short(x) for x in row] for row in self.table_PF.tolist()],
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Score:
        """The inverse of `to_dict`, except for the rounding of statistics."""
        bounds, items = values["interval"], values["items"]
        return cls(
            metric=values["metric"],
            value=math.nan if values["value"] is None else values["value"],
            interval=None if bounds is None else (bounds[0], bounds[1]),
            signature=values["signature"],
            table_PF=None if items is None else np.array(items, np.float64),
        )


def _short(value: float) -> float:
    """Counts as integers, other statistics with four decimals: a report stays small."""
    return int(value) if value == int(value) else round(value, 4)


@dataclass(frozen=True)
class System:
    """A run that was measured: its scores, and where they come from."""

    name: str
    run: str
    model: str
    task: str
    data: str  # fingerprint of the test data
    scores: Sequence[Score]
    protocol: str
    facts: dict[str, Any] = field(default_factory=dict)  # parameters, time and the like

    def score(self, metric: str) -> Score | None:
        """The score of a metric; None: the system has none."""
        return next((score for score in self.scores if score.metric == metric), None)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "name": self.name,
            "run": self.run,
            "model": self.model,
            "task": self.task,
            "data": self.data,
            "scores": [score.to_dict() for score in self.scores],
            "protocol": self.protocol,
            "facts": json_value(self.facts),
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> System:
        """The inverse of `to_dict`."""
        scores = [Score.from_dict(score) for score in values["scores"]]
        return cls(**{**values, "scores": scores})
