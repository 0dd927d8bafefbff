"""The autoregressive branch of a hybrid, compiled: its packed weights, and the calls that read tokens.

    engine = CompiledHybrid(weights)                         # once for each model; takes `HybridWeights`
    log_probs_NV, path_NU = engine.read(tokens_RT, hidden_RU, source, position_R, "all")

The numbers of a row never depend on the other rows, nor on how its tokens are divided into calls: so the check of a
draft chooses exactly what single steps choose.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from chainrule.engines.decode import hybrid_kernel as kernel
from chainrule.engines.decode.linear import Packer, rounded_up
from chainrule.engines.decode.output import CompiledOutput
from chainrule.engines.decode.recurrent_weights import AttentionWeights, CellWeights
from chainrule.engines.decode.room import Room
from chainrule.engines.decode.source_layers import CompiledLayers, SourceLayers
from chainrule.engines.decode.weights import Linear, pad_heads

Array = np.ndarray[Any, Any]
Results = Literal["last", "all", "features"]
"""log p after the last token of each row, log p after every token, or the features after every token."""


@dataclass(frozen=True)
class HybridWeights:
    """The parameters of the autoregressive branch."""

    embedding_VD: Array
    cell: CellWeights  # a GRU whose reset gate acts before the product
    attention: AttentionWeights
    join: Linear
    join_aligned: Linear  # of what the source allots to a position
    output: Linear | None  # words as w·h + b; None: the engine gives features
    gate_D: Array | None = None  # of a gate that depends on the step: its weights of the features


class Prediction(NamedTuple):
    """What the parallel branch predicts for the first K positions of each source."""

    odds_AK: Array
    table_AKV: Array  # log p


class HybridSource(NamedTuple):
    """What rows read of A sources, W successive rows of each."""

    keys_ASX: Array
    values_ASX: Array
    count_A: Array
    joined_ALD: Array
    prediction: Prediction | None
    rows: int


NO_PREDICTION = np.empty(0, np.float32), np.empty(0, np.float32), 0


class CompiledHybrid:
    """The packed weights of the autoregressive branch."""

    def __init__(self, weights: HybridWeights, precision: str = "float32") -> None:
        packer = Packer(int8=precision == "int8")
        self.real_units = weights.cell.hidden_GU.shape[1]
        self.units, self.width = rounded_up(self.real_units), weights.embedding_VD.shape[1]
        self.embedding = np.ascontiguousarray(weights.embedding_VD, np.float32).ravel()
        self.vocabulary = None if weights.output is None else len(weights.output.weight_XD)
        self.model = self._pack(packer, weights), packer.weights()
        self.output = None
        if self.vocabulary is not None:
            self.output = CompiledOutput(self.model[1], int(self.model[0][kernel.OUTPUT]), self.vocabulary)
        self.memory, self._positions = SourceLayers(weights.attention), CompiledLayers([weights.join_aligned])
        self._room = Room()

    def _pack(self, packer: Packer, weights: HybridWeights) -> Array:
        Shape, attention = kernel.Shape, weights.attention
        shape = np.full(len(Shape), -1, np.int64)
        shape[Shape.UNITS], shape[Shape.WIDTH] = self.units, self.width
        into, hidden = self._gates(weights.cell.into), self._gates(Linear(weights.cell.hidden_GU)).weight_XD
        shape[Shape.INTO] = packer.linear(into.weight_XD, into.bias_X)
        shape[Shape.HIDDEN] = packer.linear(hidden[self.units :])
        shape[Shape.CANDIDATE] = packer.linear(hidden[: self.units])
        layers = {Shape.MIXED: attention.mixed, Shape.JOIN: weights.join, Shape.OUTPUT: weights.output}
        if attention.query is not None and attention.vector_X is not None:
            layers[Shape.QUERY] = attention.query
            shape[Shape.VECTOR] = packer.table(pad_heads(attention.vector_X, 1, self.real_units, self.units))
        for part, layer in layers.items():
            if layer is not None:
                shape[part] = packer.linear(layer.weight_XD, layer.bias_X)
        shape[Shape.GATE] = packer.table(weights.gate_D)
        return shape

    def _gates(self, layer: Linear) -> Linear:
        """A projection to gates, each block widened to a multiple of the lanes."""
        bias_X = None if layer.bias_X is None else pad_heads(layer.bias_X, 3, self.real_units, self.units)
        return Linear(pad_heads(layer.weight_XD, 3, self.real_units, self.units), bias_X)

    def prepare(self, aligned_ATD: Array) -> Array:
        """The joined features of positions, from what the source allots to them -> ATD."""
        (joined_ATX,) = self._positions.apply(aligned_ATD)
        return joined_ATX[:, :, : self.width]

    def read(
        self, tokens_RT: Array, hidden_RU: Array, source: HybridSource, position_R: Array, wanted: Results
    ) -> tuple[Array, Array]:
        """Read T tokens of each row after a state, from a position on -> the results, and the states after each, NU."""
        R, T = tokens_RT.shape
        M, predicts = R if wanted == "last" else R * T, wanted != "features"
        width = self.vocabulary if predicts else self.width
        assert width is not None
        results, path_NU = np.empty((M, width), np.float32), np.empty((R * T, self.real_units), np.float32)
        given = self._given(tokens_RT, hidden_RU, source, position_R, (R, T, source.rows, M), predicts=predicts)
        kernel.read_tokens(*given[:-1], (path_NU, results, predicts), given[-1])
        return results, path_NU

    def check(self, tokens_RT: Array, hidden_RU: Array, source: HybridSource, position_R: Array) -> tuple[Array, Array]:
        """Read T tokens of each row -> the most probable token after each, RT, and the states after each, NU.

        After the first one that is not the next token of its row the others are -1.
        """
        R, T = tokens_RT.shape
        assert self.vocabulary is not None
        word_N, path_NU = np.empty(R * T, np.int64), np.empty((R * T, self.real_units), np.float32)
        sizes = R, T, source.rows, R * T, self.vocabulary
        given = self._given(tokens_RT, hidden_RU, source, position_R, sizes, predicts=True)
        log_p = np.empty(rounded_up(self.vocabulary), np.float32)
        kernel.check_tokens(*given[:-1], (path_NU, word_N, log_p), given[-1])
        return word_N.reshape(R, T), path_NU

    def _given(
        self,
        tokens_RT: Array,
        hidden_RU: Array,
        source: HybridSource,
        position_R: Array,
        sizes: tuple[int, ...],
        *,
        predicts: bool,
    ) -> tuple[Any, ...]:
        """The arguments of a kernel, without its results, and the arrays that it works in."""
        (R, T), M, S = tokens_RT.shape, sizes[3], source.keys_ASX.shape[1]
        memory = source.keys_ASX.reshape(-1), source.values_ASX.reshape(-1), S, source.count_A, self._order(S)
        places = position_R, source.joined_ALD.reshape(-1), source.joined_ALD.shape[1]
        prediction = NO_PREDICTION
        if source.prediction is not None and predicts:
            odds_AK, table_AKV = source.prediction
            prediction = odds_AK.reshape(-1), table_AKV.reshape(-1), odds_AK.shape[1]
        room = self._room.arrays(kernel.make_room, self.model, R * T, R, M if predicts else 0, M, S)
        token_N = np.ascontiguousarray(tokens_RT).reshape(-1)
        return self.model, self.embedding, token_N, sizes, hidden_RU, memory, places, prediction, room

    def _order(self, count: int) -> Array:
        """0, 1, …, count - 1."""
        if count > len(_order):
            return np.arange(count, dtype=np.int32)
        return _order[:count]


_order = np.arange(512, dtype=np.int32)
