"""Recurrent layers that read whole texts, compiled: encoders and taggers, from the left or from both sides.

    engine = CompiledEncoder(weights)                           # once for each model; takes `EncoderWeights`
    states_RTE, last = engine.read(inputs_RTD, count_R)

A text has the same numbers alone, beside others, and with any padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from chainrule.engines.decode import recurrent_encoder_kernel as kernel
from chainrule.engines.decode.linear import Packer, multiplications, rounded_up
from chainrule.engines.decode.recurrent_weights import CELLS, CellWeights
from chainrule.engines.decode.room import Room
from chainrule.engines.decode.shares import row_cuts, run_shares
from chainrule.engines.decode.weights import Linear, pad_heads

Array = np.ndarray[Any, Any]

PLACES_PER_CALL = 2048
"""Places that one call of the kernel reads, about, which bounds its memory; dividing a batch changes no number."""


@dataclass(frozen=True)
class EncoderWeights:
    """The parameters of recurrent layers: for each layer its directions, the one from the left first."""

    cell: str  # one of CELLS
    layers: Sequence[Sequence[CellWeights]]

    @property
    def units(self) -> int:
        """Width of the state of a direction."""
        return int(self.layers[0][0].hidden_GU.shape[1])


class CompiledEncoder:
    """The packed weights of recurrent layers."""

    def __init__(self, weights: EncoderWeights, precision: str = "float32") -> None:
        packer = Packer(int8=precision == "int8")
        self.model = pack_encoder(packer, weights), packer.weights()
        self.width, self._room = len(weights.layers[0]) * weights.units, Room()
        self.layers, self.states = len(weights.layers), 2 if weights.cell.startswith("lstm") else 1

    def read(self, inputs_RTD: Array, count_R: Array) -> tuple[Array, Array]:
        """Read the first count_R places of each row -> the states at all places, RTE, and the last ones, RLXE.

        E is the width of all directions. X counts the states of the cell, h and for some c. States of the last layer
        beyond the end of a row are zero.
        """
        R, T, _ = inputs_RTD.shape
        inputs_RTD = np.ascontiguousarray(inputs_RTD, np.float32)
        states_RTE = np.empty((R, T, self.width), np.float32)
        last_RLXE = np.empty((R, self.layers, self.states, self.width), np.float32)
        (shape, layers), packed = self.model

        def read(begin: int, end: int) -> None:
            most = max(1, PLACES_PER_CALL // max(1, T))
            for first in range(begin, end, most):
                part = slice(first, min(first + most, end))
                rows = part.stop - first
                kernel.encode(
                    (shape, layers, packed),
                    inputs_RTD[part].reshape(-1),
                    (rows, T),
                    count_R[part],
                    states_RTE[part].reshape(-1),
                    last_RLXE[part].reshape(-1),
                    self._room.arrays(kernel.make_room, shape, rows * T),
                )

        run_shares(read, row_cuts(R, T * multiplications(packed)))
        return states_RTE, last_RLXE


def pack_encoder(packer: Packer, weights: EncoderWeights) -> tuple[Array, Array]:
    """The shape and the layers as the kernel takes them."""
    Shape, first, units = kernel.EncoderShape, weights.layers[0][0], weights.units
    shape = np.zeros(len(Shape), np.int64)
    shape[Shape.CELL], shape[Shape.REAL], shape[Shape.UNITS] = CELLS.index(weights.cell), units, rounded_up(units)
    shape[Shape.BLOCKS], shape[Shape.STATES] = len(first.hidden_GU) // units, 2 if weights.cell[:4] == "lstm" else 1
    shape[Shape.LAYERS], shape[Shape.SIDES] = len(weights.layers), len(weights.layers[0])
    shape[Shape.WIDTH] = first.into.weight_XD.shape[1]
    rows = [row for sides in weights.layers for row in _pack_layer(packer, weights.cell, sides)]
    return shape, np.array(rows, np.int64)


def _pack_layer(packer: Packer, cell: str, sides: Sequence[CellWeights]) -> list[list[int]]:
    units = int(sides[0].hidden_GU.shape[1])
    wide, blocks = rounded_up(units), len(sides[0].hidden_GU) // units
    into = [pad_gates(side.into, blocks, units, wide) for side in sides]
    bias = np.concatenate([np.zeros(len(one.weight_XD)) if one.bias_X is None else one.bias_X for one in into])
    number = packer.linear(np.concatenate([one.weight_XD for one in into]), bias)
    rows = []
    for side in sides:
        hidden = pad_gates(Linear(side.hidden_GU), blocks, units, wide).weight_XD
        parts = [hidden[wide:], hidden[:wide]] if cell == "gru" else [hidden]
        extra = side.extra
        if extra is not None:
            extra = pad_heads(extra.reshape(-1), extra.size // units, units, wide)
        row = [number, *map(packer.linear, parts), -1]
        rows.append([*row[:3], packer.table(extra)])
    return rows


def pad_gates(layer: Linear, blocks: int, units: int, wide: int) -> Linear:
    """A projection to gates, each block widened to a multiple of the lanes."""
    bias_X = None if layer.bias_X is None else pad_heads(layer.bias_X, blocks, units, wide)
    return Linear(pad_heads(layer.weight_XD, blocks, units, wide), bias_X)
