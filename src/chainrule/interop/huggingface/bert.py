"""BERT, RoBERTa and DistilBERT with their heads in the format of Hugging Face, read as our `bert` and written from it.

The heads of all three are a layer of the same width, an activation and a norm, then the table of words and a bias.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from chainrule.checkpoint.build import model_options
from chainrule.config import RunConfig
from chainrule.errors import ConfigError
from chainrule.interop.common import Obstacle
from chainrule.interop.huggingface.bert_encoder import (
    BLOCK,
    DISTIL_BLOCK,
    DISTIL_OPTIONS,
    OPTIONS,
    POOLER,
    TOKENIZER,
    current_name,
    encoder_tensors,
    encoder_weights,
    first_special_token,
    read_shape,
)
from chainrule.interop.huggingface.folders import (
    CONFIG,
    RESTORE,
    ExportedModel,
    FolderWeights,
    HuggingFaceFolder,
    ImportedModel,
)
from chainrule.interop.huggingface.read_tokenizers import read_line_tokenizer, read_tokenizer_json
from chainrule.layers.encoders.bert import BertShape
from chainrule.text.tokenizers import Tokenizer
from chainrule.text.tokenizers.huggingface import HuggingFaceTokenizer

HEADS = {
    "bert": ("cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm", "cls.predictions"),
    "roberta": ("lm_head.dense", "lm_head.layer_norm", "lm_head"),
    "distilbert": ("vocab_transform", "vocab_layer_norm", "vocab_projector"),
}
"""The names of the layers of the head: the dense layer, its norm, and the layer with the biases of the words."""

ARCHITECTURES = {"bert": "BertForMaskedLM", "roberta": "RobertaForMaskedLM", "distilbert": "DistilBertForMaskedLM"}
MASK_PIECES = ("[MASK]", "<mask>")


def read_bert(folder: HuggingFaceFolder, weights: FolderWeights) -> ImportedModel:
    """The model of a folder as a `bert`; a missing head gets initial weights."""
    shape = read_shape(folder.path)
    tokenizer = read_line_tokenizer(folder, shape.vocab_size)
    first = first_special_token(read_tokenizer_json(folder), str(folder.path / TOKENIZER))
    mask = next((token for token in map(tokenizer.to_id, MASK_PIECES) if token is not None), None)
    if mask is None:
        raise ConfigError(f"the tokeniser of {folder.path} has no mask token, {' or '.join(MASK_PIECES)}; {RESTORE}")
    options = shape.model_dump(exclude={"vocab_size", "published_inputs"}) | {"first": first, "mask": mask}
    found = {f"encoder.{name}": tensor for name, tensor in encoder_weights(weights, shape).items()}
    head = _read_head(weights, shape)
    notes = [] if head else [NO_HEAD]
    fresh = () if head else ("transform.", "transform_norm.", "output.")
    return ImportedModel("bert", options, found | head, tokenizer, notes=notes, fresh=fresh)


NO_HEAD = (
    "the encoder has no head, so the head of the run has initial weights: its vectors can be used, but its predictions "
    "of words only after training"
)


def _read_head(weights: FolderWeights, shape: BertShape) -> dict[str, Tensor]:
    """The head by our names; empty if there is none."""
    tensors = FolderWeights({current_name(name): tensor for name, tensor in weights.tensors.items()}, weights.file)
    dense, norm, words = HEADS[shape.kind]
    if f"{dense}.weight" not in tensors:
        return {}
    if shape.kind == "roberta" and shape.activation != "gelu":
        raise ConfigError(
            f"{weights.file} has a head of RoBERTa, whose activation is gelu, but {CONFIG} has {shape.activation} for "
            "the layers; supported are only models with the same activation for both"
        )
    found = {f"transform.{part}": tensors[f"{dense}.{part}"] for part in ("weight", "bias")}
    found |= {f"transform_norm.{part}": tensors[f"{norm}.{part}"] for part in ("weight", "bias")}
    bias = f"{words}.bias" if f"{words}.bias" in tensors else f"{words}.decoder.bias"
    found["output.bias_V"] = tensors[bias]
    table = f"{words}.weight" if shape.kind == "distilbert" else f"{words}.decoder.weight"
    if table in tensors and not torch.equal(
        tensors[table], encoder_tensors(weights)["embeddings.word_embeddings.weight"]
    ):
        raise ConfigError(
            f"{weights.file} has an output table that differs from the input embedding; supported are only models with "
            "one table for both"
        )
    return found


def bert_obstacles(config: RunConfig) -> list[Obstacle]:
    """What the kinds of BERT do not have."""
    found, options = [], model_options(config)
    if options.kind == "distilbert" and options.eps != 1e-12:
        found.append(Obstacle(f"model.eps is {options.eps:g}, but DistilBERT has 1e-12", "--set model.eps=1e-12"))
    if options.kind == "roberta" and options.activation != "gelu":
        reason = f"model.activation is {options.activation}, but the head of RoBERTa has gelu"
        found.append(Obstacle(reason, "--set model.activation=gelu"))
    if options.kind == "roberta" and config.tokenizer.kind not in (None, HuggingFaceTokenizer.kind):
        reason = "RoBERTa computes positions from padding tokens, but the padding of the run is a word of its tokeniser"
        found.append(Obstacle(reason, "--set model.kind=bert"))
    return found


def write_bert(model: Any, tokenizer: Tokenizer) -> ExportedModel:
    """A `bert` as a model of its kind with a masked head."""
    shape, own = model.encoder.shape, model.state_dict()
    if model.output.bias_V is None:
        own["output.bias_V"] = torch.zeros(model.vocab_size)
    types = shape.types or 1  # they have at least one token type; a missing one is a zero vector
    theirs = _write_encoder(own, shape, types)
    dense, norm, words = HEADS[shape.kind]
    for part in ("weight", "bias"):
        theirs[f"{dense}.{part}"] = own[f"transform.{part}"]
        theirs[f"{norm}.{part}"] = own[f"transform_norm.{part}"]
    missing = shape.vocab_size - model.vocab_size  # the mask, which is read but never predicted
    bias_V = torch.cat([own["output.bias_V"], own["output.bias_V"].new_full((missing,), BANNED_BIAS)])
    theirs[f"{words}.bias"] = bias_V
    special = {"mask_token": model.mask, "sep_token": tokenizer.eos}
    if shape.first is not None:
        special["cls_token"] = shape.first
    if isinstance(tokenizer, HuggingFaceTokenizer):  # it has a padding token that is not a word
        special["pad_token"] = shape.pad
    return ExportedModel(
        _write_config(model, types), theirs, first_token=shape.first, appends_end=True, special_tokens=special
    )


BANNED_BIAS = -1e4
"""The output bias of a token that must not be predicted."""


def _write_encoder(own: Mapping[str, Tensor], shape: BertShape, types: int) -> dict[str, Tensor]:
    distil = shape.kind == "distilbert"
    tables = {"word_table": "word_embeddings", "position_table": "position_embeddings"}
    theirs = {f"embeddings.{name}.weight": own[f"encoder.{ours}.weight"] for ours, name in tables.items()}
    theirs |= {f"embeddings.LayerNorm.{part}": own[f"encoder.norm.{part}"] for part in ("weight", "bias")}
    if not distil:
        zeros = torch.zeros(types, shape.width)
        theirs["embeddings.token_type_embeddings.weight"] = own.get("encoder.type_table.weight", zeros)
    for number in range(shape.layers):
        place = f"{'transformer' if distil else 'encoder'}.layer.{number}"
        for ours, names in (DISTIL_BLOCK if distil else BLOCK).items():
            for part in ("weight", "bias"):
                parts = own[f"encoder.blocks.{number}.{ours}.{part}"].chunk(len(names))
                theirs |= {f"{place}.{name}.{part}": tensor for name, tensor in zip(names, parts, strict=True)}
    if shape.pooler:
        theirs |= {f"{POOLER}.{part}": own[f"encoder.pooler.{part}"] for part in ("weight", "bias")}
    return {f"{shape.kind}.{name}": tensor for name, tensor in theirs.items()}


def _write_config(model: Any, types: int) -> dict[str, Any]:
    shape = model.encoder.shape
    names = DISTIL_OPTIONS if shape.kind == "distilbert" else OPTIONS
    activations = {"gelu": "gelu", "gelu-tanh": "gelu_new", "relu": "relu", "swish": "silu"}
    values = {**shape.model_dump(), "types": types, "activation": activations[shape.activation]}
    return {
        "architectures": [ARCHITECTURES[shape.kind]],
        "model_type": shape.kind,
        **{name: values[ours] for ours, name in names.items()},
        "tie_word_embeddings": True,
        "dtype": "float32",
        **({"sinusoidal_pos_embds": False} if shape.kind == "distilbert" else {}),
    }
