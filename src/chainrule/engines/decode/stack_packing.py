"""The parameters of a Transformer stack, packed as its kernels take them."""

from __future__ import annotations

from typing import Any

import numpy as np

from chainrule.engines.decode import stack_layout as layout
from chainrule.engines.decode.functions import ACTIVATIONS
from chainrule.engines.decode.linear import Packer, rounded_up
from chainrule.engines.decode.weights import BlockWeights, Linear, Norm, StackWeights, pad_heads

Array = np.ndarray[Any, Any]


def pack_stack(weights: StackWeights, *, int8: bool) -> tuple[Any, ...]:
    """The shape, the constants, the columns of the blocks, and the weights of `linear.py`."""
    packer = Packer(int8=int8)
    blocks = np.array([_pack_block(packer, block, weights) for block in weights.blocks], np.int64)
    shape = _pack_shape(packer, weights)
    constants = np.array([weights.embedding_scale, weights.score_scale, weights.eps], np.float32)
    return shape, constants, blocks, packer.weights()


def _pack_block(packer: Packer, block: BlockWeights, weights: StackWeights) -> list[int]:
    parts = 4 if weights.attention == "slow" else 3
    attention = [*_pack(packer, block.norm), *_pack(packer, into_heads(block.into, parts, weights))]
    attention += _pack(packer, _from_heads(block.out, weights))
    source, memory, fast = [-1] * (layout.FEED_NORM - layout.SOURCE_NORM), [-1], None
    if block.source is not None:
        query, out = into_heads(block.source.query, 1, weights), _from_heads(block.source.out, weights)
        source = [*_pack(packer, block.source.norm), *_pack(packer, query), *_pack(packer, out)]
        memory, fast = _pack(packer, into_heads(block.source.memory, 2, weights)), block.source.fast
    feed = [*_pack(packer, block.feed_norm), *_pack(packer, block.widen), *_pack(packer, block.narrow)]
    tables = [block.decay_H, *((None, None) if fast is None else (fast.terms_HO, fast.factor_H))]
    return [*attention, *source, *feed, *map(packer.table, tables), *memory]


def into_heads(layer: Linear, parts: int, weights: StackWeights) -> Linear:
    """A projection to heads, each widened to a multiple of the lanes; so are those of `_from_heads`."""
    heads, width, padded = parts * weights.heads, weights.head_width, rounded_up(weights.head_width)
    bias_X = None if layer.bias_X is None else pad_heads(layer.bias_X, heads, width, padded)
    return Linear(pad_heads(layer.weight_XD, heads, width, padded), bias_X)


def _from_heads(layer: Linear, weights: StackWeights) -> Linear:
    padded = rounded_up(weights.head_width)
    return Linear(pad_heads(layer.weight_XD.T, weights.heads, weights.head_width, padded).T, layer.bias_X)


def _pack_shape(packer: Packer, weights: StackWeights) -> Array:
    Shape = layout.Shape
    shape = np.full(len(Shape), -1, np.int64)
    shape[Shape.LAYERS], shape[Shape.WIDTH] = len(weights.blocks), weights.embedding_VD.shape[1]
    shape[Shape.HEADS], shape[Shape.HEAD] = weights.heads, rounded_up(weights.head_width)
    shape[Shape.REAL_HEAD] = weights.head_width
    shape[Shape.INNER] = weights.blocks[0].narrow.weight_XD.shape[1]
    shape[Shape.ACTIVATION] = ACTIVATIONS.index(weights.activation)
    shape[Shape.PRE], shape[Shape.RMS] = weights.pre, weights.rms
    source = weights.blocks[0].source
    shape[Shape.SOURCE] = 0 if source is None else layout.FAST_SOURCE if source.fast is not None else 1
    shape[Shape.GATED], shape[Shape.ATTENTION] = weights.gated, layout.ATTENTIONS.index(weights.attention)
    shape[Shape.DIRECTION] = layout.DIRECTIONS.index(weights.direction)
    shape[Shape.DISTANCES], shape[Shape.WINDOW] = packer.table(weights.distances_HL), weights.window
    shape[Shape.COSINES] = packer.table(weights.cosines_LE)
    shape[Shape.SINES] = packer.table(weights.sines_LE)
    shape[Shape.POSITIONS] = packer.table(weights.positions_LD)
    if weights.norm is not None:
        shape[Shape.NORM], shape[Shape.NORM_BIAS] = _pack(packer, weights.norm)
    if weights.output is not None:
        shape[Shape.OUTPUT] = packer.linear(weights.output.weight_XD, weights.output.bias_X)
    return shape


def _pack(packer: Packer, part: Norm | Linear) -> list[int]:
    """A part of a block as columns of `blocks`: two of a norm, one of a layer."""
    if isinstance(part, Linear):
        return [packer.linear(part.weight_XD, part.bias_X)]
    return [packer.table(part.scale_D), packer.table(part.bias_D)]
