"""Sums over vectors, written as LLVM code: of numbers, of squares, of exponentials.

numba does not turn a loop that both sums and stores exponentials into vector instructions; these are. Every sum has 16
running totals, which are added in halves at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic

from chainrule.engines.decode.vectors import (
    FLOATS,
    INTS,
    LANES,
    add_halves,
    call,
    constant,
    larger,
    load,
    loop,
    multiply_add,
    pointer,
    spread,
    store,
)

SMALLEST, LARGEST = -64.0, 88.0
"""Below SMALLEST an exponential is 0: such terms never change a sum that contains a 1. Products of smaller ones would
be denormal numbers, with which a processor takes a hundred times as long."""

LOG2_E, LN2_HIGH, LN2_LOW = 1.4426950408889634, 0.693359375, -2.12194440e-4
"""ln 2 is a number with few digits, whose multiples are exact, and the rest."""

SERIES = (1.0, 1.0, 1 / 2, 1 / 6, 1 / 24, 1 / 120, 1 / 720, 1 / 5040)
"""Coefficients of the series of e^r."""


def _equal(value: float) -> Any:
    return ir.Constant(FLOATS, [float(np.float32(value))] * LANES)


def _exponential(builder: Any, x: Any) -> Any:
    """e^x of each lane: an integer power of 2, written into the exponent, times a series."""
    bounded = larger(builder, x, _equal(SMALLEST))
    bounded = builder.select(builder.fcmp_ordered("<", bounded, _equal(LARGEST)), bounded, _equal(LARGEST))
    scaled = multiply_add(builder, bounded, _equal(LOG2_E), _equal(0.5))
    whole = call(builder, f"llvm.floor.v{LANES}f32", FLOATS, [scaled])
    r = multiply_add(builder, whole, _equal(-LN2_HIGH), bounded)
    r = multiply_add(builder, whole, _equal(-LN2_LOW), r)
    series = _equal(SERIES[-1])
    for coefficient in reversed(SERIES[:-1]):
        series = multiply_add(builder, series, r, _equal(coefficient))
    shifted = builder.add(builder.fptosi(whole, INTS), ir.Constant(INTS, [127] * LANES))
    power = builder.bitcast(builder.shl(shifted, ir.Constant(INTS, [23] * LANES)), FLOATS)
    small = builder.fcmp_ordered("<", x, _equal(SMALLEST))
    return builder.select(small, _equal(0.0), builder.fmul(series, power))


def _make_sum(term: Callable[[Any, Any, Any], Any], *, replace: bool = False) -> Any:
    """Σ term(value, shift) over 16·`count` values, at least one vector of them; `replace`: the terms are stored."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        values, at, count, shift = arguments
        start, shifts = pointer(context, builder, signature.args[0], values, at), spread(builder, shift)

        def body(index: Any, totals: list[Any]) -> list[Any]:
            place = builder.gep(start, [builder.mul(index, constant(LANES))])
            value = term(builder, load(builder, place, FLOATS, 0), shifts)
            if replace:
                store(builder, value, place, 0)
            return [builder.fadd(totals[0], value)]

        (total,) = loop(builder, count, [_equal(0.0)], body)
        return add_halves(builder, total)

    def sum_of(typing, values, at, count, shift):  # type: ignore[no-untyped-def]
        return types.float32(values, types.int64, types.int64, types.float32), generate

    return intrinsic(sum_of)


def _square(builder: Any, value: Any, shift: Any) -> Any:
    difference = builder.fsub(value, shift)
    return builder.fmul(difference, difference)


def _shifted_exponential(builder: Any, value: Any, shift: Any) -> Any:
    return _exponential(builder, builder.fsub(value, shift))


sum_of_differences = _make_sum(lambda builder, value, shift: builder.fsub(value, shift))
sum_of_squares = _make_sum(_square)
sum_of_exponentials = _make_sum(_shifted_exponential)
replace_by_exponentials = _make_sum(_shifted_exponential, replace=True)
