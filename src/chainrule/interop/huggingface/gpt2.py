"""GPT-2 in the format of Hugging Face, read as our `transformer` and written from it.

Radford et al., "Language Models are Unsupervised Multitask Learners", 2019: learned positions, pre-norm blocks and a
final norm, biases everywhere except in the output. Its linear layers store their matrices transposed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from chainrule.errors import ConfigError
from chainrule.interop.huggingface.folders import ExportedModel, FolderWeights, HuggingFaceFolder, ImportedModel
from chainrule.interop.huggingface.output_layers import require_no_output_bias
from chainrule.interop.huggingface.read_tokenizers import read_text_tokenizer
from chainrule.text.tokenizers import Tokenizer

ACTIVATIONS = {
    "gelu_new": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh",
    "gelu": "gelu",
    "relu": "relu",
    "relu2": "relu2",
}
THEIR_ACTIVATIONS = {"gelu-tanh": "gelu_new", "gelu": "gelu", "relu": "relu", "relu2": "relu2"}

NORMS = {"norm_attention": "ln_1", "norm_feedforward": "ln_2"}
LINEARS = {"project_in": "attn.c_attn", "project_out": "attn.c_proj", "widen": "mlp.c_fc", "narrow": "mlp.c_proj"}
"""The layers of a block: our names and theirs."""


# Import


def read_gpt2(folder: HuggingFaceFolder, weights: FolderWeights) -> ImportedModel:
    """The model of a folder as a `transformer`."""
    config = folder.config
    size, width, layers, heads, context = folder.require("vocab_size", "n_embd", "n_layer", "n_head", "n_positions")
    folder.require_default("scale_attn_weights", True)
    folder.require_default("scale_attn_by_inverse_layer_idx", False)
    folder.require_default("add_cross_attention", False)
    tied = bool(config.get("tie_word_embeddings", True))
    options = {
        "embedding": width,
        "layers": layers,
        "heads": heads,
        "feedforward": config.get("n_inner") or 4 * width,
        "context": context,
        "positions": "learned",
        "norm": "pre",
        "activation": folder.map_option("activation_function", ACTIVATIONS, "gelu_new"),
        "bias": True,
        "eps": config.get("layer_norm_epsilon", 1e-5),
        "dropout": config.get("resid_pdrop", 0.1),
        "tied": tied,
    }
    tokenizer = read_text_tokenizer(folder, size)
    found = _read_weights(weights.strip_prefix(("transformer.", ""), "wte.weight"), layers)
    if not tied:
        found["output.weight_VD"] = weights["lm_head.weight"]
    notes = _notes(folder, tokenizer)
    return ImportedModel("transformer", options, found, tokenizer, output={"bias": False}, notes=notes)


def _read_weights(theirs: FolderWeights, layers: int) -> dict[str, Tensor]:
    """Their tensors by our names."""
    found = {"embedding.weight": theirs["wte.weight"], "features.positions.table_CD": theirs["wpe.weight"]}
    found |= {f"features.norm.{part}": theirs[f"ln_f.{part}"] for part in ("weight", "bias")}
    for number in range(layers):
        place = f"features.blocks.{number}"
        for ours, name in NORMS.items():
            found |= {f"{place}.{ours}.{part}": theirs[f"h.{number}.{name}.{part}"] for part in ("weight", "bias")}
        for ours, name in LINEARS.items():
            found[f"{place}.{ours}.weight"] = theirs[f"h.{number}.{name}.weight"].T
            found[f"{place}.{ours}.bias"] = theirs[f"h.{number}.{name}.bias"]
    return found


def _notes(folder: HuggingFaceFolder, tokenizer: Tokenizer) -> list[str]:
    """Differences between the folder and the run."""
    first = folder.config.get("bos_token_id")
    if isinstance(first, int) and first != tokenizer.eos and first < tokenizer.vocab_size:
        return [
            f"a text begins with {tokenizer.piece(tokenizer.eos)!r} here, but {folder.path} begins it with "
            f"{tokenizer.piece(first)!r}"
        ]
    return []


# Export


def write_gpt2(model: Any, tokenizer: Tokenizer) -> ExportedModel:
    """A `transformer` as a GPT2LMHeadModel; options that GPT-2 lacks are refused."""
    c, own = model.config, model.state_dict()
    if c.positions != "learned":
        raise ConfigError(
            f"the run has model.positions = {c.positions}, but GPT-2 has learned positions; train with --set "
            "model.positions=learned"
        )
    if c.norm != "pre":
        raise ConfigError(f"the run has model.norm = {c.norm}, but GPT-2 is pre-norm; train with --set model.norm=pre")
    require_no_output_bias(model, "GPT-2")
    table_VD = own["embedding.weight"]
    theirs = {"transformer.wte.weight": table_VD, "transformer.wpe.weight": own["features.positions.table_CD"]}
    theirs |= _write_norm(own, "features.norm", "transformer.ln_f")
    for number in range(c.layers):
        ours, there = f"features.blocks.{number}", f"transformer.h.{number}"
        for our_name, their_name in NORMS.items():
            theirs |= _write_norm(own, f"{ours}.{our_name}", f"{there}.{their_name}")
        for our_name, their_name in LINEARS.items():
            weight = own[f"{ours}.{our_name}.weight"]
            theirs[f"{there}.{their_name}.weight"] = weight.T
            theirs[f"{there}.{their_name}.bias"] = own.get(f"{ours}.{our_name}.bias", weight.new_zeros(len(weight)))
    tied = model.output.weight_VD is model.embedding.weight
    if not tied:
        theirs["lm_head.weight"] = own["output.weight_VD"]
    return ExportedModel(_write_config(model, tokenizer, tied), theirs, generation=_generation(tokenizer))


def _write_norm(own: dict[str, Tensor], ours: str, there: str) -> dict[str, Tensor]:
    weight = own[f"{ours}.weight"]
    return {f"{there}.weight": weight, f"{there}.bias": own.get(f"{ours}.bias", torch.zeros_like(weight))}


def _write_config(model: Any, tokenizer: Tokenizer, tied: bool) -> dict[str, Any]:
    c = model.config
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": model.vocab_size,
        "n_embd": c.embedding,
        "n_layer": c.layers,
        "n_head": c.heads,
        "n_inner": c.feedforward or 4 * c.embedding,
        "n_positions": c.context,
        "activation_function": THEIR_ACTIVATIONS[c.activation],
        "layer_norm_epsilon": c.eps,
        **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), c.dropout),
        "tie_word_embeddings": tied,
        "dtype": "float32",
        **_generation(tokenizer),
    }


def _generation(tokenizer: Tokenizer) -> dict[str, Any]:
    return {"bos_token_id": tokenizer.eos, "eos_token_id": tokenizer.eos, "pad_token_id": tokenizer.eos}
