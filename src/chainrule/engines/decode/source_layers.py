"""Linear layers that read the same rows, compiled, such as those that make the keys and values of a source.

    engine = CompiledLayers([keys, values])
    keys_NX, values_NX = engine.apply(states_NE)

Results are as wide as their layer, rounded up to a multiple of LANES. The numbers of a row never depend on the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from chainrule.engines.decode.compiling import compiled
from chainrule.engines.decode.linear import (
    INPUTS,
    LINEARS,
    OUTPUTS,
    Packer,
    aligned,
    apply_linear,
    multiplications,
    rounded_up,
)
from chainrule.engines.decode.recurrent_weights import AttentionWeights
from chainrule.engines.decode.shares import row_cuts, run_shares
from chainrule.engines.decode.weights import Linear

Array = np.ndarray[Any, Any]

NO_BYTES = aligned(0, np.uint8), aligned(0)
"""Layers are kept in single precision: nothing is rounded to bytes."""


class CompiledLayers:
    """The packed weights of some layers."""

    def __init__(self, layers: Sequence[Linear]) -> None:
        packer = Packer()
        self._numbers = np.array([packer.linear(layer.weight_XD, layer.bias_X) for layer in layers])
        self._weights = packer.weights()
        self._widths = self._weights[LINEARS][:, OUTPUTS].tolist()
        self._work = multiplications(self._weights)

    def apply(self, inputs: Array) -> list[Array]:
        """The outputs of each layer for vectors in any shape, of which the last dimension is theirs."""
        rows_NX = np.ascontiguousarray(inputs, np.float32).reshape(-1, inputs.shape[-1])
        found = [np.empty((len(rows_NX), width), np.float32) for width in self._widths]

        def apply(begin: int, end: int) -> None:
            rows = rows_NX[begin:end].reshape(-1)
            outputs = tuple(one[begin:end].reshape(-1) for one in found)
            _apply(self._weights, self._numbers, rows, outputs, end - begin, NO_BYTES)

        run_shares(apply, row_cuts(len(rows_NX), self._work))
        return [one.reshape(*inputs.shape[:-1], -1) for one in found]


class SourceLayers:
    """What makes the keys and values of sources for attention whose queries are `units` wide, rounded up."""

    def __init__(self, attention: AttentionWeights) -> None:
        assert attention.values is not None
        self._projected = attention.keys is not None
        self._layers = CompiledLayers([attention.values, *([attention.keys] if attention.keys is not None else [])])

    def read(self, states_ASE: Array) -> tuple[Array, Array]:
        """Keys and values of all places of encoded sources -> ASX, ASX."""
        values_ASX, *keys = self._layers.apply(states_ASE)
        return (keys[0] if self._projected else _widened(states_ASE)), values_ASX


def _widened(states_ASE: Array) -> Array:
    """Vectors without gaps, rounded up to a multiple of LANES."""
    more = rounded_up(states_ASE.shape[2]) - states_ASE.shape[2]
    return np.pad(states_ASE, ((0, 0), (0, 0), (0, more))) if more else np.ascontiguousarray(states_ASE)


@compiled
def _apply(weights, numbers, rows, outputs, count, spare):  # type: ignore[no-untyped-def]
    for k in range(len(outputs)):
        layer = weights[LINEARS][numbers[k]]
        width = layer[OUTPUTS]
        apply_linear(weights, numbers[k], rows, 0, layer[INPUTS], outputs[k], 0, width, count, spare)
