"""The parameters of a recurrent decoder as arrays: what a model hands to the engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from chainrule.engines.decode.weights import Linear

Array = np.ndarray[Any, Any]

CELLS = ("rnn", "rnn-relu", "lstm", "lstm-peephole", "lstm-coupled", "gru", "gru-after")
"""Kinds of cells; the order of their gates is in `layers/recurrent/cells.py`. A kernel takes the index."""

SCORES = ("dot", "additive", "location")
"""Kinds of attention scores; a score with projected keys is a dot product for the engine."""


@dataclass(frozen=True)
class CellWeights:
    """The parameters of one layer; the blocks of its gates lie side by side."""

    into: Linear
    hidden_GU: Array
    extra: Array | None = None  # peepholes (3, U), or the bias U of a reset gate that acts after the product


@dataclass(frozen=True)
class AttentionWeights:
    """h~ = tanh(Σ a_s v_s + W h + b), where the scores of a_s are those of `layers/attention/source.py`."""

    score: str  # one of SCORES
    mixed: Linear  # W and b
    query: Linear | None = None  # additive, location: what is applied to h before the score
    vector_X: Array | None = None  # additive
    feed_GU: Array | None = None  # input feeding: weights of h~ of the step before; None: without
    keys: Linear | None = None  # what makes the keys of a source; None: its states, or a table
    values: Linear | None = None  # what makes its values; None: the model


@dataclass(frozen=True)
class RecurrentWeights:
    """The shape and parameters of a recurrent decoder."""

    cell: str  # one of CELLS
    embedding_VD: Array
    layers: Sequence[CellWeights]
    attention: AttentionWeights | None = None
    bridge: Linear | None = None
    output: Linear | None = None  # words as w·h + b; None: the engine gives features

    @property
    def units(self) -> int:
        """Width of a state."""
        return int(self.layers[0].hidden_GU.shape[1])

    @property
    def blocks(self) -> int:
        """Blocks of the gates."""
        return len(self.layers[0].hidden_GU) // self.units

    @property
    def feature_width(self) -> int:
        """Width of the features for the output layer."""
        if self.bridge is not None:
            return len(self.bridge.weight_XD)
        return self.units
