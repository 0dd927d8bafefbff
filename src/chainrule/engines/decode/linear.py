"""Linear layers over packed weights, in single precision or with 8-bit weights and inputs.

A matrix is packed into panels: the columns whose sums are in registers at the same time, input by input, so that a
product reads the weights as one stream. A row of `linears` describes a layer: see `Field`.

Every output is the sum over its inputs in their order, whatever the number of rows. So the numbers of a row do not
depend on its neighbours or on how many tokens are read at once: exactly, not only within rounding.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np

from chainrule.engines.decode import tiles
from chainrule.engines.decode.byte_products import multiply_byte_rows
from chainrule.engines.decode.compiling import compiled
from chainrule.engines.decode.maps import round_vectors
from chainrule.engines.decode.products import multiply_rows
from chainrule.engines.decode.vectors import LANES, PANEL, largest_size

Array = np.ndarray[Any, Any]


class Field(IntEnum):
    """Columns of `linears`."""

    BYTES = 0  # 1: 8-bit weights
    AT = 1  # first weight, in `floats` or `bytes`
    BIAS = 2  # first bias in `floats`; a layer without has zeros
    SCALE = 3  # 8-bit weights: first scale in `floats`
    OFFSET = 4  # 8-bit weights: first column sum in `integers`
    INPUTS = 5
    OUTPUTS = 6  # a multiple of LANES


BYTES, AT, BIAS, SCALE, OFFSET, INPUTS, OUTPUTS = (int(field) for field in Field)
STEPS_OF_BYTES = np.float32(127)
HALF, SHIFT, TINY = np.float32(0.5), np.int32(128), np.float32(1e-30)


def rounded_up(count: int, multiple: int = LANES) -> int:
    """The least multiple that is no smaller than `count`."""
    return -(-count // multiple) * multiple


class Packer:
    """Collects the arrays of a model: weights, biases, scales and tables, each in one flat array of its type."""

    def __init__(self, *, int8: bool = False) -> None:
        self.int8 = int8
        self.floats, self.bytes, self.integers = _Pile(np.float32), _Pile(np.int8), _Pile(np.int32)
        self._linears: list[list[int]] = []

    def weights(self) -> tuple[Array, Array, Array, Array]:
        """All that was packed, as kernels take it."""
        linears = np.array(self._linears, np.int64).reshape(-1, len(Field))
        return linears, self.floats.array(), self.bytes.array(), self.integers.array()

    def table(self, values: Array | None) -> int:
        """Keep some numbers -> the index of the first in `floats`; -1 without any."""
        return -1 if values is None else self.floats.add(np.ascontiguousarray(values, np.float32).ravel())

    def linear(self, weight_XD: Array, bias_X: Array | None = None) -> int:
        """Pack a layer -> its index in `linears`."""
        outputs = rounded_up(len(weight_XD))
        weight = np.zeros((outputs, weight_XD.shape[1]), np.float32)
        weight[: len(weight_XD)] = weight_XD
        padded_X = np.zeros(outputs, np.float32)
        padded_X[: len(weight_XD)] = 0 if bias_X is None else bias_X
        bias = self.table(padded_X)
        place = self._pack_bytes(weight) if self.int8 else (0, self.floats.add(pack_floats(weight)), -1, -1)
        kind, at, scale, offset = place
        self._linears.append([kind, at, bias, scale, offset, weight.shape[1], outputs])
        return len(self._linears) - 1

    def _pack_bytes(self, weight_XD: Array) -> tuple[int, int, int, int]:
        quantised, scale_X = quantise(weight_XD)
        offset = self.integers.add(quantised.sum(1, dtype=np.int32) * SHIFT)
        return 1, self.bytes.add(pack_bytes(quantised)), self.floats.add(scale_X), offset


def quantise(weight_XD: Array) -> tuple[Array, Array]:
    """8-bit weights and the scale of each row: weight ≈ scale · quantised, with an error of at most scale / 2."""
    scale_X = np.maximum(np.abs(weight_XD).max(1), TINY) / STEPS_OF_BYTES
    return np.rint(weight_XD / scale_X[:, None]).astype(np.int8), scale_X.astype(np.float32)


def panels(outputs: int) -> list[int]:
    """Vectors of each panel of a matrix: PANEL, and smaller ones for the rest."""
    whole, rest = divmod(outputs // LANES, PANEL)
    return [PANEL] * whole + [size for size in (2, 1) if rest & size]


def pack_floats(weight_XD: Array) -> Array:
    """The panels of a matrix, each input by input."""
    parts, column = [], 0
    for size in panels(len(weight_XD)):
        parts.append(weight_XD[column : column + size * LANES].T.ravel())
        column += size * LANES
    return np.concatenate(parts)


def pack_bytes(weight_XD: Array, *, pairs: bool = tiles.byte_arithmetic.pairs) -> Array:
    """The panels of 8-bit weights: for every four inputs the four weights of each column, or two of each, twice."""
    inputs = rounded_up(weight_XD.shape[1], 4)
    padded = np.zeros((len(weight_XD), inputs), np.int8)
    padded[:, : weight_XD.shape[1]] = weight_XD
    parts, column = [], 0
    order = (2, 0, 3, 1, 4) if pairs else (2, 0, 1, 3, 4)
    for size in panels(len(weight_XD)):
        part = padded[column : column + size * LANES].reshape(size, LANES, inputs // 4, 2, 2)
        parts.append(part.transpose(order).ravel())
        column += size * LANES
    return np.concatenate(parts)


class _Pile:
    """Arrays of one type, to be concatenated; each starts at a multiple of 64 bytes."""

    def __init__(self, kind: type[Any]) -> None:
        self.kind, self.size, self.parts = kind, 0, list[Array]()

    def add(self, values: Array) -> int:
        at, multiple = self.size, 64 // np.dtype(self.kind).itemsize
        self.parts.append(values.astype(self.kind, copy=False))
        self.parts.append(np.zeros(rounded_up(len(values), multiple) - len(values), self.kind))
        self.size = at + rounded_up(len(values), multiple)
        return at

    def array(self) -> Array:
        """All of them, aligned to 64 bytes, so that no vector crosses a cache line."""
        joined = aligned(self.size, self.kind)
        if self.parts:
            np.concatenate(self.parts, out=joined)
        self.parts.clear()
        return joined


def multiplications(weights: tuple[Array, ...]) -> int:
    """What all layers of a `Packer` need for one row."""
    return int((weights[0][:, Field.INPUTS] * weights[0][:, Field.OUTPUTS]).sum())


def aligned(size: int, kind: Any = np.float32) -> Array:
    """A new array whose first entry is at a multiple of 64 bytes; it has at least one entry."""
    item = np.dtype(kind).itemsize
    raw = np.empty(max(size, 1) * item + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + max(size, 1) * item].view(kind)[:size] if size else raw[start : start + item].view(kind)


# Kernels


LINEARS, FLOATS, BYTE_WEIGHTS, INTEGERS = range(4)
"""Parts of `weights`: the descriptions of the layers, and the arrays of a `Packer`."""


@compiled
def apply_linear(weights, number, inputs, in_at, in_step, outputs, out_at, out_step, rows, spare):  # type: ignore[no-untyped-def]
    """outputs = weight · inputs + bias for some rows; `spare` is room for 8-bit inputs and their scales."""
    linears, floats, bytes_, integers = weights
    quantised, scales = spare
    layer = linears[number]
    count, width = layer[INPUTS], layer[OUTPUTS]
    if layer[BYTES]:
        room = quantise_rows(inputs, in_at, in_step, rows, count, quantised, scales)
        columns = integers, layer[OFFSET], floats, layer[SCALE], layer[BIAS]
        multiply_byte_rows(bytes_, layer[AT], columns, quantised, room, scales, outputs, out_at, out_step, rows, width)
    else:
        at, bias = layer[AT], layer[BIAS]
        multiply_rows(floats, at, bias, inputs, in_at, in_step, outputs, out_at, out_step, rows, count, width)


@compiled
def quantise_rows(inputs, in_at, in_step, rows, count, quantised, scales):  # type: ignore[no-untyped-def]
    """The inputs as unsigned 8-bit numbers, input ≈ scale · (number - 128) -> the numbers per row."""
    room = -(-count // 4) * 4
    for row in range(rows):
        at, out = in_at + row * in_step, row * room
        size, whole = TINY, count // LANES
        if whole:
            size = max(size, largest_size(inputs, at, whole))
        for j in range(whole * LANES, count):
            size = max(size, abs(inputs[at + j]))
        scales[row] = size / STEPS_OF_BYTES
        factor = STEPS_OF_BYTES / size
        if whole:
            round_vectors(quantised, out, inputs, at, inputs, at, whole, factor, HALF)
        for j in range(whole * LANES, count):
            quantised[out + j] = np.int32(np.floor(inputs[at + j] * factor + HALF)) + SHIFT
        for j in range(count, room):
            quantised[out + j] = SHIFT
    return room
