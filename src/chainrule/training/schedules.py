"""Learning-rate schedules: multipliers of the full rate, as functions of the progress of a training."""

from __future__ import annotations

import math
from typing import NamedTuple

from chainrule.config import TrainingConfig


class SchedulePoint(NamedTuple):
    """A point in a training."""

    step: int
    progress: float  # share of the budget used, 0 to 1
    epoch: float
    plateaus: int  # validations without improvement


def rate(config: TrainingConfig, point: SchedulePoint) -> float:
    """The multiplier of the learning rate, warm-up included."""
    return warmup(config, point) * decay(config, point)


def warmup(config: TrainingConfig, point: SchedulePoint) -> float:
    """Linear warm-up over a share of the budget, or over a number of steps."""
    if config.warmup == 0:
        return 1.0
    if config.warmup >= 1:
        return min(1.0, (point.step + 1) / config.warmup)
    return min(1.0, max(point.progress / config.warmup, 0.05))  # never 0, so that the first step has an effect


def decay(config: TrainingConfig, point: SchedulePoint) -> float:
    """The multiplier without warm-up."""
    left, floor = 1.0 - min(1.0, point.progress), config.final_lr
    match config.schedule:
        case "cosine":
            return floor + (1 - floor) * 0.5 * (1 - math.cos(math.pi * left))
        case "linear":
            return floor + (1 - floor) * left
        case "step":
            late = point.epoch - config.decay_start
            return 1.0 if late < 0 else config.decay_factor ** (1 + math.floor(late / config.decay_every))
        case "plateau":
            return config.decay_factor**point.plateaus
        case _:
            return 1.0
