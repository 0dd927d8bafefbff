"""How fast to learn, as a share of the full rate. Every schedule is a function of where the training stands."""

from __future__ import annotations

import math
from typing import NamedTuple

from chainrule.config import TrainingConfig


class Place(NamedTuple):
    """Where a training stands."""

    step: int
    progress: float  # share of the budget that is used, 0 to 1
    epoch: float
    plateaus: int  # validations that brought no improvement


def rate(config: TrainingConfig, place: Place) -> float:
    """The learning rate's multiplier at a place, warm-up included."""
    return warmup(config, place) * decay(config, place)


def warmup(config: TrainingConfig, place: Place) -> float:
    """Rises from 0 to 1 over the first share of the budget, or the first steps."""
    if config.warmup == 0:
        return 1.0
    if config.warmup >= 1:
        return min(1.0, (place.step + 1) / config.warmup)
    return min(1.0, max(place.progress / config.warmup, 0.05))  # never 0: the first step counts too


def decay(config: TrainingConfig, place: Place) -> float:
    """What remains of the full rate, without warm-up."""
    left, floor = 1.0 - min(1.0, place.progress), config.final_lr
    match config.schedule:
        case "cosine":
            return floor + (1 - floor) * 0.5 * (1 - math.cos(math.pi * left))
        case "linear":
            return floor + (1 - floor) * left
        case "step":
            late = place.epoch - config.decay_start
            return 1.0 if late < 0 else config.decay_factor ** (1 + math.floor(late / config.decay_every))
        case "plateau":
            return config.decay_factor**place.plateaus
        case _:
            return 1.0
