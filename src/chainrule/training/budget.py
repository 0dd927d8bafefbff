"""Training budgets: minutes, steps, epochs, or whichever is used up first."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from chainrule.base.compile_time import CompileTime
from chainrule.base.grammar import plural
from chainrule.config import TrainingConfig


@dataclass
class Clock:
    """Seconds of training so far, over all resumptions of a run, without the compilation of kernels."""

    before: float = 0.0
    compiling: CompileTime = field(default_factory=CompileTime)
    _since: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        return self.before + time.monotonic() - self._since - self.compiling.seconds


def progress(config: TrainingConfig, *, step: int, steps_per_epoch: float, seconds: float) -> float:
    """The share of the budget used, from 0 to 1."""
    return min(1.0, max(share for _, share in _shares(config, step, steps_per_epoch, seconds)))


def spent_budget(config: TrainingConfig, *, step: int, steps_per_epoch: float, seconds: float) -> str:
    """The budget that was used up, in words."""
    return f"the budget of {max(_shares(config, step, steps_per_epoch, seconds), key=lambda one: one[1])[0]} is spent"


def _shares(config: TrainingConfig, step: int, steps_per_epoch: float, seconds: float) -> list[tuple[str, float]]:
    """Each budget in words, and the share of it that is used."""
    shares = [("0 steps", 0.0)]
    if config.steps:
        shares.append((plural(config.steps, "step"), step / config.steps))
    if config.epochs:
        shares.append((_amount(config.epochs, "epoch"), step / (config.epochs * steps_per_epoch)))
    if config.minutes:
        shares.append((_amount(config.minutes, "minute"), seconds / (config.minutes * 60)))
    return shares


def _amount(number: float, unit: str) -> str:
    return f"{number:g} {unit}{'s' * (number != 1)}"
