"""Training budgets: minutes, steps, epochs, or whichever is used up first."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from chainrule.config import TrainingConfig


@dataclass
class Clock:
    """Seconds of training so far, over all resumptions of a run."""

    before: float = 0.0
    _since: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        return self.before + time.monotonic() - self._since


def progress(config: TrainingConfig, *, step: int, steps_per_epoch: float, seconds: float) -> float:
    """The share of the budget used, from 0 to 1."""
    shares = [
        step / config.steps if config.steps else 0.0,
        step / (config.epochs * steps_per_epoch) if config.epochs else 0.0,
        seconds / (config.minutes * 60) if config.minutes else 0.0,
    ]
    return min(1.0, max(shares))
