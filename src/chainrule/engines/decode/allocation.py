"""The allocation of a hybrid, compiled: what each position of a target consists of, before any of it is known.

    engine = CompiledAllocation(weights)                        # takes `AllocationWeights`
    keys_ASX, values_ASX = engine.read(states_ASE)
    aligned_ATD = engine.align(keys_ASX, values_ASX, count_A, 0, 20, threshold=0.01)

The formulas are in `layers/nonautoregressive/allocation.py`. The features of a position depend on its source alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from chainrule.engines.decode.attention import weigh
from chainrule.engines.decode.compiling import compiled
from chainrule.engines.decode.functions import ONE, ZERO
from chainrule.engines.decode.linear import aligned, rounded_up
from chainrule.engines.decode.room import Room
from chainrule.engines.decode.shares import row_cuts, run_shares
from chainrule.engines.decode.source_attention import dot, mix_values
from chainrule.engines.decode.source_layers import CompiledLayers
from chainrule.engines.decode.vectors import LANES
from chainrule.engines.decode.weights import Linear

Array = np.ndarray[Any, Any]

FIRST_POSITIONS = 64
"""Positions whose queries are computed at first; more are added on demand."""


@dataclass(frozen=True)
class AllocationWeights:
    """The parameters of an allocation."""

    positions: Callable[[int], Array]  # the vectors of at least the first numbers, from 0 on
    query: Linear
    scale: float
    key: Linear
    value: Linear
    bias_C: Array  # by distance, from the longest to the left on


class CompiledAllocation:
    """The packed weights of an allocation, and the queries of its first positions."""

    def __init__(self, weights: AllocationWeights) -> None:
        self.width = len(weights.value.weight_XD)
        self._weights, self._layers = weights, CompiledLayers([weights.key, weights.value])
        self._ask = CompiledLayers([weights.query])
        self._bias, self._room = np.ascontiguousarray(weights.bias_C, np.float32), Room()
        self._query_TX = self._queries(FIRST_POSITIONS)

    def _queries(self, count: int) -> Array:
        (query_TX,) = self._ask.apply(self._weights.positions(count)[:count])
        return query_TX * np.float32(self._weights.scale)

    def read(self, states_ASE: Array) -> tuple[Array, Array]:
        """Keys and values of all places of encoded sources -> ASX, ASX."""
        keys_ASX, values_ASX = self._layers.apply(states_ASE)
        return keys_ASX, values_ASX

    def align(
        self, keys_ASX: Array, values_ASX: Array, count_A: Array, first: int, count: int, threshold: float
    ) -> Array:
        """The features of `count` positions from `first` on, of sources of `count_A` places -> ATD."""
        if first + count > len(self._query_TX):
            self._query_TX = self._queries(max(first + count, 2 * len(self._query_TX)))
        A, S, X = keys_ASX.shape
        aligned_ATX, order_S = np.empty((A, count, X), np.float32), np.arange(S, dtype=np.int32)
        queries = self._query_TX[first : first + count].reshape(-1)

        def align(begin: int, end: int) -> None:
            sources = keys_ASX[begin:end].reshape(-1), values_ASX[begin:end].reshape(-1), count_A[begin:end], order_S
            (scores,) = self._room.arrays(_make_room, self, S)
            out, least = aligned_ATX[begin:end].reshape(-1), np.float32(threshold)
            _align(queries, sources, self._bias, (first, count, S, X), least, scores, out)

        run_shares(align, row_cuts(A, 2 * count * S * X))
        return aligned_ATX[:, :, : self.width]


def _make_room(_: CompiledAllocation, places: int) -> tuple[Any, ...]:
    """The scores of a position."""
    return (aligned(rounded_up(places)),)


@compiled
def _align(queries, sources, bias, sizes, threshold, scores, out):  # type: ignore[no-untyped-def]
    """Write the features of all positions.

    sources   (keys, values, count_A, order_S): S · X numbers apart
    bias      by the distance of target and source position; the longest are at its ends
    sizes     (first, T, S, X): T positions from `first` on
    """
    keys, values, count_A, order_S = sources
    first, T, S, X = sizes
    reach = len(bias) // 2
    for source in range(len(count_A)):
        places, begin = count_A[source], source * S * X
        for t in range(T):
            for s in range(places):
                distance = min(max(first + t - s, -reach), reach) + reach
                scores[s] = dot(queries, t * X, keys, begin + s * X, X) + bias[distance]
            weigh(scores, 0, places, -(-places // LANES) * LANES)
            _prune(scores, places, threshold)
            mix_values(scores, order_S, 0, places, values, begin, X, out, (source * T + t) * X)


@compiled
def _prune(weights, count, threshold):  # type: ignore[no-untyped-def]
    """Set weights below a threshold to 0, except the largest, and rescale the others to sum to one."""
    if threshold <= ZERO:
        return
    least, total = ZERO, ZERO
    for s in range(count):
        least = max(least, weights[s])
    least = min(least, threshold)
    for s in range(count):
        if weights[s] < least:
            weights[s] = ZERO
        total += weights[s]
    factor = ONE / total
    for s in range(count):
        weights[s] *= factor
