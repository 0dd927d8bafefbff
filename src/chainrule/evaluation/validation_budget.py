"""How much a validation during training may measure, so that all validations take a fixed share of the time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

VALIDATION_SHARE = 0.1
"""Share of a time budget that all validations together may take."""


def seconds_per_validation(minutes: float | None, validations: int) -> float | None:
    """Return the seconds that one of `validations` may take in a training of `minutes`; None: no time limit."""
    return None if minutes is None else 60 * minutes / validations * VALIDATION_SHARE


def affordable_items(
    measure: Callable[[int], object], total: int, *, least: int, seconds: float | None, warm_up: int = 0
) -> int:
    """Return how many of `total` items can be measured in `seconds`: at least `least`; None: all.

    `measure(n)` measures the first n items. It is timed with `least` items, after an untimed call with `warm_up` items
    if the first call takes longer than the others.
    """
    if seconds is None or total <= least:
        return total
    if warm_up:
        measure(warm_up)
    began = time.perf_counter()
    measure(least)
    rate = least / (time.perf_counter() - began)
    # A power of two, so that a resumed run usually measures the same items.
    affordable = 1 << int(math.log2(max(1, rate * seconds)))
    return max(least, min(total, affordable))
