"""A recurrent decoder, compiled: its packed weights, and the states of the texts that it continues.

    engine = CompiledRecurrence(weights)                 # once for each model; takes `RecurrentWeights`
    state = engine.start(2)                              # two empty texts
    log_probs_RV, state = state.log_probs(tokens_RT)     # after the last of T more tokens

One call of a kernel reads any number of tokens of any number of rows (`recurrent_kernel.py`). The numbers of a row
never depend on the other rows, nor on how its tokens are divided into calls.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from chainrule.base.lazy import torch
from chainrule.engines.decode import recurrent_kernel as kernel
from chainrule.engines.decode import recurrent_search as search
from chainrule.engines.decode.linear import Packer, aligned, apply_linear, rounded_up
from chainrule.engines.decode.recurrent_weights import CELLS, SCORES, AttentionWeights, CellWeights, RecurrentWeights
from chainrule.engines.decode.room import Room
from chainrule.engines.decode.screening import Screen, make_screen
from chainrule.engines.decode.stack import Precision, Wanted
from chainrule.engines.decode.weights import Linear, pad_heads
from chainrule.types import TensorHolder

Array = np.ndarray[Any, Any]

TABLE_ENTRIES = 2**20
"""Largest table of the first layer's input sums, tokens times gates. It replaces a product in every step."""

ITEMS_PER_CALL = 2048
"""Tokens that one call of the kernel reads, which bounds its memory; dividing a text changes no number."""


