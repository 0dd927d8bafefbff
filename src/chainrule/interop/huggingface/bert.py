"""BERT, RoBERTa and DistilBERT with their heads as runs of `bert`, and back.

The heads of all three are a layer of the same width, an activation and a norm, then the table of words and a bias.
Legend: V vocabulary, D width.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from chainrule.errors import ConfigError
from chainrule.interop.huggingface.bert_encoder import (
    BLOCK,
    DISTIL_BLOCK,
    DISTIL_OPTIONS,
    OPTIONS,
    TOKENIZER,
    bare_names,
    encoder_weights,
    first_of,
    new_name,
    read_shape,
)
from chainrule.interop.huggingface.folders import CONFIG, Folder, Foreign, Native, Weights
from chainrule.interop.huggingface.read_tokenizers import read_content, read_line_tokenizer
from chainrule.models.translator import BertShape
from chainrule.text.tokenizers import Tokenizer
from chainrule.text.tokenizers.huggingface import HuggingFaceTokenizer

HEADS = {
    "bert": ("cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm", "cls.predictions"),
    "roberta": ("lm_head.dense", "lm_head.layer_norm", "lm_head"),
    "distilbert": ("vocab_transform", "vocab_layer_norm", "vocab_projector"),
}
"""What the layers of the head are called: the one between, its norm, and where the words' biases are."""

ARCHITECTURES = {"bert": "BertForMaskedLM", "roberta": "RobertaForMaskedLM", "distilbert": "DistilBertForMaskedLM"}
MASKS = ("[MASK]", "<mask>")


def read_bert(folder: Folder, weights: Weights) -> Native:
    """The model of a folder as a `bert`; a head that it does not have is begun anew."""
    shape = read_shape(folder.path)
    tokenizer = read_line_tokenizer(folder, shape.vocab_size)
    first = first_of(read_content(folder), str(folder.path / TOKENIZER))
    mask = next((token for token in map(tokenizer.to_id, MASKS) if token is not None), None)
    if mask is None:
        raise ConfigError(
            f"the tokeniser of {folder.path} has none of {', '.join(MASKS)}, the token that hides a word; restore the "
            "file that came with the model"
        )
    options = shape.model_dump(exclude={"vocab_size"}) | {"first": first, "mask": mask}
    found = {f"encoder.{name}": tensor for name, tensor in encoder_weights(weights, shape).items()}
    head = _read_head(weights, shape)
    notes = [] if head else [NO_HEAD]
    fresh = () if head else ("transform.", "transform_norm.", "output.")
    return Native("bert", options, found | head, tokenizer, notes=notes, fresh=fresh)


NO_HEAD = (
    "the encoder comes without a head, so the run's has fresh weights: its vectors are of use, the words it tells are "
    "not before it is trained"
)


def _read_head(weights: Weights, shape: BertShape) -> dict[str, Tensor]:
    """The head under our names; empty if there is none."""
    tensors = Weights({new_name(name): tensor for name, tensor in weights.tensors.items()}, weights.file)
    between, norm, words = HEADS[shape.kind]
    if f"{between}.weight" not in tensors:
        return {}
    if shape.kind == "roberta" and shape.activation != "gelu":
        raise ConfigError(
            f"{weights.file} has a head of RoBERTa, whose activation is gelu, but {CONFIG} has {shape.activation} for "
            "the layers; only models with one for both can be read"
        )
    found = {f"transform.{part}": tensors[f"{between}.{part}"] for part in ("weight", "bias")}
    found |= {f"transform_norm.{part}": tensors[f"{norm}.{part}"] for part in ("weight", "bias")}
    bias = f"{words}.bias" if f"{words}.bias" in tensors else f"{words}.decoder.bias"
    found["output.bias_V"] = tensors[bias]
    table = f"{words}.weight" if shape.kind == "distilbert" else f"{words}.decoder.weight"
    if table in tensors and not torch.equal(tensors[table], bare_names(weights)["embeddings.word_embeddings.weight"]):
        raise ConfigError(
            f"{weights.file} has a table of words for the output that is not that of the input, but only models with "
            "one table for both can be read"
        )
    return found


