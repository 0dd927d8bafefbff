"""The parameters of recurrent layers and of their attention in the form that the decoding engine takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from chainrule.engines.decode.recurrent import CompiledRecurrence, RecurrentState, SourceMemory
from chainrule.engines.decode.recurrent_weights import AttentionWeights, CellWeights, RecurrentWeights
from chainrule.engines.decode.source_layers import SourceLayers
from chainrule.engines.decode.weights import Linear
from chainrule.layers.attention.source import (
    AdditiveScore,
    GeneralScore,
    LocationScore,
    SourceAttention,
    SourceStates,
    padding_bias,
)
from chainrule.layers.compiled import as_array, linear_weights
from chainrule.layers.recurrent.cells import Gru, Rnn
from chainrule.layers.recurrent.stack import Recurrence, RecurrentLayer
from chainrule.layers.recurrent.stack import State as LayerStates


def recurrence_weights(
    recurrence: Recurrence,
    embedding: nn.Embedding,
    *,
    attention: AttentionWeights | None = None,
    bridge: Linear | None = None,
    output: Linear | None = None,
) -> RecurrentWeights:
    """The parameters of a stack of recurrent layers, between an embedding and what follows it."""
    layers = layer_weights(recurrence)
    return RecurrentWeights(cell_name(recurrence), as_array(embedding.weight), layers, attention, bridge, output)


def read_by_layers(
    state: RecurrentState, read: Callable[[LayerStates], tuple[Tensor, LayerStates]]
) -> tuple[Tensor, RecurrentState]:
    """What `read` gives for the states of the layers, and the state of the engine after it.

    Over several steps of more than KERNEL_ROWS rows, the matrix products of torch are faster than the engine.
    """
    before = [tuple(torch.from_numpy(part_RU.copy()) for part_RU in layer) for layer in state.layer_states]
    hidden_RTD, after = read(before)
    parts = [as_array(part_RU) for layer in after for part_RU in layer]
    return hidden_RTD, state.engine.start_from(parts, state.memory)


def cell_name(recurrence: Recurrence) -> str:
    """The name of the cell in the engine, one of CELLS."""
    cell = recurrence.cell
    if isinstance(cell, Rnn) and cell.relu:
        return "rnn-relu"
    return "gru-after" if isinstance(cell, Gru) and cell.after else recurrence.kind


def layer_weights(recurrence: Recurrence) -> list[CellWeights]:
    """The parameters of each layer."""
    return [_cell_weights(layer) for layer in recurrence.layers if isinstance(layer, RecurrentLayer)]


def _cell_weights(layer: RecurrentLayer) -> CellWeights:
    into = Linear(as_array(layer.weight_input_GD), as_array(layer.bias_G))
    return CellWeights(into, as_array(layer.weight_hidden_GH), None if layer.extra is None else as_array(layer.extra))


def attention_weights(attend: SourceAttention, *, feed: nn.Linear | None = None) -> AttentionWeights:
    """The parameters of attention to a source."""
    score, kind = attend.score, "dot"
    if isinstance(score, AdditiveScore | LocationScore):
        kind = "additive" if isinstance(score, AdditiveScore) else "location"
    return AttentionWeights(
        kind,
        mixed=linear_weights(attend.project_query),
        query=linear_weights(score.project_query) if isinstance(score, AdditiveScore | LocationScore) else None,
        vector_X=as_array(score.vector_X) if isinstance(score, AdditiveScore) else None,
        feed_GU=None if feed is None else as_array(feed.weight),
        keys=linear_weights(score.project) if isinstance(score, AdditiveScore | GeneralScore) else None,
        values=linear_weights(attend.project_context),
    )


def source_memory(engine: CompiledRecurrence, states: SourceStates, mask_AS: Tensor) -> SourceMemory:
    """Keys and values of sources for the engine, without those of padding."""
    keys_NX, values_NU = (as_array(part_ASX[mask_AS]) for part_ASX in (states.keys_ASX, states.values_ASU))
    return engine.memory(keys_NX, values_NU, np.asarray(as_array(mask_AS.sum(1)), np.int64))


def source_lengths(states: SourceStates) -> np.ndarray[Any, Any]:
    """The number of positions of each source that are no padding."""
    if states.bias_A1S is None:
        return np.full(len(states.keys_ASX), states.keys_ASX.shape[1])
    lengths_A: np.ndarray[Any, Any] = np.count_nonzero(as_array(states.bias_A1S)[:, 0] == 0, axis=1)
    return lengths_A


def make_memory(
    attend: SourceAttention, encoded_BSE: Tensor, mask_BS: Tensor | None, layers: SourceLayers | None
) -> SourceStates:
    """Keys and values of encoder states, by layers of the engine as wide as it takes them (None: by torch)."""
    if layers is None:
        return attend.make_memory(encoded_BSE, mask_BS)
    keys_ASX, values_ASX = map(torch.from_numpy, layers.read(as_array(encoded_BSE)))
    return SourceStates(keys_ASX, values_ASX, None if mask_BS is None else padding_bias(mask_BS))
