"""Products of small matrices, written as LLVM code: a tile is 8 rows times one or two vectors of 16 columns.

The sums of a tile stay in registers. Neither factor is packed: the left one has a step between rows and one between the
terms of a sum, so that it can be read transposed; the right one and the result are read and written by rows.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic

from chainrule.engines.decode.vectors import FLOATS, LANES, constant, load, loop, multiply_add, pointer, spread, store

ROWS = 8
"""Rows of a tile."""


def _make_tile(vectors: int, *, adding: bool) -> Any:
    """The tile of 8 × 16·`vectors` numbers; `adding`: to those that the result holds."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        left, left_at, row_step, term_step, right, right_at, right_step, out, out_at, out_step, count = arguments
        kinds = signature.args
        first = pointer(context, builder, kinds[0], left, left_at)
        lines = pointer(context, builder, kinds[4], right, right_at)
        result = pointer(context, builder, kinds[7], out, out_at)
        reads = [builder.gep(first, [builder.mul(row_step, constant(r))]) for r in range(ROWS)]
        writes = [builder.gep(result, [builder.mul(out_step, constant(r))]) for r in range(ROWS)]
        zero = ir.Constant(FLOATS, [0.0] * LANES)
        places = [(write, LANES * k) for write in writes for k in range(vectors)]
        begin = [load(builder, write, FLOATS, at) if adding else zero for write, at in places]

        def body(index: Any, totals: list[Any]) -> list[Any]:
            line = builder.gep(lines, [builder.mul(index, right_step)])
            columns = [load(builder, line, FLOATS, LANES * k) for k in range(vectors)]
            shift = builder.mul(index, term_step)
            scales = [spread(builder, builder.load(builder.gep(read, [shift]))) for read in reads]
            pairs = [(scale, column) for scale in scales for column in columns]
            return [multiply_add(builder, *pair, total) for pair, total in zip(pairs, totals, strict=True)]

        for (write, at), total in zip(places, loop(builder, count, begin, body), strict=True):
            store(builder, total, write, at)
        return context.get_dummy_value()

    def tile(  # type: ignore[no-untyped-def]
        typing, left, left_at, row_step, term_step, right, right_at, right_step, out, out_at, out_step, count
    ):
        """out[r] = Σ left[r, k] · right[k] over k < count, which is at least 1; arrays are flat."""
        long = types.int64
        return types.void(left, long, long, long, right, long, long, out, long, long, long), generate

    return intrinsic(tile)


tile_2, tile_1 = (_make_tile(vectors, adding=False) for vectors in (2, 1))
adding_tile_2, adding_tile_1 = (_make_tile(vectors, adding=True) for vectors in (2, 1))
