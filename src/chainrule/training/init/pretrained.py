"""Encoders that were trained before, whoever trained them: their shape, their tokeniser and their weights.

`open_pretrained` takes a folder in the layout of Hugging Face, the name of an installed package that holds one, or the
folder of a run: of `bert` and `elmo`, of `word2vec`, whose vectors are an encoder that reads each word by itself, and
of `transformer`, whose states after each token are one that sees no later words.
Legend: V vocabulary, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from chainrule.checkpoint.folder import RunFolder, load_model
from chainrule.config import RunConfig, parse
from chainrule.errors import ConfigError, RunError
from chainrule.interop.huggingface.bert_encoder import find_pretrained, find_tokenizer, load_bert, read_shape
from chainrule.interop.huggingface.folders import Folder
from chainrule.interop.huggingface.gpt2 import read_gpt2
from chainrule.layers.encoders.bert import BertEncoder
from chainrule.layers.encoders.encoders import BagShape, EncoderShape, TransformerShape
from chainrule.models.language_model import LanguageModelConfig
from chainrule.registry import MODELS
from chainrule.text.tokenizers import Tokenizer
from chainrule.text.tokenizers.huggingface import BLOB, TextTokenizer


@dataclass(frozen=True)
class Pretrained:
    """An encoder to be read by another model."""

    shape: EncoderShape
    tokenizer: str  # where the tokeniser is that its tokens are of: a file or a folder, as `tokenizer.kind` takes it
    fill: Callable[[nn.Module], None]  # puts its weights into an encoder of its shape


def open_pretrained(name: str) -> Pretrained:
    """The encoder of a folder, a package or a run."""
    folder = RunFolder(name)
    if folder.exists():
        return _of_run(folder)
    place = find_pretrained(name)
    if Folder(place).kind == "gpt2":
        return _of_gpt2(place)
    shape, tokenizer = read_shape(place), str(find_tokenizer(place))

    def fill(encoder: nn.Module) -> None:
        assert isinstance(encoder, BertEncoder)
        load_bert(encoder, place)

    return Pretrained(shape, tokenizer, fill)


# Folders in the layout of Hugging Face


def _of_gpt2(place: Path) -> Pretrained:
    folder, tokenizer = Folder(place), find_tokenizer(place)
    native = read_gpt2(folder, folder.weights())
    shape = transformer_shape(native.options, native.tokenizer)
    return Pretrained(shape, str(tokenizer), lambda encoder: _put(encoder, _decoder(native.weights), str(place)))


# Runs


def _of_run(folder: RunFolder) -> Pretrained:
    config = folder.read_config()
    if config.model.name not in READERS:
        raise ConfigError(
            f"{folder.path} is a run of {config.model.name}, whose states are no features for another model; give a "
            f"run of {', '.join(sorted(READERS))}, or a folder in the layout of Hugging Face"
        )
    return READERS[config.model.name](folder, config, folder.read_tokenizer())


def _of_bert(folder: RunFolder, config: RunConfig, tokenizer: Tokenizer) -> Pretrained:
    options = parse(MODELS.get("bert").make.Config, config.model.options, "model")
    shape = options.shape(tokenizer.vocab_size + (options.mask is None))
    return Pretrained(shape, _place(folder, tokenizer), _filler(folder, _encoder))


def _of_elmo(folder: RunFolder, config: RunConfig, tokenizer: Tokenizer) -> Pretrained:
    options = parse(MODELS.get("elmo").make.Config, config.model.options, "model")
    shape = options.shape(tokenizer.vocab_size, first=tokenizer.eos)
    return Pretrained(shape, _place(folder, tokenizer), _filler(folder, _encoder))


def _of_transformer(folder: RunFolder, config: RunConfig, tokenizer: Tokenizer) -> Pretrained:
    shape = transformer_shape(config.model.options, tokenizer)
    return Pretrained(shape, _place(folder, tokenizer), _filler(folder, _decoder))


def _of_word2vec(folder: RunFolder, config: RunConfig, tokenizer: Tokenizer) -> Pretrained:
    model: Any = load_model(folder, tokenizer)  # its arrays are mapped, so this reads next to nothing
    shape = BagShape(vocab_size=model.vocab_size, width=model.vectors_VD.shape[1])

    def fill(encoder: nn.Module) -> None:
        table_VD = torch.zeros(shape.vocab_size, shape.width)  # what has no vector, such as `eos`, says nothing
        table_VD[torch.tensor(model.ids_V, dtype=torch.int64)] = torch.tensor(model.vectors_VD, dtype=torch.float32)
        _put(encoder, {"word_table.weight": table_VD}, str(folder.path))

    return Pretrained(shape, _place(folder, tokenizer), fill)


READERS: dict[str, Callable[[RunFolder, RunConfig, Tokenizer], Pretrained]] = {
    "bert": _of_bert,
    "elmo": _of_elmo,
    "transformer": _of_transformer,
    "word2vec": _of_word2vec,
}
"""Models whose runs are encoders."""


def transformer_shape(options: Mapping[str, Any], tokenizer: Tokenizer) -> TransformerShape:
    """The features of a `transformer` with these options as an encoder; its texts begin with `eos`."""
    told = parse(MODELS.get("transformer").make.Config, dict(options), "model").model_dump()
    of_frame = {name for name in LanguageModelConfig.model_fields if name != "dropout"}
    width = told["embedding"]
    inside = {name: value for name, value in told.items() if name not in of_frame | {"feedforward"}}
    return TransformerShape(
        **inside,
        vocab_size=tokenizer.vocab_size,
        width=width,
        inner=told["feedforward"] or 4 * width,
        first=tokenizer.eos,
    )


def _place(folder: RunFolder, tokenizer: Tokenizer) -> str:
    """Where the tokeniser of a run is, for one that reads lines.

    One that takes texts whole, newlines among their tokens, has a file beside it of which one for lines is made.
    """
    return str(folder.path / BLOB if isinstance(tokenizer, TextTokenizer) else folder.path)


# Weights

Names = Callable[[Mapping[str, Tensor]], dict[str, Tensor]]
"""The weights of a model to those of the encoder inside it, under the encoder's names."""


def _encoder(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Of a model that holds the encoder as it is."""
    return _below(weights, "encoder.")


def _decoder(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Of a language model: its embedding and its features."""
    return {"word_table.weight": weights["embedding.weight"], **_below(weights, "features.")}


def _below(weights: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in weights.items() if name.startswith(prefix)}


def _filler(folder: RunFolder, names: Names) -> Callable[[nn.Module], None]:
    return lambda encoder: _put(encoder, names(folder.read_weights()), str(folder.path))


def _put(encoder: nn.Module, weights: Mapping[str, Tensor], name: str) -> None:
    """All of an encoder's weights, each of its shape."""
    own = encoder.state_dict()
    if {key: tensor.shape for key, tensor in own.items()} != {key: tensor.shape for key, tensor in weights.items()}:
        raise RunError(f"the weights of {name} do not fit its configuration; restore the files that belong together")
    encoder.load_state_dict(dict(weights))
