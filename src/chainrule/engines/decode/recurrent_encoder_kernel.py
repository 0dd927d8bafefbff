"""Recurrent layers over whole texts, from the left, or from both sides, in one compiled call.

R rows have T places each, of which a row uses the first count_R[r]. A layer multiplies the inputs of all places by the
weights of all its directions at once. Then every direction steps through some rows side by side, so that a step reads
its weights once for all of them. The states of the directions lie side by side, each as wide as its layer.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from chainrule.engines.decode.compiling import compiled
from chainrule.engines.decode.functions import ZERO
from chainrule.engines.decode.linear import FLOATS, aligned, apply_linear, rounded_up
from chainrule.engines.decode.maps import add, copy
from chainrule.engines.decode.recurrent_cells import GRU, activate_gru, finish_gru, step_cell
from chainrule.engines.decode.recurrent_kernel import CANDIDATE, EXTRA, HIDDEN, INTO
from chainrule.engines.decode.tiles import TILE_ROWS


class EncoderShape(IntEnum):
    """Entries of `shape`."""

    CELL = 0  # index of CELLS
    UNITS = 1  # width of a state, rounded up
    REAL = 2  # width of a state
    BLOCKS = 3  # blocks of the gates
    STATES = 4  # states of a layer
    LAYERS = 5
    SIDES = 6  # directions of a layer
    WIDTH = 7  # of the inputs


# As plain numbers, which kernels can use:
CELL, UNITS, REAL, BLOCKS, STATES, LAYERS, SIDES, WIDTH = range(8)


def make_room(shape: Any, items: int) -> tuple[Any, ...]:
    """The arrays of a call with `items` places."""
    U, G, sides = int(shape[UNITS]), int(shape[UNITS] * shape[BLOCKS]), int(shape[SIDES])
    widest = rounded_up(max(int(shape[WIDTH]), int(sides * shape[REAL])))
    own = aligned(TILE_ROWS * int(shape[STATES]) * U), aligned(TILE_ROWS * G), aligned(TILE_ROWS * U)
    spare = aligned(max(items, TILE_ROWS) * (max(widest, U) + 4), "uint8"), aligned(max(items, TILE_ROWS))
    return aligned(items * sides * G), own, spare


@compiled
def encode(model, inputs, sizes, count_R, states, last, room):  # type: ignore[no-untyped-def]
    """Read the inputs of all rows: write the states of the last layer, and those of all layers at the end.

    model     (shape, layers, weights): a row of `layers` for each direction of each layer; the first has the input
              weights of all directions of its layer
    inputs    R · T · WIDTH numbers
    sizes     (R, T)
    states    R · T · (SIDES · REAL) numbers; zeros beyond the end of a row
    last      R · LAYERS · STATES · (SIDES · REAL) numbers: after the last step of each direction
    """
    shape, layers, weights = model
    gates, _, spare = room
    R, T = sizes
    E, G = shape[SIDES] * shape[REAL], shape[UNITS] * shape[BLOCKS]
    for depth in range(shape[LAYERS]):
        into, wide = layers[depth * shape[SIDES], INTO], shape[SIDES] * G
        if depth:
            apply_linear(weights, into, states, 0, E, gates, 0, wide, R * T, spare)
        else:
            apply_linear(weights, into, inputs, 0, shape[WIDTH], gates, 0, wide, R * T, spare)
        for side in range(shape[SIDES]):
            for first in range(0, R, TILE_ROWS):
                _run(model, depth, side, first, min(TILE_ROWS, R - first), T, count_R, states, last, room)
    for row in range(R):
        for j in range((row * T + count_R[row]) * E, (row + 1) * T * E):
            states[j] = ZERO


@compiled
def _run(model, depth, side, first, rows, T, count_R, states, last, room):  # type: ignore[no-untyped-def]
    """One direction of one layer for some rows, from the empty state."""
    shape = model[0]
    state = room[1][0]
    U, V, E = shape[UNITS], shape[REAL], shape[SIDES] * shape[REAL]
    slots, longest = shape[STATES] * U, 0
    for j in range(rows * slots):
        state[j] = ZERO
    for row in range(first, first + rows):
        longest = max(longest, count_R[row])
    for t in range(longest):
        _step(model, depth, side, first, rows, T, t, count_R, room)
        for k in range(rows):
            row = first + k
            if t < count_R[row]:
                place = t if side == 0 else count_R[row] - 1 - t
                copy(state, k * slots, states, (row * T + place) * E + side * V, V)
    for k in range(rows):
        for part in range(shape[STATES]):
            place = ((first + k) * shape[LAYERS] + depth) * shape[STATES] + part
            copy(state, k * slots + part * U, last, place * E + side * V, V)


@compiled
def _step(model, depth, side, first, rows, T, t, count_R, room):  # type: ignore[no-untyped-def]
    """Step t of the rows that have not ended; the products are those of all."""
    shape, layers, weights = model
    gates, (state, sums, inner), spare = room
    layer, cell, U = layers[depth * shape[SIDES] + side], shape[CELL], shape[UNITS]
    G, slots = U * shape[BLOCKS], shape[STATES] * U
    gates_at = U if cell == GRU else 0
    apply_linear(weights, layer[HIDDEN], state, 0, slots, sums, gates_at, G, rows, spare)
    for k in range(rows):
        row = first + k
        if t < count_R[row]:
            place = t if side == 0 else count_R[row] - 1 - t
            at = ((row * T + place) * shape[SIDES] + side) * G
            if cell == GRU:
                add(sums, k * G + U, gates, at + U, 2 * U)
                activate_gru(sums, k * G, state, k * slots, U)
            else:
                step_cell(cell, sums, k * G, gates, at, weights[FLOATS], layer[EXTRA], state, k * slots, U)
    if cell != GRU:
        return
    apply_linear(weights, layer[CANDIDATE], sums, 2 * U, G, inner, 0, U, rows, spare)
    for k in range(rows):
        row = first + k
        if t < count_R[row]:
            place = t if side == 0 else count_R[row] - 1 - t
            add(inner, k * U, gates, ((row * T + place) * shape[SIDES] + side) * G, U)
            finish_gru(inner, k * U, sums, k * G + U, state, k * slots, U)
