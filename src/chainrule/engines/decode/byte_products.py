"""Products of some rows of 8-bit numbers with packed 8-bit weights, panel by panel, as in `products.py`."""

from __future__ import annotations

from chainrule.engines.decode.compiling import compiled, inlined
from chainrule.engines.decode.products import panel_size
from chainrule.engines.decode.tiles import (
    FULL_ROWS,
    TILE_ROWS,
    byte_tile_1x1,
    byte_tile_1x2,
    byte_tile_1x4,
    byte_tile_2_1,
    byte_tile_2_full,
    byte_tile_3_1,
    byte_tile_3_full,
    byte_tile_4_1,
    byte_tile_4_full,
    byte_tile_5_1,
    byte_tile_5_full,
    byte_tile_6_1,
    byte_tile_6_full,
)
from chainrule.engines.decode.vectors import LANES, PANEL


@compiled
def multiply_byte_rows(weights, at, columns, inputs, room, scales, outputs, out_at, out_step, rows, width):  # type: ignore[no-untyped-def]
    """outputs = scaled weight · inputs + bias for weights that begin at `at`, and rows of `room` inputs.

    columns    (integers, offset, floats, scale, bias): where the numbers of the first column are
    """
    integers, offset, floats, scale, bias = columns
    left, fours = width // LANES, room // 4
    while left > 0:
        size = panel_size(left)
        step, row = 4 * size * LANES, 0
        while row < rows:
            x, y, together = row * room, out_at + row * out_step, min(rows - row, TILE_ROWS)
            if together == 1 or (size == PANEL and together <= FULL_ROWS):
                terms = integers, offset, floats, scale, bias
                _full_tile(
                    together, size, weights, at, step, inputs, x, room, scales, row, terms, outputs, y, out_step, fours
                )
            else:
                for j in range(0, size * LANES, LANES):
                    terms = integers, offset + j, floats, scale + j, bias + j
                    _narrow_tile(
                        together,
                        weights,
                        at + 4 * j,
                        step,
                        inputs,
                        x,
                        room,
                        scales,
                        row,
                        terms,
                        outputs,
                        y + j,
                        out_step,
                        fours,
                    )
            row += together
        width = size * LANES
        at, offset, scale, bias, out_at = at + fours * step, offset + width, scale + width, bias + width, out_at + width
        left -= size


@inlined
def _full_tile(rows, size, weights, at, step, inputs, x, room, scales, row, terms, outputs, y, out_step, fours):  # type: ignore[no-untyped-def]
    """A whole panel times several rows, or any panel times one."""
    if rows == 6:
        byte_tile_6_full(weights, at, step, inputs, x, room, scales, row, terms, outputs, y, out_step, fours)
    elif rows == 5:
        byte_tile_5_full(weights, at, step, inputs, x, room, scales, row, terms, outputs, y, out_step, fours)
    elif rows == 4:
        byte_tile_4_full(weights, at, step, inputs, x, room, scales, row, terms, outputs, y, out_step, fours)
    elif rows == 3:
        byte_tile_3_full(weights, at, step, inputs, x, room, scales, row, terms, outputs, y, out_step, fours)
    elif rows == 2:
        byte_tile_2_full(weights, at, step, inputs, x, room, scales, row, terms, outputs, y, out_step, fours)
    elif size == 4:
        byte_tile_1x4(weights, at, step, inputs, x, room, scales, row, terms, outputs, y, out_step, fours)
    elif size == 2:
        byte_tile_1x2(weights, at, step, inputs, x, room, scales, row, terms, outputs, y, out_step, fours)
    else:
        byte_tile_1x1(weights, at, step, inputs, x, room, scales, row, terms, outputs, y, out_step, fours)


@inlined
def _narrow_tile(rows, weights, at, step, inputs, x, room, scales, row, terms, outputs, y, out_step, fours):  # type: ignore[no-untyped-def]
    """One vector of a panel times several rows."""
    if rows == 6:
        byte_tile_6_1(weights, at, step, inputs, x, room, scales, row, terms, outputs, y, out_step, fours)
    elif rows == 5:
        byte_tile_5_1(weights, at, step, inputs, x, room, scales, row, terms, outputs, y, out_step, fours)
    elif rows == 4:
        byte_tile_4_1(weights, at, step, inputs, x, room, scales, row, terms, outputs, y, out_step, fours)
    elif rows == 3:
        byte_tile_3_1(weights, at, step, inputs, x, room, scales, row, terms, outputs, y, out_step, fours)
    else:
        byte_tile_2_1(weights, at, step, inputs, x, room, scales, row, terms, outputs, y, out_step, fours)
