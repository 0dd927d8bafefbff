"""Products of some rows with packed weights in single precision, panel by panel.

Rows that are computed together share what is read of the weights: six of them, and for those that are left one tile of
their number. Every sum runs over its inputs in their order in all tiles, so the numbers are the same in each.
"""

from __future__ import annotations

from chainrule.engines.decode.compiling import compiled, inlined
from chainrule.engines.decode.tiles import (
    FULL_ROWS,
    TILE_ROWS,
    tile_1x1,
    tile_1x2,
    tile_1x4,
    tile_2_1,
    tile_2_full,
    tile_3_1,
    tile_3_full,
    tile_4_1,
    tile_4_full,
    tile_5_1,
    tile_5_full,
    tile_6_1,
    tile_6_full,
)
from chainrule.engines.decode.vectors import LANES, PANEL


@compiled
def multiply_rows(weights, at, bias, inputs, in_at, in_step, outputs, out_at, out_step, rows, count, width):  # type: ignore[no-untyped-def]
    """outputs = weight · inputs + bias, where the weights begin at `at` and have `count` inputs and `width` outputs."""
    left = width // LANES
    while left > 0:
        size = panel_size(left)
        step, row = size * LANES, 0
        while row < rows:
            x, y, together = in_at + row * in_step, out_at + row * out_step, min(rows - row, TILE_ROWS)
            if together == 1:
                multiply_row(weights, at, step, bias, inputs, x, outputs, y, count)
            elif size == PANEL and together <= FULL_ROWS:
                _full_tile(together, weights, at, step, bias, inputs, x, in_step, outputs, y, out_step, count)
            else:
                for j in range(0, step, LANES):
                    _narrow_tile(
                        together, weights, at + j, step, bias + j, inputs, x, in_step, outputs, y + j, out_step, count
                    )
            row += together
        at, bias, out_at, left = at + count * step, bias + step, out_at + step, left - size


@inlined
def panel_size(left):  # type: ignore[no-untyped-def]
    """Vectors of the next panel of a matrix that has `left` more; as in `panels`."""
    if left >= PANEL:
        return PANEL
    return 2 if left >= 2 else 1


@inlined
def _full_tile(rows, weights, at, step, bias, inputs, x, in_step, outputs, y, out_step, count):  # type: ignore[no-untyped-def]
    """A whole panel times several rows."""
    if rows == 6:
        tile_6_full(weights, at, step, bias, inputs, x, in_step, outputs, y, out_step, count)
    elif rows == 5:
        tile_5_full(weights, at, step, bias, inputs, x, in_step, outputs, y, out_step, count)
    elif rows == 4:
        tile_4_full(weights, at, step, bias, inputs, x, in_step, outputs, y, out_step, count)
    elif rows == 3:
        tile_3_full(weights, at, step, bias, inputs, x, in_step, outputs, y, out_step, count)
    else:
        tile_2_full(weights, at, step, bias, inputs, x, in_step, outputs, y, out_step, count)


@inlined
def _narrow_tile(rows, weights, at, step, bias, inputs, x, in_step, outputs, y, out_step, count):  # type: ignore[no-untyped-def]
    """One vector of a panel times several rows."""
    if rows == 6:
        tile_6_1(weights, at, step, bias, inputs, x, in_step, outputs, y, out_step, count)
    elif rows == 5:
        tile_5_1(weights, at, step, bias, inputs, x, in_step, outputs, y, out_step, count)
    elif rows == 4:
        tile_4_1(weights, at, step, bias, inputs, x, in_step, outputs, y, out_step, count)
    elif rows == 3:
        tile_3_1(weights, at, step, bias, inputs, x, in_step, outputs, y, out_step, count)
    else:
        tile_2_1(weights, at, step, bias, inputs, x, in_step, outputs, y, out_step, count)


@compiled
def multiply_row(weights, at, step, bias, inputs, in_at, outputs, out_at, count):  # type: ignore[no-untyped-def]
    """One row times one panel, `step` numbers wide."""
    if step == 4 * LANES:
        tile_1x4(weights, at, step, bias, inputs, in_at, 0, outputs, out_at, 0, count)
    elif step == 2 * LANES:
        tile_1x2(weights, at, step, bias, inputs, in_at, 0, outputs, out_at, 0, count)
    else:
        tile_1x1(weights, at, step, bias, inputs, in_at, 0, outputs, out_at, 0, count)
