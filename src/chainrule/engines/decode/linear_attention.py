"""Linear attention of one token after another: the past of a row is a matrix and a vector per head.

    S ← γ S + φ(k) vᵀ      z ← γ z + φ(k)      out = φ(q)·S / (φ(q)·z + TINY)      φ(x) = elu(x) + 1

The sums of a head lie together: the E rows of S, then z, each as wide as a head, rounded up. One pass over S updates it
and multiplies it by the query.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic

from chainrule.engines.decode.compiling import compiled
from chainrule.engines.decode.functions import ONE, ZERO, exponential
from chainrule.engines.decode.maps import add_decayed_vectors
from chainrule.engines.decode.vectors import (
    FLOATS,
    LANES,
    dot_1,
    load,
    loop,
    multiply_add,
    pointer,
    spread,
    store,
)

TINY = np.float32(1e-6)
"""Added to the divisor, as in `layers/attention/linear.py`."""


def sums_of_layer(heads: int, head_width: int, padded: int) -> int:
    """Numbers that a layer keeps of each row."""
    return heads * (head_width + 1) * padded


def _make_advance(vectors: int) -> Any:
    """S' = γ S + φ(k) vᵀ for 16·`vectors` columns, and factor · φ(q)·S'; S' may replace S."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        before, before_at, after, after_at, step, parts, query_at, key_at, value_at, count, *numbers = arguments
        decay, factor, mixed, mixed_at = numbers
        kinds = signature.args
        old, new = (
            pointer(context, builder, kinds[0], before, before_at),
            pointer(context, builder, kinds[2], after, after_at),
        )
        query, key, value = (pointer(context, builder, kinds[5], parts, at) for at in (query_at, key_at, value_at))
        out = pointer(context, builder, kinds[12], mixed, mixed_at)
        decays, values = spread(builder, decay), [load(builder, value, FLOATS, LANES * k) for k in range(vectors)]

        def body(index: Any, totals: list[Any]) -> list[Any]:
            shift = [builder.mul(index, step)]
            line, target = builder.gep(old, shift), builder.gep(new, shift)
            asked, known = (spread(builder, builder.load(builder.gep(part, [index]))) for part in (query, key))
            sums = []
            for k in range(vectors):
                term = builder.fmul(known, values[k])
                total = multiply_add(builder, decays, load(builder, line, FLOATS, LANES * k), term)
                store(builder, total, target, LANES * k)
                sums.append(multiply_add(builder, asked, total, totals[k]))
            return sums

        zeros = [ir.Constant(FLOATS, [0.0] * LANES)] * vectors
        scale = spread(builder, factor)
        for k, total in enumerate(loop(builder, count, zeros, body)):
            store(builder, builder.fmul(scale, total), out, LANES * k)
        return context.get_dummy_value()

    def advance(  # type: ignore[no-untyped-def]
        typing, before, before_at, after, after_at, step, parts, query_at, key_at, value_at, count, decay, factor,
        mixed, mixed_at
    ):  # fmt: skip
        """Rows of S are `step` numbers apart, and there are `count` of them, at least one."""
        long, float_ = types.int64, types.float32
        inner = before, long, after, long, long, parts, long, long, long, long, float_, float_, mixed, long
        return types.void(*inner), generate

    return intrinsic(advance)


_advance_4, _advance_2, _advance_1 = (_make_advance(vectors) for vectors in (4, 2, 1))


@compiled
def map_features(parts, at, count, width, padded):  # type: ignore[no-untyped-def]
    """Replace `count` values, heads side by side, by φ of them; what widens a head becomes 0."""
    part = parts[at : at + count]
    for j in range(len(part)):
        x = part[j]
        part[j] = x + ONE if x > ZERO else exponential(x)
    if width < padded:
        for head in range(at, at + count, padded):
            for j in range(head + width, head + padded):
                parts[j] = ZERO


@compiled
def advance_heads(before, before_at, after, after_at, parts, at, decays, sizes, mixed, mixed_at):  # type: ignore[no-untyped-def]
    """Read one token: the sums of all heads after it, from those before it, and what it attends to.

    before    the sums of a row begin at `before_at`; `after` may be the same
    parts     φ(q), φ(k) and v of the token, side by side
    decays    (floats, at): γ of each head
    sizes     (heads, width of a head, the same rounded up)
    """
    heads, width, padded = sizes
    floats, decay_at = decays
    X = heads * padded
    for head in range(heads):
        first, decay = head * (width + 1) * padded, floats[decay_at + head]
        query, key, value = at + head * padded, at + X + head * padded, at + 2 * X + head * padded
        norm_before, norm = before_at + first + width * padded, after_at + first + width * padded
        add_decayed_vectors(after, norm, before, norm_before, parts, key, padded // LANES, decay, ZERO)
        total = ZERO
        for j in range(0, padded, LANES):
            total += dot_1(parts, query + j, after, norm + j)
        factor, j = ONE / (total + TINY), 0
        while j < padded:
            left = (padded - j) // LANES
            old, new, own, out = before_at + first + j, after_at + first + j, value + j, mixed_at + head * padded + j
            if left >= 4:
                _advance_4(before, old, after, new, padded, parts, query, key, own, width, decay, factor, mixed, out)
                j += 4 * LANES
            elif left >= 2:
                _advance_2(before, old, after, new, padded, parts, query, key, own, width, decay, factor, mixed, out)
                j += 2 * LANES
            else:
                _advance_1(before, old, after, new, padded, parts, query, key, own, width, decay, factor, mixed, out)
                j += LANES
