"""Our Transformer layers as specifications of CTranslate2.

CTranslate2 has no squared ReLU. Since relu(x)² = relu(x)·x, it is written as a gated feed-forward layer whose two
projections are the same.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from chainrule.layers.blocks import Block, BlockShape
from chainrule.layers.transformer_stack import TransformerStack

ACTIVATIONS = {"gelu": "GELU", "gelu-tanh": "GELUTanh", "relu": "RELU", "relu2": "RELU", "swish": "SWISH"}
"""Our activations and the names of theirs."""


def stack_options(shape: BlockShape, stack: TransformerStack) -> dict[str, Any]:
    """The arguments of their encoder or decoder that describe our blocks."""
    from ctranslate2.specs import common_spec

    options: dict[str, Any] = {
        "num_layers": len(stack.block_list),
        "num_heads": shape.heads,
        "pre_norm": shape.pre,
        "activation": common_spec.Activation[ACTIVATIONS[shape.activation]],
        "ffn_glu": shape.gated or shape.activation == "relu2",
        "rms_norm": shape.norm == "rms",
    }
    if stack.block_list[0].rotary is not None:
        options |= {"rotary_dim": 0, "rotary_interleave": False}  # all components, i paired with i + E/2
    if shape.attention_width != shape.width:
        options["head_dim"] = shape.attention_width // shape.heads
    return options


def fill_stack(spec: Any, stack: TransformerStack, table_VD: Tensor, window: int) -> None:
    """Set the embeddings, positions, blocks and final norm of one side of a model."""
    embeddings = spec.embeddings[0] if isinstance(spec.embeddings, list) else spec.embeddings
    embeddings.weight = as_array(table_VD * stack.scale)
    spec.scale_embeddings = False
    if "position_encodings" in vars(spec):
        table_CD = (
            table_VD.new_zeros(window, table_VD.shape[1]) if stack.positions is None else stack.positions.table_CD
        )
        spec.position_encodings.encodings = as_array(table_CD)
    for layer, block in zip(spec.layer, stack.block_list, strict=True):
        fill_block(layer, block)
    if "layer_norm" in vars(spec):
        fill_norm(spec.layer_norm, stack.norm)


def fill_block(spec: Any, block: Block) -> None:
    """Set the weights of one layer from those of our block."""
    attention = spec.self_attention
    fill_norm(attention.layer_norm, block.norm_attention)
    fill_linear(attention.linear[0], block.project_in)
    fill_linear(attention.linear[1], block.project_out)
    _set_scale(attention, block.shape)
    if "attention" in vars(spec):
        fill_norm(spec.attention.layer_norm, block.norm_source)
        fill_linear(spec.attention.linear[0], block.project_query)
        fill_linear(spec.attention.linear[1], block.project_memory)
        fill_linear(spec.attention.linear[2], block.project_source)
        _set_scale(spec.attention, block.shape)
    fill_norm(spec.ffn.layer_norm, block.norm_feedforward)
    _fill_feedforward(spec.ffn, block)


def _set_scale(attention: Any, shape: BlockShape) -> None:
    if shape.scale is not None:
        attention.queries_scale = np.float32(shape.scale)


def _fill_feedforward(spec: Any, block: Block) -> None:
    weight, bias = block.widen.weight, block.widen.bias
    inner = block.shape.inner
    first, second = slice(0, inner), slice(inner, 2 * inner) if block.shape.gated else slice(0, inner)
    _fill(spec.linear_0, weight[first], None if bias is None else bias[first])
    if "linear_0_noact" in vars(spec):
        _fill(spec.linear_0_noact, weight[second], None if bias is None else bias[second])
    fill_linear(spec.linear_1, block.narrow)


def fill_linear(spec: Any, layer: nn.Linear) -> None:
    """Set a linear layer."""
    _fill(spec, layer.weight, layer.bias)


def fill_output(spec: Any, output: Any) -> None:
    """Set the projection to the vocabulary from an output layer with a vector per word."""
    _fill(spec, output.weight_VD, output.bias_V)


def _fill(spec: Any, weight: Tensor, bias: Tensor | None) -> None:
    spec.weight = as_array(weight)
    if bias is not None:
        spec.bias = as_array(bias)


def fill_norm(spec: Any, norm: Any) -> None:
    """Set a LayerNorm, whose bias is zero if ours has none, or an RMSNorm, which has no bias."""
    spec.gamma = as_array(norm.weight)
    if isinstance(norm, nn.LayerNorm):
        spec.beta = as_array(torch.zeros_like(norm.weight) if norm.bias is None else norm.bias)


def as_array(tensor: Tensor) -> np.ndarray[Any, Any]:
    """The values as a contiguous array of single precision."""
    return tensor.detach().float().contiguous().cpu().numpy().copy()
