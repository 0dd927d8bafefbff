"""Search for the smallest value of a function of one number or of a few choices, in few evaluations."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

GOLDEN = (math.sqrt(5) - 1) / 2
DIGITS = 4
"""Decimals to which arguments are rounded, so that the result is a short number."""

Tried = list[tuple[Any, float]]
"""Arguments and their values, in the order of evaluation."""


def golden_section(function: Callable[[float], float], low: float, high: float, evaluations: int = 12) -> Tried:
    """Evaluate a function with one minimum between `low` and `high`: the ends first, then ever closer to the minimum.

    Kiefer (1953), Sequential Minimax Search for a Maximum.
    """
    known: dict[float, float] = {}

    def value(argument: float) -> float:
        argument = round(argument, DIGITS)
        if argument not in known:
            known[argument] = function(argument)
        return known[argument]

    value(low), value(high)
    while len(known) < evaluations and high - low > 2 * 10**-DIGITS:
        left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
        if value(left) <= value(right):
            high = right
        else:
            low = left
    return list(known.items())


def grid(function: Callable[[Any], float], choices: Sequence[Any]) -> Tried:
    """Evaluate a function at every choice."""
    return [(choice, function(choice)) for choice in choices]


def best_of(tried: Tried, current: Any) -> Any:
    """The argument with the smallest value; `current`, which must be one of them, unless another one is smaller."""
    values = dict(tried)
    best, least = min(tried, key=lambda pair: pair[1])
    return best if least < values.get(current, math.inf) else current