def write_bert(model: Any, tokenizer: Tokenizer) -> Foreign:
    """A `bert` as a model with a masked head of its own kind."""
    shape, own = model.encoder.shape, model.state_dict()
    if shape.kind == "distilbert" and shape.eps != 1e-12:
        raise ConfigError(
            f"the run has model.eps = {shape.eps:g}, but that of DistilBERT is 1e-12; train with --set model.eps=1e-12"
        )
    if shape.kind == "roberta" and shape.activation != "gelu":
        raise ConfigError(
            f"the run has model.activation = {shape.activation}, but that of RoBERTa's head is gelu; train with --set "
            "model.activation=gelu"
        )
    if shape.kind == "roberta" and not isinstance(tokenizer, HuggingFaceTokenizer):
        raise ConfigError(
            "RoBERTa counts positions by which tokens are padding, and the run's padding is a word of its tokeniser; "
            "train with --set model.kind=bert"
        )
    if model.output.bias_V is None:
        own["output.bias_V"] = torch.zeros(model.vocab_size)
    typed = shape.types or 1  # where there are no token types they have one there, whose vector is nought
    theirs = _write_encoder(own, shape, typed)
    between, norm, words = HEADS[shape.kind]
    for part in ("weight", "bias"):
        theirs[f"{between}.{part}"] = own[f"transform.{part}"]
        theirs[f"{norm}.{part}"] = own[f"transform_norm.{part}"]
    missing = shape.vocab_size - model.vocab_size  # the mask, which is read but never told
    bias_V = torch.cat([own["output.bias_V"], own["output.bias_V"].new_full((missing,), NEVER)])
    theirs[f"{words}.bias"] = bias_V
    special = {"mask_token": model.mask, "sep_token": tokenizer.eos}
    if shape.first is not None:
        special["cls_token"] = shape.first
    if isinstance(tokenizer, HuggingFaceTokenizer):  # whose tokens for padding are no words
        special["pad_token"] = shape.pad
    return Foreign(_config(model, typed), theirs, first=shape.first, ends=True, special=special)


NEVER = -1e4
"""The bias of a token that is not to be told."""


def _write_encoder(own: Mapping[str, Tensor], shape: BertShape, typed: int) -> dict[str, Tensor]:
    distil = shape.kind == "distilbert"
    tables = {"word_table": "word_embeddings", "position_table": "position_embeddings"}
    theirs = {f"embeddings.{name}.weight": own[f"encoder.{ours}.weight"] for ours, name in tables.items()}
    theirs |= {f"embeddings.LayerNorm.{part}": own[f"encoder.norm.{part}"] for part in ("weight", "bias")}
    if not distil:
        nought = torch.zeros(typed, shape.width)
        theirs["embeddings.token_type_embeddings.weight"] = own.get("encoder.type_table.weight", nought)
    for number in range(shape.layers):
        place = f"{'transformer' if distil else 'encoder'}.layer.{number}"
        for ours, names in (DISTIL_BLOCK if distil else BLOCK).items():
            for part in ("weight", "bias"):
                parts = own[f"encoder.blocks.{number}.{ours}.{part}"].chunk(len(names))
                theirs |= {f"{place}.{name}.{part}": tensor for name, tensor in zip(names, parts, strict=True)}
    return {f"{shape.kind}.{name}": tensor for name, tensor in theirs.items()}


def _config(model: Any, typed: int) -> dict[str, Any]:
    shape = model.encoder.shape
    names = DISTIL_OPTIONS if shape.kind == "distilbert" else OPTIONS
    called = {"gelu": "gelu", "gelu-tanh": "gelu_new", "relu": "relu", "swish": "silu"}
    values = {**shape.model_dump(), "types": typed, "activation": called[shape.activation]}
    return {
        "architectures": [ARCHITECTURES[shape.kind]],
        "model_type": shape.kind,
        **{name: values[ours] for ours, name in names.items()},
        "tie_word_embeddings": True,
        "dtype": "float32",
        **({"sinusoidal_pos_embds": False} if shape.kind == "distilbert" else {}),
    }
