"""The parameters of `fat` in the form that the decoding engine takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor, nn

from chainrule.engines.decode.weights import BlockWeights, FastWeights, Linear, SourceWeights, StackWeights
from chainrule.layers.attention.fast_softmax import FastSoftmax
from chainrule.layers.attention.linear import LinearSelfAttention
from chainrule.layers.attention.slow import Direction, SlowAttention
from chainrule.layers.compiled import as_array, linear_weights, norm_weights


def slow_weights(attention: SlowAttention, norms: nn.ModuleList, widen: nn.Linear, narrow: nn.Linear) -> BlockWeights:
    """A block of the encoder."""
    pairs, values = linear_weights(attention.project_pairs), linear_weights(attention.project_values)
    assert pairs.bias_X is not None
    assert values.bias_X is not None
    into = Linear(np.concatenate([pairs.weight_XD, values.weight_XD]), np.concatenate([pairs.bias_X, values.bias_X]))
    return _block(norms, into, attention.project_out, widen, narrow)


def fast_weights(
    history: LinearSelfAttention, source: FastSoftmax, norms: nn.ModuleList, widen: nn.Linear, narrow: nn.Linear
) -> BlockWeights:
    """A block of the decoder."""
    fast = FastWeights(as_array(source.terms().contiguous()), as_array(source.sharpness()))
    query, memory, out = map(linear_weights, (source.project_query, source.project_memory, source.project_out))
    own = SourceWeights(norm_weights(norms[1]), query, memory, out, fast)
    decay_H = as_array(history.decays())
    return _block(norms, linear_weights(history.project_in), history.project_out, widen, narrow, own, decay_H)


def _block(
    norms: nn.ModuleList,
    into: Linear,
    out: nn.Linear,
    widen: nn.Linear,
    narrow: nn.Linear,
    source: SourceWeights | None = None,
    decay_H: Any = None,
) -> BlockWeights:
    return BlockWeights(
        norm=norm_weights(norms[0]),
        into=into,
        out=linear_weights(out),
        feed_norm=norm_weights(norms[-1]),
        widen=linear_weights(widen),
        narrow=linear_weights(narrow),
        source=source,
        decay_H=decay_H,
    )


def side_weights(
    blocks: Sequence[BlockWeights],
    embedding: nn.Embedding,
    table_CD: Tensor,
    norm: nn.Module,
    *,
    heads: int,
    direction: Direction | None = None,
    output: Linear | None = None,
) -> StackWeights:
    """One side of the model; with a `direction` the encoder."""
    assert isinstance(norm, nn.LayerNorm)
    width = embedding.embedding_dim // heads
    return StackWeights(
        blocks=blocks,
        embedding_VD=as_array(embedding.weight),
        heads=heads,
        head_width=width,
        window=len(table_CD),
        activation="relu2",
        score_scale=width**-0.5 if direction is None else 1 / width,  # slow attention takes the root of a sum
        eps=norm.eps,
        norm=norm_weights(norm),
        positions_LD=as_array(table_CD),
        attention="linear" if direction is None else "slow",
        direction=direction or "both",
        output=output,
    )
