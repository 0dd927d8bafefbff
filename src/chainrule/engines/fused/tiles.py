"""Products of small matrices, written as LLVM code: a tile is some rows times one or several vectors of 16 columns.

The sums of a tile stay in registers. The left factor has a step between rows and one between the terms of a sum, so
that it can be read transposed; the right one and the result are read and written by rows.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic

from chainrule.engines.decode.vectors import (
    FLOATS,
    LANES,
    WIDE,
    constant,
    load,
    loop,
    multiply_add,
    pointer,
    spread,
    store,
)

ROWS = 8
"""Rows of a tile of attention."""

TILE_ROWS, TILE_VECTORS = (6, 4) if WIDE else (6, 1)
"""Rows and vectors of the tile of large products: its sums, a line of the right factor and a number of the left one are
all registers that there are."""


def _make_tile(rows: int, vectors: int, *, adding: bool) -> Any:
    """The tile of `rows` × 16·`vectors` numbers; `adding`: to those of the base."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        left, left_at, row_step, term_step, right, right_at, right_step, _, _, out_at, out_step, count = arguments
        kinds = signature.args
        first = pointer(context, builder, kinds[0], left, left_at)
        lines = pointer(context, builder, kinds[4], right, right_at)
        sources, results = (pointer(context, builder, kinds[at], arguments[at], out_at) for at in (7, 8))
        reads = [builder.gep(first, [builder.mul(row_step, constant(r))]) for r in range(rows)]
        bases, writes = (
            [builder.gep(start, [builder.mul(out_step, constant(r))]) for r in range(rows)]
            for start in (sources, results)
        )
        zero = ir.Constant(FLOATS, [0.0] * LANES)
        places = [(r, LANES * k) for r in range(rows) for k in range(vectors)]
        begin = [load(builder, bases[r], FLOATS, at) if adding else zero for r, at in places]

        def body(index: Any, totals: list[Any]) -> list[Any]:
            line = builder.gep(lines, [builder.mul(index, right_step)])
            columns = [load(builder, line, FLOATS, LANES * k) for k in range(vectors)]
            shift = builder.mul(index, term_step)
            scales = [spread(builder, builder.load(builder.gep(read, [shift]))) for read in reads]
            pairs = [(scale, column) for scale in scales for column in columns]
            return [multiply_add(builder, *pair, total) for pair, total in zip(pairs, totals, strict=True)]

        for (r, at), total in zip(places, loop(builder, count, begin, body), strict=True):
            store(builder, total, writes[r], at)
        return context.get_dummy_value()

    def tile(  # type: ignore[no-untyped-def]
        typing, left, left_at, row_step, term_step, right, right_at, right_step, base, out, out_at, out_step, count
    ):
        """out[r] = base[r] + Σ left[r, k] · right[k] over k < count, which is at least 1; arrays are flat.

        `base` has the places of `out`, which it may be.
        """
        long = types.int64
        return types.void(left, long, long, long, right, long, long, base, out, long, long, long), generate

    return intrinsic(tile)


tile_2, tile_1 = (_make_tile(ROWS, vectors, adding=False) for vectors in (2, 1))
adding_tile_2, adding_tile_1 = (_make_tile(ROWS, vectors, adding=True) for vectors in (2, 1))

_SIZES = (TILE_VECTORS, max(TILE_VECTORS // 2, 1), 1)
full_tile, half_tile, slim_tile = (_make_tile(TILE_ROWS, size, adding=False) for size in _SIZES)
full_adding_tile, half_adding_tile, slim_adding_tile = (_make_tile(TILE_ROWS, size, adding=True) for size in _SIZES)
