"""The parallel branch of a hybrid, compiled: all positions of a target in one call.

    engine = CompiledParallel(weights)                           # once for each model; takes `ParallelWeights`
    keys_ASX, values_ASX = engine.memory.read(states_ASE)
    features_RTD = engine.predict(read_RTD, inputs_RTD, keys_ASX, values_ASX, count_A, length_R)

Two recurrences read the inputs from both sides, every state attends to its source, and a linear layer adds the inputs:

    h = BiLSTM(read)      n_t = W tanh(Σ a_s v_s + U h_t) + b + V inputs_t
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from chainrule.engines.decode import recurrent_encoder_kernel as encoder_kernel
from chainrule.engines.decode.compiling import compiled
from chainrule.engines.decode.functions import ZERO
from chainrule.engines.decode.hybrid_kernel import INTO, JOIN, UNITS, WIDTH, Shape, attend_to_sources
from chainrule.engines.decode.linear import LINEARS, OUTPUTS, Packer, aligned, apply_linear, multiplications, rounded_up
from chainrule.engines.decode.maps import add, copy
from chainrule.engines.decode.recurrent_encoder import PLACES_PER_CALL, EncoderWeights, pack_encoder
from chainrule.engines.decode.recurrent_encoder_kernel import REAL, SIDES, encode
from chainrule.engines.decode.recurrent_weights import AttentionWeights
from chainrule.engines.decode.room import Room
from chainrule.engines.decode.shares import row_cuts, run_shares
from chainrule.engines.decode.source_layers import SourceLayers
from chainrule.engines.decode.weights import Linear, pad_heads

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class ParallelWeights:
    """The parameters of the parallel branch."""

    encoder: EncoderWeights
    attention: AttentionWeights
    join: Linear
    inputs: Linear


class CompiledParallel:
    """The packed weights of the parallel branch."""

    def __init__(self, weights: ParallelWeights, precision: str = "float32") -> None:
        packer, attention = Packer(int8=precision == "int8"), weights.attention
        encoder, layers = pack_encoder(packer, weights.encoder)
        self.real_units = int(encoder[SIDES] * encoder[REAL])
        self.units, self.width = rounded_up(self.real_units), len(weights.join.weight_XD)
        shape = np.full(len(Shape), -1, np.int64)
        shape[UNITS], shape[WIDTH] = self.units, self.width
        parts = {Shape.MIXED: attention.mixed, Shape.JOIN: weights.join, Shape.INTO: weights.inputs}
        if attention.query is not None and attention.vector_X is not None:
            parts[Shape.QUERY] = attention.query
            shape[Shape.VECTOR] = packer.table(pad_heads(attention.vector_X, 1, self.real_units, self.units))
        for part, layer in parts.items():
            shape[part] = packer.linear(layer.weight_XD, layer.bias_X)
        self.model = shape, encoder, layers, packer.weights()
        self.memory = SourceLayers(attention)
        self._work, self._room = multiplications(self.model[3]), Room()

    def predict(
        self, read_RTD: Array, inputs_RTD: Array, keys_ASX: Array, values_ASX: Array, count_A: Array, length_R: Array
    ) -> Array:
        """The features of the positions of R targets, W successive ones of each of A sources -> RTD.

        `read_RTD` are the inputs of the recurrences, `inputs_RTD` those that are added; both end after `length_R`
        positions. Keys and values are UNITS wide.
        """
        (R, T, D), (A, S, _) = inputs_RTD.shape, keys_ASX.shape
        features_RTD, rows, order_S = np.empty((R, T, D), np.float32), R // A, np.arange(S, dtype=np.int32)

        def predict(begin: int, end: int) -> None:
            most = max(1, PLACES_PER_CALL // max(1, rows * T))
            for first in range(begin, end, most):
                some = slice(first, min(first + most, end))
                part = slice(some.start * rows, some.stop * rows)
                sizes = part.stop - part.start, T, rows
                memory = keys_ASX[some].reshape(-1), values_ASX[some].reshape(-1), S, count_A[some], order_S
                _predict(
                    self.model,
                    (read_RTD[part].reshape(-1), inputs_RTD[part].reshape(-1)),
                    sizes,
                    length_R[part],
                    memory,
                    features_RTD[part].reshape(-1),
                    self._room.arrays(_make_room, self, sizes[0] * T, sizes[0], S),
                )

        run_shares(predict, row_cuts(A, rows * T * self._work))
        return features_RTD


def _make_room(branch: CompiledParallel, items: int, rows: int, positions: int) -> tuple[Any, ...]:
    """The arrays of a call for `items` positions of `rows` targets, and sources of at most `positions`."""
    shape, encoder, _, (linears, *_) = branch.model
    U, D, states = branch.units, int(linears[shape[JOIN], OUTPUTS]), int(encoder[encoder_kernel.STATES])
    hidden = aligned(items * branch.real_units), aligned(rows * int(encoder[encoder_kernel.LAYERS]) * states * U)
    spare = aligned(items * (max(D, U, branch.width) + 4), np.uint8), aligned(items)
    attention = aligned(items * U), aligned(items * U), aligned(positions), aligned(U)
    ends, own = (aligned(items * D), aligned(items * D)), encoder_kernel.make_room(encoder, items)
    return hidden, (aligned(items * U), aligned(items * U)), own, attention, ends, spare


@compiled
def _predict(model, inputs, sizes, length_R, memory, features, room):  # type: ignore[no-untyped-def]
    """Write the features of all positions; the entries of the room are where `attend_to_sources` expects them."""
    shape, encoder, layers, weights = model
    read, added = inputs
    (hidden, last), (_, states), encoder_room, (vectors, _, _, _), (ends, more), spare = room
    R, T, W = sizes
    U, E, D = shape[UNITS], encoder[SIDES] * encoder[REAL], weights[LINEARS][shape[JOIN], OUTPUTS]
    encode((encoder, layers, weights), read, (R, T), length_R, hidden, last, encoder_room)
    for n in range(R * T):
        copy(hidden, n * E, states, n * U, E)
        for j in range(n * U + E, (n + 1) * U):
            states[j] = ZERO
    attend_to_sources((shape, weights), R, T, W, memory, room)
    apply_linear(weights, shape[JOIN], vectors, 0, U, ends, 0, D, R * T, spare)
    apply_linear(weights, shape[INTO], added, 0, shape[WIDTH], more, 0, D, R * T, spare)
    for n in range(R * T):
        copy(ends, n * D, features, n * shape[WIDTH], shape[WIDTH])
        add(features, n * shape[WIDTH], more, n * D, shape[WIDTH])