class CompiledRecurrence:
    """The packed weights of a recurrent decoder."""

    def __init__(self, weights: RecurrentWeights, precision: Precision = "float32") -> None:
        packer = Packer(int8=precision == "int8")
        self.cell, self.real_units, self.units = weights.cell, weights.units, rounded_up(weights.units)
        self.blocks, self.layers = weights.blocks, len(weights.layers)
        self.states = 2 if weights.cell.startswith("lstm") else 1
        fed = weights.attention is not None and weights.attention.feed_GU is not None
        self.slots = (self.layers * self.states + fed) * self.units
        self.width, self.bare_width = weights.feature_width, replace(weights, bridge=None).feature_width
        self.vocabulary = None if weights.output is None else len(weights.output.weight_XD)
        self.embedding = np.ascontiguousarray(weights.embedding_VD, np.float32).ravel()
        shape = self._pack_shape(packer, weights)
        rows = [self._pack_layer(packer, layer) for layer in weights.layers]
        if weights.embedding_VD.shape[0] * self.units * self.blocks <= TABLE_ENTRIES:
            into = self._pad_gates(weights.layers[0].into)
            shape[kernel.Shape.TABLE] = packer.table(_table(weights.embedding_VD, into, precision))
        features = shape.copy()
        features[kernel.Shape.OUTPUT] = -1
        bare = features.copy()
        bare[kernel.Shape.BRIDGE] = -1
        layers, packed = np.array(rows, np.int64), packer.weights()
        self._room = Room()
        self.model, self.feature_model, self.bare_model = ((one, layers, packed) for one in (shape, features, bare))

    def _pack_shape(self, packer: Packer, weights: RecurrentWeights) -> Array:
        Shape = kernel.Shape
        shape = np.full(len(Shape), -1, np.int64)
        shape[Shape.CELL], shape[Shape.UNITS], shape[Shape.BLOCKS] = CELLS.index(self.cell), self.units, self.blocks
        shape[Shape.LAYERS], shape[Shape.STATES], shape[Shape.SLOTS] = self.layers, self.states, self.slots
        shape[Shape.WIDTH] = weights.embedding_VD.shape[1]
        if weights.attention is not None:
            self._pack_attention(packer, weights.attention, shape)
        for part, layer in ((Shape.BRIDGE, weights.bridge), (Shape.OUTPUT, weights.output)):
            if layer is not None:
                shape[part] = packer.linear(layer.weight_XD, layer.bias_X)
        return shape

    def _pack_attention(self, packer: Packer, attention: AttentionWeights, shape: Array) -> None:
        Shape = kernel.Shape
        shape[Shape.SCORE] = SCORES.index(attention.score)
        for part, layer in (
            (Shape.MIXED, attention.mixed),
            (Shape.QUERY, attention.query),
        ):
            if layer is not None:
                shape[part] = packer.linear(layer.weight_XD, layer.bias_X)
        if attention.vector_X is not None:
            shape[Shape.VECTOR] = packer.table(pad_heads(attention.vector_X, 1, self.real_units, self.units))
        if attention.feed_GU is not None:
            shape[Shape.FEED] = packer.linear(self._pad_gates(Linear(attention.feed_GU)).weight_XD)

    def _pack_layer(self, packer: Packer, layer: CellWeights) -> list[int]:
        into, hidden = self._pad_gates(layer.into), self._pad_gates(Linear(layer.hidden_GU)).weight_XD
        extra = layer.extra
        if extra is not None:
            extra = pad_heads(extra.reshape(-1), extra.size // self.real_units, self.real_units, self.units)
        row = [packer.linear(into.weight_XD, into.bias_X)]
        if self.cell == "gru":
            row += [packer.linear(hidden[self.units :]), packer.linear(hidden[: self.units])]
        else:
            row += [packer.linear(hidden), -1]
        return [*row, packer.table(extra)]

    def _pad_gates(self, layer: Linear) -> Linear:
        """A projection to gates, each block widened to a multiple of the lanes."""
        blocks, width = self.blocks, self.real_units
        bias_X = None if layer.bias_X is None else pad_heads(layer.bias_X, blocks, width, self.units)
        return Linear(pad_heads(layer.weight_XD, blocks, width, self.units), bias_X)

    def room(self, model: Any, rows: int, items: int, results: int, positions: int) -> tuple[Any, ...]:
        """The arrays of a call."""
        return self._room.arrays(kernel.make_room, model, items, rows, results, positions)

    @cached_property
    def screen(self) -> Screen:
        """What finds the most probable word without computing all scores; greedy search alone needs it."""
        return make_screen(self.model[2], int(self.model[0][kernel.OUTPUT]))

    def start(self, rows: int) -> RecurrentState:
        """The state of empty texts."""
        return RecurrentState(self, np.zeros((rows, self.slots), np.float32), NO_MEMORY)

    def start_from(self, states: Sequence[Array], memory: SourceMemory) -> RecurrentState:
        """The state of empty texts with given states, RU, of the layers in their order, and their sources."""
        numbers_RX = np.zeros((len(states[0]), self.slots), np.float32)
        for place, state_RU in enumerate(states):
            numbers_RX[:, place * self.units : place * self.units + self.real_units] = state_RU
        return RecurrentState(self, numbers_RX, memory)

    def memory(self, keys_NX: Array, values_NX: Array, count_A: Array) -> SourceMemory:
        """Sources by the keys and values of all their positions, one after another."""
        N, width = keys_NX.shape
        numbers = np.zeros((2, N, self.units), np.float32)
        numbers[0, :, :width], numbers[1, :, :width] = keys_NX, values_NX
        return SourceMemory(numbers, count_A.cumsum() - count_A, count_A, int(count_A.max(initial=0)))


def _table(embedding_VD: Array, into: Linear, precision: Precision) -> Array:
    """What a product in every step would give, for every token."""
    packer = Packer(int8=precision == "int8")
    number = packer.linear(into.weight_XD, into.bias_X)
    (V, D), G = embedding_VD.shape, len(into.weight_XD)
    inputs, table = np.ascontiguousarray(embedding_VD, np.float32).ravel(), aligned(V * G)
    spare = aligned(V * (D + 4), np.uint8), aligned(V)
    apply_linear(packer.weights(), number, inputs, 0, D, table, 0, G, V, spare)
    return table


class SourceMemory(NamedTuple):
    """What the rows of a state attend to: each to `count_R` positions from `start_R` on, which rows may share."""

    numbers: Array  # 2 × N × U: keys and values
    start_R: Array
    count_R: Array
    longest: int

    def select(self, rows_K: Array) -> SourceMemory:
        return SourceMemory(self.numbers, self.start_R[rows_K], self.count_R[rows_K], self.longest)

    def join(self, others: Sequence[SourceMemory]) -> SourceMemory:
        parts = (self, *others)
        firsts = np.cumsum([0, *(part.numbers.shape[1] for part in parts)])
        start_R = np.concatenate([part.start_R + first for part, first in zip(parts, firsts, strict=False)])
        numbers = np.concatenate([part.numbers for part in parts], 1)
        count_R = np.concatenate([part.count_R for part in parts])
        return SourceMemory(numbers, start_R, count_R, max(part.longest for part in parts))

    def arrays(self) -> tuple[Array, int, Array, Array, Array]:
        """As the kernel takes them."""
        _, count, width = self.numbers.shape
        return self.numbers.reshape(-1), count * width, np.arange(count, dtype=np.int32), self.start_R, self.count_R


class RecurrentState(TensorHolder):
    """The texts that a recurrence has read: R rows."""

    __slots__ = ("engine", "memory", "numbers_RX")

    room = 2**62
    """Tokens that can be appended: any number."""

    def __init__(self, engine: CompiledRecurrence, numbers_RX: Array, memory: SourceMemory) -> None:
        self.engine, self.numbers_RX, self.memory = engine, numbers_RX, memory

    @property
    def predicts(self) -> bool:
        """Whether the engine knows the output layer."""
        return self.engine.vocabulary is not None

    @property
    def independent(self) -> bool:
        """Rows are independent up to the last layer that the engine knows."""
        return self.predicts

    @property
    def layer_states(self) -> list[tuple[Array, ...]]:
        """The states of each layer, RU each; without a vector that is fed."""
        engine, parts = self.engine, self.numbers_RX.reshape(len(self.numbers_RX), -1, self.engine.units)
        places = range(0, engine.layers * engine.states, engine.states)
        return [tuple(parts[:, at + k, : engine.real_units] for k in range(engine.states)) for at in places]

    def log_probs(self, tokens_RT: Array, wanted: Wanted = "last") -> tuple[Array, RecurrentState]:
        """Append T tokens to each row -> log p of the next token after the last, RV, or after each, (R·T)V."""
        assert self.engine.vocabulary is not None
        return self._read(tokens_RT, wanted, self.engine.model, self.engine.vocabulary)

    def features(self, tokens_RT: Array, *, bridged: bool = True) -> tuple[Array, RecurrentState]:
        """Append T tokens to each row -> the features after each, (R·T)D, after or before the bridge."""
        if bridged:
            return self._read(tokens_RT, "all", self.engine.feature_model, self.engine.width)
        return self._read(tokens_RT, "all", self.engine.bare_model, self.engine.bare_width)

    def _read(self, tokens_RT: Array, wanted: Wanted, model: Any, width: int) -> tuple[Array, RecurrentState]:
        R, T = tokens_RT.shape
        most = max(1, ITEMS_PER_CALL // R)
        if most >= T:
            return self._run(np.ascontiguousarray(tokens_RT).reshape(-1), R, T, wanted, model, width)
        state, parts = self, []
        for at in range(0, T, most):
            part_RT = np.ascontiguousarray(tokens_RT[:, at : at + most])
            results, state = state._run(part_RT.reshape(-1), R, part_RT.shape[1], wanted, model, width)
            parts.append(results if wanted == "last" else results.reshape(R, -1, width))
        return parts[-1] if wanted == "last" else np.concatenate(parts, 1).reshape(R * T, width), state

    def _run(
        self, token_N: Array, R: int, T: int, wanted: Wanted, model: Any, width: int
    ) -> tuple[Array, RecurrentState]:
        """One call of the kernel."""
        M = R if wanted == "last" else R * T
        numbers_RX, results = self.numbers_RX.copy(), np.empty((M, width), np.float32)
        memory = _NO_ARRAYS if self.memory is NO_MEMORY else self.memory.arrays()
        room, engine = self.engine.room(model, R, R * T, M, self.memory.longest), self.engine
        kernel.read_tokens(model, engine.embedding, token_N, (R, T, M), numbers_RX.reshape(-1), memory, results, room)
        return results, RecurrentState(engine, numbers_RX, self.memory)

    def continue_greedily(self, token: int, count: int, eos: int) -> tuple[Array, RecurrentState]:
        """Read a token of the one row, then choose the most probable next ones, at most `count` -> all but the first.

        The result ends with `eos`; the state has not read the last token. The row attends to nothing.
        """
        engine, model = self.engine, self.engine.model
        assert len(self.numbers_RX) == 1
        assert engine.vocabulary is not None
        assert self.memory is NO_MEMORY
        chosen, numbers_RX, screen = np.empty(count, np.int64), self.numbers_RX.copy(), engine.screen
        token_1, room, screen_room = np.array([token]), engine.room(model, 1, 1, 1, 0), screen.room(engine.vocabulary)
        read = search.continue_greedily(
            model, engine.embedding, token_1, numbers_RX[0], screen, screen_room, eos, chosen, room
        )
        return chosen[:read], RecurrentState(engine, numbers_RX, NO_MEMORY)

    def best_continuations(self, token_R: Array, log_prob_AW: Array, count: int) -> tuple[Array, Array, RecurrentState]:
        """Append a token to each row -> the best continuations of the rows of each prompt, W in succession.

        Returns their log-probabilities AM, best first, cells row · V + token AM, and the state.
        """
        engine, model, R = self.engine, self.engine.model, len(token_R)
        assert engine.vocabulary is not None
        count = min(count, log_prob_AW.shape[1] * engine.vocabulary)
        best_AM, cell_AM = (np.empty((len(log_prob_AW), count), kind) for kind in (np.float32, np.int64))
        beam = np.ascontiguousarray(log_prob_AW), best_AM, cell_AM
        memory = _NO_ARRAYS if self.memory is NO_MEMORY else self.memory.arrays()
        numbers_RX, room = self.numbers_RX.copy(), engine.room(model, R, R, R, self.memory.longest)
        search.read_and_choose(
            model, engine.embedding, token_R, numbers_RX.reshape(-1), memory, engine.vocabulary, beam, room
        )
        return best_AM, cell_AM, RecurrentState(engine, numbers_RX, self.memory)

    def select(self, rows_K: Array) -> RecurrentState:
        """Row k of the result is row rows_K[k] of this state."""
        memory = self.memory if self.memory is NO_MEMORY else self.memory.select(rows_K)
        return RecurrentState(self.engine, self.numbers_RX[rows_K], memory)

    def map_tensors(self, change: Callable[[Any], Any]) -> RecurrentState:
        return self.select(change(torch.arange(len(self.numbers_RX))).numpy())

    def form(self) -> Hashable:
        """Texts of one engine can be joined."""
        return "recurrence", id(self.engine)

    def join(self, others: Sequence[RecurrentState]) -> RecurrentState:
        numbers_RX = np.concatenate([one.numbers_RX for one in (self, *others)])
        memory = self.memory
        if memory is not NO_MEMORY:
            memory = memory.join([one.memory for one in others])
        return RecurrentState(self.engine, numbers_RX, memory)


_NOTHING = np.empty(0, np.int64)
NO_MEMORY = SourceMemory(np.empty((2, 0, 0), np.float32), _NOTHING, _NOTHING, 0)
"""Of a language model."""

_NO_ARRAYS = NO_MEMORY.arrays()
