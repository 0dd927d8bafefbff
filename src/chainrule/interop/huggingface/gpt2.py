"""GPT-2 as Hugging Face keeps it, as our `transformer`, and back.

Radford et al., "Language Models are Unsupervised Multitask Learners", 2019: learned positions, norms before the parts
and one at the end, biases everywhere but in the output. Its linear layers keep their matrices transposed.
Legend: V vocabulary, D width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from chainrule.errors import ConfigError
from chainrule.interop.huggingface.folders import Folder, Foreign, Native, Weights
from chainrule.interop.huggingface.read_tokenizers import read_text_tokenizer
from chainrule.text.tokenizers import Tokenizer

ACTIVATIONS = {
    "gelu_new": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh",
    "gelu": "gelu",
    "relu": "relu",
    "relu2": "relu2",
}
THEIRS = {"gelu-tanh": "gelu_new", "gelu": "gelu", "relu": "relu", "relu2": "relu2"}

NORMS = {"norm_attention": "ln_1", "norm_feedforward": "ln_2"}
LINEARS = {"project_in": "attn.c_attn", "project_out": "attn.c_proj", "widen": "mlp.c_fc", "narrow": "mlp.c_proj"}
"""Layers of a block, and what they are called there."""


def read_gpt2(folder: Folder, weights: Weights) -> Native:
    """The model of a folder as a `transformer`."""
    config = folder.config
    size, width, layers, heads, context = folder.need("vocab_size", "n_embd", "n_layer", "n_head", "n_positions")
    folder.refuse("scale_attn_weights", True)
    folder.refuse("scale_attn_by_inverse_layer_idx", False)
    folder.refuse("add_cross_attention", False)
    tied = bool(config.get("tie_word_embeddings", True))
    options = {
        "embedding": width,
        "layers": layers,
        "heads": heads,
        "feedforward": config.get("n_inner") or 4 * width,
        "context": context,
        "positions": "learned",
        "norm": "pre",
        "activation": folder.choose("activation_function", ACTIVATIONS, "gelu_new"),
        "bias": True,
        "eps": config.get("layer_norm_epsilon", 1e-5),
        "dropout": config.get("resid_pdrop", 0.1),
        "tied": tied,
    }
    tokenizer = read_text_tokenizer(folder, size)
    tensors = weights.below(("transformer.", ""), "wte.weight")
    found = _read(tensors, layers)
    if not tied:
        found["output.weight_VD"] = weights["lm_head.weight"]
    return Native("transformer", options, found, tokenizer, output={"bias": False}, notes=_notes(folder, tokenizer))


def _read(theirs: Weights, layers: int) -> dict[str, Tensor]:
    """Their tensors under our names."""
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


def _notes(folder: Folder, tokenizer: Tokenizer) -> list[str]:
    """What is otherwise than there."""
    first = folder.config.get("bos_token_id")
    if isinstance(first, int) and first != tokenizer.eos and first < tokenizer.vocab_size:
        return [
            f"a text begins with {tokenizer.piece(tokenizer.eos)!r} here, while {folder.path} names "
            f"{tokenizer.piece(first)!r} for it"
        ]
    return []


def write_gpt2(model: Any, tokenizer: Tokenizer) -> Foreign:
    """A `transformer` as a GPT2LMHeadModel, if it is one."""
    c, own = model.config, model.state_dict()
    if c.positions != "learned":
        raise ConfigError(
            f"the run has model.positions = {c.positions}, but GPT-2 has learned ones; train with --set "
            "model.positions=learned"
        )
    if c.norm != "pre":
        raise ConfigError(
            f"the run has model.norm = {c.norm}, but GPT-2 norms before each part; train with --set model.norm=pre"
        )
    refuse_output_bias(model, "GPT-2")
    table_VD = own["embedding.weight"]
    theirs = {"transformer.wte.weight": table_VD, "transformer.wpe.weight": own["features.positions.table_CD"]}
    theirs |= _norm(own, "features.norm", "transformer.ln_f")
    for number in range(c.layers):
        ours, there = f"features.blocks.{number}", f"transformer.h.{number}"
        for name, called in NORMS.items():
            theirs |= _norm(own, f"{ours}.{name}", f"{there}.{called}")
        for name, called in LINEARS.items():
            weight = own[f"{ours}.{name}.weight"]
            theirs[f"{there}.{called}.weight"] = weight.T
            theirs[f"{there}.{called}.bias"] = own.get(f"{ours}.{name}.bias", weight.new_zeros(len(weight)))
    tied = model.output.weight_VD is model.embedding.weight
    if not tied:
        theirs["lm_head.weight"] = own["output.weight_VD"]
    return Foreign(_config(model, tokenizer, tied), theirs, generation=_generation(tokenizer))


def _norm(own: dict[str, Tensor], ours: str, there: str) -> dict[str, Tensor]:
    weight = own[f"{ours}.weight"]
    return {f"{there}.weight": weight, f"{there}.bias": own.get(f"{ours}.bias", torch.zeros_like(weight))}


def _config(model: Any, tokenizer: Tokenizer, tied: bool) -> dict[str, Any]:
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
        "activation_function": THEIRS[c.activation],
        "layer_norm_epsilon": c.eps,
        **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), c.dropout),
        "tie_word_embeddings": tied,
        "dtype": "float32",
        **_generation(tokenizer),
    }


def _generation(tokenizer: Tokenizer) -> dict[str, Any]:
    return {"bos_token_id": tokenizer.eos, "eos_token_id": tokenizer.eos, "pad_token_id": tokenizer.eos}


def refuse_output_bias(model: Any, whose: str) -> None:
    """Raise for an output layer that is more than a product with a vector for each word."""
    if not hasattr(model.output, "weight_VD"):
        raise ConfigError(
            f"the run has the output layer {model.output.name}, but {whose} has one vector for each word; train with "
            "--output softmax"
        )
    if model.output.bias_V is not None and bool(model.output.bias_V.any()):
        raise ConfigError(
            f"the run has a bias in its output layer, but {whose} has none; train with --set output.bias=false"
        )
