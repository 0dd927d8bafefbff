"""How much a validation during training may measure, so that all validations take a fixed share of the time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from chainrule.base.processes import ALONE, Processes
from chainrule.config import TrainingConfig

VALIDATION_SHARE = 0.1
"""Share of a time budget that all validations together may take."""


SCORED_SHARE = 0.3
"""Tokens that all validations of a budget of steps or epochs score together, at most, per token trained on.

To score a token takes about a third of the time to train on it, so this is a tenth of the time."""

LEAST_TOKENS = 2048
"""Tokens of a validation, however short the training is."""


FINAL_SHARE = 4
"""Held-out data is scored after a training up to one token for this many tokens trained on."""

LEAST_FINAL = 8192
"""Tokens that are scored after a training, however short it was."""


def final_tokens(trained: int) -> int:
    """Return how many tokens of held-out data are scored after a training on some tokens, at most."""
    return max(LEAST_FINAL, trained // FINAL_SHARE)


def scored_part(scored: int, total: int, unit: str, limit: str = "") -> str:
    """Return a note on what was scored if it is not everything, else an empty string; `limit` is a further reason."""
    if scored >= total:
        return ""
    return f"scored {scored:,} of the {total:,} {unit} held out: {limit}at most 1 token for {FINAL_SHARE} trained on"


def tokens_per_validation(training: TrainingConfig, *, epoch_tokens: int, steps_per_epoch: float) -> int:
    """Return how many tokens a validation may score; the clock limits the validations of a budget of minutes."""
    epochs = [training.epochs] if training.epochs else []
    epochs += [training.steps / max(1.0, steps_per_epoch)] if training.steps else []
    if not epochs:
        return training.valid_tokens
    affordable = int(SCORED_SHARE * min(epochs) * epoch_tokens / training.validations)
    return min(training.valid_tokens, max(LEAST_TOKENS, affordable))


def seconds_per_validation(minutes: float | None, validations: int) -> float | None:
    """Return the seconds that one of `validations` may take in a training of `minutes`; None: no time limit."""
    return None if minutes is None else 60 * minutes / validations * VALIDATION_SHARE


def affordable_items(
    measure: Callable[[int], object],
    total: int,
    *,
    least: int,
    seconds: float | None,
    warm_up: int = 0,
    processes: Processes = ALONE,
) -> int:
    """Return how many of `total` items can be measured in `seconds`: at least `least`; None: all.

    `measure(n)` measures the first n items. It is timed with `least` items, after an untimed call with `warm_up` items
    if the first call takes longer than the others. Processes that measure together use the time of the main one.
    """
    if seconds is None or total <= least:
        return total
    if warm_up:
        measure(warm_up)
    began = time.perf_counter()
    measure(least)
    rate = least / processes.from_main([time.perf_counter() - began])[0]
    # A power of two, so that a resumed run usually measures the same items.
    affordable = 1 << int(math.log2(max(1, rate * seconds)))
    return max(least, min(total, affordable))
