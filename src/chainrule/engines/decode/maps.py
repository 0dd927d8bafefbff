"""Functions of each number of a run, written as LLVM code: numba's own loops over parts of arrays test every index.

`NAME_vectors` works on whole vectors; `add`, `copy`, `scale` and `subtract` on any number of entries.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic

from chainrule.engines.decode.compiling import compiled
from chainrule.engines.decode.vectors import (
    BYTE,
    FLOATS,
    INTS,
    LANES,
    call,
    constant,
    load,
    loop,
    multiply_add,
    pointer,
    spread,
    store,
)

Function = Callable[[Any, Any, Any, Any, Any], Any]
"""The builder, vectors x and y, and vectors of the numbers a and b -> a vector."""


def _make_map(function: Function) -> Any:
    """out = function(x, y, a, b) for 16·`count` numbers, at least one vector of them; `out` may be x or y."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        out, out_at, x, x_at, y, y_at, count, a, b = arguments
        kinds = signature.args
        target = pointer(context, builder, kinds[0], out, out_at)
        one = pointer(context, builder, kinds[2], x, x_at)
        other = pointer(context, builder, kinds[4], y, y_at)
        numbers = spread(builder, a), spread(builder, b)

        def body(index: Any, _: list[Any]) -> list[Any]:
            shift = [builder.mul(index, constant(LANES))]
            first, second = (load(builder, builder.gep(start, shift), FLOATS, 0) for start in (one, other))
            store(builder, function(builder, first, second, *numbers), builder.gep(target, shift), 0)
            return []

        loop(builder, count, [], body)
        return context.get_dummy_value()

    def mapped(typing, out, out_at, x, x_at, y, y_at, count, a, b):  # type: ignore[no-untyped-def]
        long, float_ = types.int64, types.float32
        return types.void(out, long, x, long, y, long, long, float_, float_), generate

    return intrinsic(mapped)


def _normalised(builder: Any, x: Any, y: Any, mean: Any, factor: Any) -> Any:
    return builder.fmul(builder.fmul(builder.fsub(x, mean), factor), y)


def _rounded(builder: Any, x: Any, y: Any, factor: Any, half: Any) -> Any:
    """The nearest integers of factor · x as unsigned 8-bit numbers, 0 becoming 128."""
    nearest = call(builder, f"llvm.floor.v{LANES}f32", FLOATS, [builder.fadd(builder.fmul(x, factor), half)])
    shifted = builder.add(builder.fptosi(nearest, INTS), ir.Constant(INTS, [128] * LANES))
    return builder.trunc(shifted, ir.VectorType(BYTE, LANES))


add_decayed_vectors = _make_map(lambda builder, x, y, a, b: multiply_add(builder, a, x, y))
add_vectors = _make_map(lambda builder, x, y, a, b: builder.fadd(x, y))
copy_vectors = _make_map(lambda builder, x, y, a, b: x)
scale_vectors = _make_map(lambda builder, x, y, a, b: builder.fmul(x, a))
subtract_vectors = _make_map(lambda builder, x, y, a, b: builder.fsub(x, a))
weigh_differences = _make_map(lambda builder, x, y, a, b: builder.fmul(y, builder.fsub(x, a)))
normalise_vectors = _make_map(_normalised)
round_vectors = _make_map(_rounded)


@compiled
def add(sums, sums_at, terms, terms_at, count):  # type: ignore[no-untyped-def]
    """sums += terms."""
    whole = count // LANES
    if whole:
        add_vectors(sums, sums_at, sums, sums_at, terms, terms_at, whole, 0.0, 0.0)
    for j in range(whole * LANES, count):
        sums[sums_at + j] += terms[terms_at + j]


@compiled
def copy(values, at, out, out_at, count):  # type: ignore[no-untyped-def]
    """out = values."""
    whole = count // LANES
    if whole:
        copy_vectors(out, out_at, values, at, values, at, whole, 0.0, 0.0)
    for j in range(whole * LANES, count):
        out[out_at + j] = values[at + j]


@compiled
def scale(values, at, factor, out, out_at, count):  # type: ignore[no-untyped-def]
    """out = factor · values."""
    whole = count // LANES
    if whole:
        scale_vectors(out, out_at, values, at, values, at, whole, factor, 0.0)
    for j in range(whole * LANES, count):
        out[out_at + j] = factor * values[at + j]


@compiled
def subtract(values, at, term, out, out_at, count):  # type: ignore[no-untyped-def]
    """out = values - term."""
    whole = count // LANES
    if whole:
        subtract_vectors(out, out_at, values, at, values, at, whole, term, 0.0)
    for j in range(whole * LANES, count):
        out[out_at + j] = values[at + j] - term
