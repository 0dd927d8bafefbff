"""Translators of Marian as transformers keeps them: their options and their weights in a seq2seq-transformer.

Junczys-Dowmunt et al., "Marian: Fast Neural Machine Translation in C++", 2018. They are Transformers as first
published, norms after the sums. Two things are kept otherwise here, and loading makes up for both:

- Their table of positions has all sines before all cosines, ours has them in turn. The order of the components of the
  residual stream means nothing to any layer, so the weights that read or write the stream are loaded in our order.
- Their decoder begins with a token of its own, ours with `eos`, which it reads at no other place. So the row of `eos`
  in the decoder's embedding becomes that of their first token; the output layer then needs a table for itself.

Legend: V vocabulary, D width.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from chainrule.errors import ConfigError
from chainrule.models.seq2seq_transformer import Seq2SeqTransformer
from chainrule.runs import COUNTS, WeightsError, load_weights

NEEDED = {"scale_embedding": False, "share_encoder_decoder_embeddings": True, "tie_word_embeddings": True}
"""What must be true of them, and what it is where their configuration says nothing."""

EQUAL = ("attention_heads", "ffn_dim")
"""What must be the same in their encoder and decoder."""

ACTIVATIONS = {"swish": "swish", "silu": "swish", "relu": "relu", "gelu": "gelu", "gelu_new": "gelu-tanh"}

BLOCK = {
    "norm_attention": "self_attn_layer_norm",
    "project_out": "self_attn.out_proj",
    "norm_source": "encoder_attn_layer_norm",
    "project_query": "encoder_attn.q_proj",
    "project_source": "encoder_attn.out_proj",
    "norm_feedforward": "final_layer_norm",
    "widen": "fc1",
    "narrow": "fc2",
}
"""Layers of a block, and what they are called there."""

JOINED = {
    "project_in": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "project_memory": ("encoder_attn.k_proj", "encoder_attn.v_proj"),
}
"""Layers that are several there, one below the other here."""

READERS = ("project_in", "project_query", "project_memory", "widen")
"""Layers whose inputs are the residual stream; the outputs of all others are."""


def marian_options(config: Mapping[str, Any]) -> dict[str, Any]:
    """The options of the seq2seq-transformer that a config.json of a MarianMTModel describes."""
    for name, default in NEEDED.items():
        if not config.get(name, default):
            raise ConfigError(f"{name} is false, but only Marian models where it is true can be read")
    for name in EQUAL:
        sides = config[f"encoder_{name}"], config[f"decoder_{name}"]
        if sides[0] != sides[1]:
            raise ConfigError(
                f"encoder_{name} is {sides[0]} and decoder_{name} is {sides[1]}, but only Marian models where both are "
                "the same can be read"
            )
    if config["activation_function"] not in ACTIVATIONS:
        raise ConfigError(
            f"activation_function is {config['activation_function']!r}, but only Marian models with one of "
            f"{', '.join(ACTIVATIONS)} can be read"
        )
    one_table = config["decoder_start_token_id"] == config["eos_token_id"]
    return {
        "embedding": config["d_model"],
        "encoder_layers": config["encoder_layers"],
        "decoder_layers": config["decoder_layers"],
        "heads": config["encoder_attention_heads"],
        "feedforward": config["encoder_ffn_dim"],
        "dropout": config["dropout"],
        "attention_dropout": config["attention_dropout"],
        "context": config["max_position_embeddings"],
        "positions": "sinusoidal",
        "norm": "post",
        "activation": ACTIVATIONS[config["activation_function"]],
        "bias": True,
        "tied": one_table,
        "shared": one_table,
    }


def load_marian(model: Seq2SeqTransformer, theirs: Mapping[str, Tensor], *, start: int) -> None:
    """Put the tensors of a MarianMTModel, by their names there, into a model with its `marian_options`.

    `start` is the token that their decoder begins with.
    """
    try:
        weights = _tables(model, theirs, start)
        for side, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
            for number in range(len(stack.blocks)):
                weights |= _block(theirs, side, number)
    except KeyError as error:
        raise ConfigError(f"these are not the weights of a MarianMTModel: {error.args[0]} is missing") from None
    try:
        load_weights(model, {**weights, COUNTS: model.unigram_counts})
    except WeightsError:
        raise ConfigError(
            "the weights of the MarianMTModel do not fit the model; make it with the options that its config.json "
            "gives (marian_options)"
        ) from None


def stream_order(width: int) -> Tensor:
    """Which component of their residual stream each of ours is, D."""
    order_D, sines = torch.empty(width, dtype=torch.int64), (width + 1) // 2
    order_D[0::2], order_D[1::2] = torch.arange(sines), torch.arange(sines, width)
    return order_D


def _tables(model: Seq2SeqTransformer, theirs: Mapping[str, Tensor], start: int) -> dict[str, Tensor]:
    """Embeddings and output layer."""
    table_VD = theirs["model.shared.weight"]
    table_VD = table_VD[:, stream_order(table_VD.shape[1])]
    weights = {"embedding.weight": table_VD, "output.bias_V": theirs["final_logits_bias"].flatten()}
    if start == model.eos:
        own = model.state_dict()
        return weights | {name: table_VD for name in ("source_embedding.weight", "output.weight_VD") if name in own}
    if model.output.weight_VD is model.embedding.weight or model.source_embedding is model.embedding:
        raise ConfigError(
            f"their decoder begins with token {start} and ours with {model.eos}, so its embedding must be a table of "
            "its own; set model.tied=false and model.shared=false"
        )
    weights |= {"source_embedding.weight": table_VD, "output.weight_VD": table_VD}
    return weights | {
        "embedding.weight": table_VD.index_copy(0, torch.tensor([model.eos]), table_VD[start : start + 1])
    }


def _block(theirs: Mapping[str, Tensor], side: str, number: int) -> dict[str, Tensor]:
    """The tensors of a block under our names."""
    weights: dict[str, Tensor] = {}
    layers = {**{ours: (name,) for ours, name in BLOCK.items()}, **JOINED}
    for ours, names in layers.items():
        if side == "encoder" and any("encoder_attn" in name for name in names):
            continue
        for kind in ("weight", "bias"):
            joined = torch.cat([theirs[f"model.{side}.layers.{number}.{name}.{kind}"] for name in names])
            weights[f"{side}.blocks.{number}.{ours}.{kind}"] = _reordered(joined, kind, reads=ours in READERS)
    return weights


def _reordered(tensor: Tensor, kind: str, *, reads: bool) -> Tensor:
    """A tensor of a layer that reads the residual stream, or writes it, in our order of the stream."""
    if not reads:
        return tensor[stream_order(len(tensor))]
    return tensor[:, stream_order(tensor.shape[1])] if kind == "weight" else tensor
