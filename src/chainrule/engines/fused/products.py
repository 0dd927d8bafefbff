"""Matrix products of a training step on one core, at nearly the speed of its arithmetic.

    out = base + left · right, and then a function of every number

The right factor is copied into panels, as many columns as a tile has and a few hundred terms at a time. The
second-level cache holds a group of them while all rows pass (Goto & van de Geijn, "Anatomy of High-Performance Matrix
Multiplication", 2008). The left one is read where it lies; the first-level cache holds its rows of a tile for all
panels of a group. Both may be transposed: each has a step between rows and one between columns. What follows a product
is computed while a tile of it is in the first-level cache.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic

from chainrule.engines.decode.compiling import inlined
from chainrule.engines.decode.compiling import summing as compiled
from chainrule.engines.decode.functions import TWO, ZERO
from chainrule.engines.decode.linear import aligned
from chainrule.engines.decode.maps import copy
from chainrule.engines.decode.vectors import FLOATS, INTS, LANES, WIDE, constant, load, pointer, store
from chainrule.engines.fused.tiles import (
    TILE_ROWS,
    TILE_VECTORS,
    full_adding_tile,
    full_tile,
    half_adding_tile,
    half_tile,
    slim_adding_tile,
    slim_tile,
)

PANEL = TILE_VECTORS * LANES
"""Columns of a panel."""

BLOCK = 512
"""Terms of a panel."""

GROUP = 4 * PANEL if WIDE else 8 * PANEL
"""Columns of a group of panels, 512 and 256 kB."""

PLAIN, SQUARE, SLOPE = range(3)
"""What becomes of a product x: itself; max(x, 0)²; the gradient x·2√y of that, where y is the square."""


def workspace() -> tuple[np.ndarray[Any, Any], ...]:
    """Room for a group of panels, the last rows of the left factor, and a tile at the edge of the result."""
    return aligned(BLOCK * GROUP), aligned(TILE_ROWS * BLOCK), aligned(TILE_ROWS * PANEL)


@compiled
def multiply(left, row_step, term_step, right, right_step, column_step, base, out, shape, finish, squares, room):  # type: ignore[no-untyped-def]
    """out = finish(base + left · right).

    left      entry (row, term) is at row · row_step + term · term_step
    right     entry (term, column) is at term · right_step + column · column_step; one of these steps is 1
    base      as `out`, which it may be; empty: zeros
    shape     rows, terms and columns; at least one of each
    squares   as `out`, for SLOPE
    """
    rows, terms, columns = shape
    panels, lines, _ = room
    for first in range(0, columns, GROUP):
        last_column = min(first + GROUP, columns)
        for term in range(0, terms, BLOCK):
            count, adding, last = min(BLOCK, terms - term), term > 0 or base.size > 0, term + BLOCK >= terms
            begin, function = base if term == 0 else out, finish if last else PLAIN
            for column in range(first, last_column, PANEL):
                width, to = min(PANEL, columns - column), (column - first) * BLOCK
                source = term * right_step + column * column_step
                _pack(right, source, right_step, column_step, count, width, panels, to, _padded(width))
            for row in range(0, rows, TILE_ROWS):
                together, x = min(TILE_ROWS, rows - row), row * row_step + term * term_step
                if together < TILE_ROWS:
                    _copy_lines(left, x, row_step, term_step, lines, together, count)
                for column in range(first, last_column, PANEL):
                    size, at = (together, min(PANEL, columns - column), count), row * columns + column
                    to = (column - first) * BLOCK
                    if together == TILE_ROWS:
                        _block(left, x, row_step, term_step, to, adding, begin, out, at, columns, size, room)
                    else:
                        _block(lines, 0, BLOCK, 1, to, adding, begin, out, at, columns, size, room)
                    if function != PLAIN:
                        _finish(function, out, at, columns, size[0], size[1], squares)


@inlined
def _block(left, x, row_step, term_step, to, adding, base, out, at, step, size, room):  # type: ignore[no-untyped-def]
    """The numbers of a tile, which at the edges of the result are computed beside it."""
    panels, _, corner = room
    together, width, count = size
    padded = _padded(width)
    if together == TILE_ROWS and width == padded:
        _tile(padded, adding, left, x, row_step, term_step, panels, to, base, out, at, step, count)
    else:
        if adding:
            _copy_block(base, at, step, corner, 0, PANEL, together, width)
        _tile(padded, adding, left, x, row_step, term_step, panels, to, corner, corner, 0, PANEL, count)
        _copy_block(corner, 0, PANEL, out, at, step, together, width)


@inlined
def _padded(width):  # type: ignore[no-untyped-def]
    """The columns of the narrowest tile that holds `width`."""
    if width > PANEL // 2:
        return PANEL
    return PANEL // 2 if width > LANES else LANES


@inlined
def _tile(width, adding, left, at, row_step, term_step, panels, to, base, out, out_at, out_step, count):  # type: ignore[no-untyped-def]
    if width == PANEL:
        if adding:
            full_adding_tile(left, at, row_step, term_step, panels, to, width, base, out, out_at, out_step, count)
        else:
            full_tile(left, at, row_step, term_step, panels, to, width, base, out, out_at, out_step, count)
    elif width == LANES:
        if adding:
            slim_adding_tile(left, at, row_step, term_step, panels, to, width, base, out, out_at, out_step, count)
        else:
            slim_tile(left, at, row_step, term_step, panels, to, width, base, out, out_at, out_step, count)
    elif adding:
        half_adding_tile(left, at, row_step, term_step, panels, to, width, base, out, out_at, out_step, count)
    else:
        half_tile(left, at, row_step, term_step, panels, to, width, base, out, out_at, out_step, count)


@compiled
def _finish(kind, out, at, step, rows, width, squares):  # type: ignore[no-untyped-def]
    for row in range(rows):
        begin = at + row * step
        part = out[begin : begin + width]
        if kind == SQUARE:
            for j in range(len(part)):
                positive = max(part[j], ZERO)
                part[j] = positive * positive
        else:
            own = squares[begin : begin + width]
            for j in range(len(part)):
                part[j] *= TWO * np.sqrt(own[j])


# Copies


@compiled
def _pack(right, at, term_step, column_step, terms, width, panel, begin, padded):  # type: ignore[no-untyped-def]
    """Columns of the right factor, term by term; the panel has `padded` columns, of which the last are 0."""
    if column_step == 1:
        for term in range(terms):
            copy(right, at + term * term_step, panel, begin + term * padded, width)
            panel[begin + term * padded + width : begin + (term + 1) * padded] = ZERO
        return
    for column in range(0, padded, LANES):
        for term in range(0, terms, LANES):
            source, to = at + column * column_step + term, begin + term * padded + column
            if column + LANES <= width and term + LANES <= terms:
                transpose_vectors(right, source, column_step, panel, to, padded)
            else:
                _transpose(right, source, column_step, panel, to, padded, min(terms - term, LANES), width - column)


@compiled
def _transpose(right, at, step, panel, to, padded, terms, width):  # type: ignore[no-untyped-def]
    """LANES columns, of which `width` have numbers."""
    for column in range(LANES):
        for term in range(terms):
            panel[to + term * padded + column] = right[at + column * step + term] if column < width else ZERO


@compiled
def _copy_lines(left, at, row_step, term_step, lines, rows, terms):  # type: ignore[no-untyped-def]
    """Rows of the left factor, and zeros for those that a tile has beyond them."""
    for row in range(TILE_ROWS):
        for term in range(terms):
            lines[row * BLOCK + term] = left[at + row * row_step + term * term_step] if row < rows else ZERO


@compiled
def _copy_block(values, at, step, out, out_at, out_step, rows, width):  # type: ignore[no-untyped-def]
    for row in range(rows):
        copy(values, at + row * step, out, out_at + row * out_step, width)


def _transposed(builder: Any, lines: list[Any]) -> list[Any]:
    """The columns of 16 vectors of 16: halves change places, then halves of those, and so on."""
    size = LANES // 2
    while size:
        lanes = range(LANES)
        low = ir.Constant(INTS, [lane if not lane & size else lane - size + LANES for lane in lanes])
        high = ir.Constant(INTS, [lane + size if not lane & size else lane + LANES for lane in lanes])
        new = list(lines)
        for k in (k for k in lanes if not k & size):
            new[k] = builder.shuffle_vector(lines[k], lines[k + size], low)
            new[k + size] = builder.shuffle_vector(lines[k], lines[k + size], high)
        lines, size = new, size // 2
    return lines


def _transpose_vectors(typing, values, at, step, out, out_at, out_step):  # type: ignore[no-untyped-def]
    """out[j, k] = values[k, j] for 16 × 16 numbers."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        values, at, step, out, out_at, out_step = arguments
        source = pointer(context, builder, signature.args[0], values, at)
        target = pointer(context, builder, signature.args[3], out, out_at)
        reads = [builder.gep(source, [builder.mul(step, constant(k))]) for k in range(LANES)]
        for k, line in enumerate(_transposed(builder, [load(builder, read, FLOATS, 0) for read in reads])):
            store(builder, line, builder.gep(target, [builder.mul(out_step, constant(k))]), 0)
        return context.get_dummy_value()

    long = types.int64
    return types.void(values, long, long, out, long, long), generate


transpose_vectors: Any = intrinsic(_transpose_vectors)
