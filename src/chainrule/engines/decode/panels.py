"""Parts of packed matrices: the panels in reverse order, the place of some columns, and the matrix itself."""

from __future__ import annotations

from typing import Any

import numpy as np

from chainrule.engines.decode.compiling import compiled
from chainrule.engines.decode.linear import AT, BIAS, BYTES, FLOATS, INPUTS, LINEARS, OUTPUTS, apply_linear, panels
from chainrule.engines.decode.products import multiply_row
from chainrule.engines.decode.vectors import LANES, PANEL

Array = np.ndarray[Any, Any]


def unpack_floats(packed: Array, outputs: int, inputs: int) -> Array:
    """The matrix whose panels begin at packed[0]."""
    weight_XD, column, at = np.empty((outputs, inputs), np.float32), 0, 0
    for size in panels(outputs):
        step = size * LANES
        weight_XD[column : column + step] = packed[at : at + inputs * step].reshape(inputs, step).T
        column, at = column + step, at + inputs * step
    return weight_XD


@compiled
def place_of(vector, vectors, count):  # type: ignore[no-untyped-def]
    """Where the weights of a vector of columns begin, and the distance of two inputs: the width of its panel."""
    begin, size = 0, PANEL
    while vector >= begin + size or vectors - begin < size:
        if vectors - begin < size:
            size //= 2
        else:
            begin += size
    return begin * LANES * count + (vector - begin) * LANES, size * LANES


@compiled
def apply_linear_backwards(weights, number, inputs, in_at, outputs, out_at, spare):  # type: ignore[no-untyped-def]
    """`apply_linear` for one row, from the last panel to the first: it begins with what was read last before.

    8-bit weights, a quarter of the size, are read in their order.
    """
    layer, floats = weights[LINEARS][number], weights[FLOATS]
    if layer[BYTES]:
        apply_linear(weights, number, inputs, in_at, 0, outputs, out_at, 0, 1, spare)
        return
    count, vectors = layer[INPUTS], layer[OUTPUTS] // LANES
    vector = vectors
    while vector > 0:
        at, step = place_of(vector - 1, vectors, count)
        size = step // LANES
        first = vector - size
        at -= (size - 1) * LANES
        at, bias, out = at + layer[AT], layer[BIAS] + first * LANES, out_at + first * LANES
        multiply_row(floats, at, step, bias, inputs, in_at, outputs, out, count)
        vector = first
