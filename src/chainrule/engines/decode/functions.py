"""Functions of single numbers that numba turns into vector instructions inside a loop."""

from __future__ import annotations

import numpy as np

from chainrule.engines.decode import sums
from chainrule.engines.decode.compiling import compiled, inlined
from chainrule.engines.decode.vectors import float_from_bits

ACTIVATIONS = ("relu2", "gelu", "gelu-tanh", "relu", "swish")
"""Activations of a feed-forward layer; a kernel takes the index."""

ZERO, HALF, ONE, TWO = (np.float32(value) for value in (0, 0.5, 1, 2))
LOG2_E, SMALLEST, LARGEST = np.float32(sums.LOG2_E), np.float32(sums.SMALLEST), np.float32(sums.LARGEST)
LN2_HIGH, LN2_LOW = np.float32(sums.LN2_HIGH), np.float32(sums.LN2_LOW)
E0, E1, E2, E3, E4, E5 = (np.float32(value) for value in sums.SERIES[2:])

GELU_SCALE, GELU_CUBE = np.float32(np.sqrt(2 / np.pi)), np.float32(0.044715)
ERF_RATE, ROOT_HALF = np.float32(0.3275911), np.float32(np.sqrt(0.5))
A1, A2, A3, A4, A5 = (
    np.float32(value) for value in (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)
)
"""erf by formula 7.1.26 of Abramowitz & Stegun, "Handbook of Mathematical Functions", with an error below 1.5e-7."""


@inlined
def exponential(x):  # type: ignore[no-untyped-def]
    """e^x: an integer power of 2, written into the exponent, times a series. Below -64 it is 0, -inf included."""
    bounded = min(max(x, SMALLEST), LARGEST)
    whole = np.floor(bounded * LOG2_E + HALF)
    r = (bounded - whole * LN2_HIGH) - whole * LN2_LOW
    series = ONE + r * (ONE + r * (E0 + r * (E1 + r * (E2 + r * (E3 + r * (E4 + r * E5))))))
    power = float_from_bits((np.int32(whole) + np.int32(127)) << np.int32(23))
    return ZERO if x < SMALLEST else series * power


@inlined
def sigmoid(x):  # type: ignore[no-untyped-def]
    return ONE / (ONE + exponential(-x))


@inlined
def tanh(x):  # type: ignore[no-untyped-def]
    return ONE - TWO / (ONE + exponential(TWO * x))


@inlined
def _gelu(x):  # type: ignore[no-untyped-def]
    """x times the normal distribution function, by its tail: 1 + erf(x) would cancel below zero."""
    size = abs(x) * ROOT_HALF
    t = ONE / (ONE + ERF_RATE * size)
    tail = HALF * t * (A1 + t * (A2 + t * (A3 + t * (A4 + t * A5)))) * exponential(-size * size)
    return x * (ONE - tail if x >= ZERO else tail)


@compiled
def activate(kind, values, at, count):  # type: ignore[no-untyped-def]
    """Apply the activation with this index of ACTIVATIONS to `count` values.

    An index that might be negative would count from the end, which prevents vector instructions: indices of a part
    start at 0.
    """
    part = values[at : at + count]
    if kind == 0:
        for j in range(len(part)):
            positive = max(part[j], ZERO)
            part[j] = positive * positive
    elif kind == 1:
        for j in range(len(part)):
            part[j] = _gelu(part[j])
    elif kind == 2:
        for j in range(len(part)):
            x = part[j]
            part[j] = x * sigmoid(TWO * GELU_SCALE * (x + GELU_CUBE * x * x * x))
    elif kind == 3:
        for j in range(len(part)):
            part[j] = max(part[j], ZERO)
    else:
        for j in range(len(part)):
            part[j] = part[j] * sigmoid(part[j])
