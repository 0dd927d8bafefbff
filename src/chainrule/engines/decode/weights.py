"""The parameters of a Transformer decoder as arrays: what a model hands to the engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

UNBOUNDED = 2**62
"""Window of a stack that reads texts of any length."""


@dataclass(frozen=True)
class Linear:
    """weight · x + bias."""

    weight_XD: Array
    bias_X: Array | None = None


@dataclass(frozen=True)
class Norm:
    """The parameters of a norm."""

    scale_D: Array
    bias_D: Array | None = None


@dataclass(frozen=True)
class FastWeights:
    """What the fast fully connected softmax does to scores, see `fast_softmax.py`."""

    terms_HO: Array  # U + b of each offset from 1 - window on
    factor_H: Array  # c


@dataclass(frozen=True)
class SourceWeights:
    """The parameters of the attention of a block to a source."""

    norm: Norm
    query: Linear
    memory: Linear  # keys and values of an encoded source side by side
    out: Linear
    fast: FastWeights | None = None  # None: an ordinary softmax


@dataclass(frozen=True)
class BlockWeights:
    """The parameters of one block."""

    norm: Norm
    into: Linear  # queries, keys and values side by side; slow attention: then gates
    out: Linear
    feed_norm: Norm
    widen: Linear  # gated: the projection that is activated, then the gate
    narrow: Linear
    source: SourceWeights | None = None
    decay_H: Array | None = None  # of linear attention


@dataclass(frozen=True)
class StackWeights:
    """The shape and parameters of a Transformer decoder: what a model hands to the engine."""

    blocks: Sequence[BlockWeights]
    embedding_VD: Array
    heads: int
    head_width: int
    window: int
    activation: str
    score_scale: float
    eps: float
    norm: Norm | None = None
    pre: bool = True
    rms: bool = False
    embedding_scale: float = 1.0
    positions_LD: Array | None = None
    cosines_LE: Array | None = None  # rotary positions: of each position and pair of components
    sines_LE: Array | None = None
    distances_HL: Array | None = None  # relative positions: terms of the scores by head and distance
    gated: bool = False
    attention: str = "causal"  # one of ATTENTIONS in `stack_layout.py`
    direction: str = "both"  # of slow attention, one of DIRECTIONS
    output: Linear | None = None  # words as w·h + b; None: the engine gives features


def pad_heads(values: Array, heads: int, width: int, padded: int) -> Array:
    """Widen each head along the first axis with zeros, which change no score and no mixture."""
    if width == padded:
        return values
    wide = np.zeros((heads, padded, *values.shape[1:]), np.float32)
    wide[:, :width] = values.reshape(heads, width, *values.shape[1:])
    return wide.reshape(heads * padded, *values.shape[1:])
