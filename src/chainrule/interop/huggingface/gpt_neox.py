"""GPT-NeoX in the format of Hugging Face, read as our `transformer` with rotary positions and written from it.

Black et al., "GPT-NeoX-20B: An Open-Source Autoregressive Language Model", 2022. Its attention and feed-forward layers
are in sequence here (`use_parallel_residual` false), as in our blocks; those with both in parallel have no counterpart.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from chainrule.errors import ConfigError
from chainrule.interop.huggingface.decoder_form import (
    ACTIVATIONS,
    BIAS_KEY,
    PARTS,
    THEIR_ACTIVATIONS,
    DecoderForm,
    decoder_form,
    imported_parts,
)
from chainrule.interop.huggingface.folders import CONFIG, ExportedModel, FolderWeights, HuggingFaceFolder, ImportedModel
from chainrule.interop.huggingface.gpt2 import finish_decoder, read_gpt2, start_notes, write_gpt2
from chainrule.interop.huggingface.read_tokenizers import read_text_tokenizer
from chainrule.text.tokenizers import Tokenizer

LAYERS = {
    "norm_attention": "input_layernorm",
    "norm_feedforward": "post_attention_layernorm",
    "project_in": "attention.query_key_value",
    "project_out": "attention.dense",
    "widen": "mlp.dense_h_to_4h",
    "narrow": "mlp.dense_4h_to_h",
}
"""The layers of a block: our names and theirs."""

REQUIRED = (
    *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"),
    "max_position_embeddings",
)
THETA = 10000.0


def read_decoder(folder: HuggingFaceFolder, weights: FolderWeights) -> ImportedModel:
    """A folder of GPT-2 or GPT-NeoX as a `transformer`."""
    return (read_gpt2 if folder.model_type == "gpt2" else read_gpt_neox)(folder, weights)


def write_decoder(model: Any, tokenizer: Tokenizer) -> ExportedModel:
    """A `transformer` as GPT-NeoX if its positions are rotary, otherwise as GPT-2."""
    form = decoder_form(model)
    return (write_gpt_neox if form.positions_CD is None else write_gpt2)(form, model, tokenizer)


# Import


def read_gpt_neox(folder: HuggingFaceFolder, weights: FolderWeights) -> ImportedModel:
    """The model of a folder as a `transformer`."""
    config = folder.config
    size, width, layers, heads, inner, context = folder.require(*REQUIRED)
    holds_bias, has_bias = bool(config.get(BIAS_KEY)), bool(config.get("attention_bias", True))
    head = width // heads
    if config.get("use_parallel_residual", True):
        raise ConfigError(
            f"{folder.path / CONFIG} has use_parallel_residual = true; supported are only models whose attention and "
            "feed-forward layers are in sequence"
        )
    _check_positions(folder, head - holds_bias, head)
    tokenizer = read_text_tokenizer(folder, size)
    theirs = weights.strip_prefix(("gpt_neox.", ""), "embed_in.weight")
    embedding_VD, tied = theirs["embed_in.weight"], bool(config.get("tie_word_embeddings", False))
    output = next((name for name in ("embed_out.weight", "lm_head.weight") if name in weights), "embed_out.weight")
    form = DecoderForm(
        embedding_VD=embedding_VD,
        head_VD=embedding_VD if tied else weights[output],
        blocks=[_read_block(theirs, number, heads, has_bias) for number in range(layers)],
        norm={part: theirs[f"final_layer_norm.{part}"] for part in PARTS},
        positions_CD=None,
        heads=heads,
        eps=config.get("layer_norm_eps", 1e-5),
        rotated=head - holds_bias,
        has_bias=has_bias,
        holds_output_bias=holds_bias,
    )
    options, found, output_options = imported_parts(form)
    options |= {
        "feedforward": inner,
        "context": context,
        "activation": folder.map_option("hidden_act", ACTIVATIONS, "gelu"),
        "dropout": config.get("hidden_dropout", 0.0),
    }
    notes = start_notes(folder, tokenizer)
    return ImportedModel("transformer", options, found, tokenizer, output=output_options, notes=notes)


def _check_positions(folder: HuggingFaceFolder, rotated: int, head: int) -> None:
    """Refuse rotary positions that differ from ours: all components of a head, at the published rates."""
    config, given = folder.config, folder.config.get("rope_parameters") or folder.config.get("rope_scaling") or {}
    theta = given.get("rope_theta", config.get("rotary_emb_base", THETA))
    share = given.get("partial_rotary_factor", config.get("rotary_pct", 0.25))
    kind = given.get("rope_type", given.get("type", "default"))
    if (kind, theta, int(head * share)) != ("default", THETA, rotated):
        raise ConfigError(
            f"{folder.path / CONFIG} has rotary positions of type {kind} and base {theta:g} on {int(head * share)} of "
            f"{head} components of a head; supported are only type default and base {THETA:g} on all of them"
        )


def _read_block(theirs: FolderWeights, number: int, heads: int, has_bias: bool) -> dict[str, Tensor]:
    """The tensors of a block by our names."""
    found = {}
    for ours, name in LAYERS.items():
        for part in PARTS:
            place = f"layers.{number}.{name}"
            if part == "bias" and name.startswith("attention.") and not has_bias:
                tensor = torch.zeros(len(theirs[f"{place}.weight"]))
            else:
                tensor = theirs[f"{place}.{part}"]
            found[f"{ours}.{part}"] = _by_kind(tensor, heads) if ours == "project_in" else tensor
    return found


def _by_kind(tensor: Tensor, heads: int) -> Tensor:
    """Queries, keys and values of each head -> the queries of all heads, their keys, their values."""
    by_head: Tensor = tensor.unflatten(0, (heads, 3, -1))
    return by_head.transpose(0, 1).flatten(0, 2)


# Export


def write_gpt_neox(form: DecoderForm, model: Any, tokenizer: Tokenizer) -> ExportedModel:
    """A form with rotary positions as a GPTNeoXForCausalLM."""
    c, head = model.config, form.width // form.heads
    theirs = {"gpt_neox.embed_in.weight": form.embedding_VD}
    theirs |= {f"gpt_neox.final_layer_norm.{part}": form.norm[part] for part in PARTS}
    for number, block in enumerate(form.blocks):
        for ours, name in LAYERS.items():
            for part in PARTS:
                if part == "bias" and name.startswith("attention.") and not form.has_bias:
                    continue
                tensor = block[f"{ours}.{part}"]
                if ours == "project_in":  # by head, and not by kind
                    tensor = tensor.unflatten(0, (3, form.heads, -1)).transpose(0, 1).flatten(0, 2)
                theirs[f"gpt_neox.layers.{number}.{name}.{part}"] = tensor
    if not form.tied:
        theirs["embed_out.weight"] = form.head_VD
    share = 1.0 if form.rotated == head else (form.rotated + 0.5) / head  # rounded down to all but the last component
    config = {
        "architectures": ["GPTNeoXForCausalLM"],
        "model_type": "gpt_neox",
        "vocab_size": model.vocab_size,
        "hidden_size": form.width,
        "num_hidden_layers": c.layers,
        "num_attention_heads": c.heads,
        "intermediate_size": c.feedforward or 4 * c.embedding,
        "max_position_embeddings": c.context,
        "hidden_act": THEIR_ACTIVATIONS[c.activation],
        "layer_norm_eps": form.eps,
        "attention_bias": form.has_bias,
        "use_parallel_residual": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": THETA, "partial_rotary_factor": share},
        **{"rotary_pct": share, "rotary_emb_base": THETA},  # the names in older releases
        **dict.fromkeys(("hidden_dropout", "attention_dropout"), c.dropout),
    }
    return finish_decoder(config, theirs, form, tokenizer)
