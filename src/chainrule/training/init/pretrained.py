"""Pretrained encoders: their shape, their tokeniser and their weights.

`open_pretrained` takes a folder in the layout of Hugging Face, the name of an installed package that holds one, or the
folder of a run whose model is an encoder (`Model.encodes`): `bert` and `elmo`; `word2vec`, whose vectors are an encoder
that reads each word separately; `transformer`, whose states after each token are an encoder that sees no later words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from chainrule.checkpoint.build import model_options
from chainrule.checkpoint.folder import RunFolder
from chainrule.config import NamedSection, RunConfig, parse
from chainrule.errors import ConfigError, RunError
from chainrule.interop.huggingface.bert_encoder import find_pretrained, find_tokenizer, load_bert, read_shape
from chainrule.interop.huggingface.folders import HuggingFaceFolder
from chainrule.interop.huggingface.gpt2 import read_gpt2
from chainrule.layers.encoders.bert import BertEncoder
from chainrule.registry import MODELS
from chainrule.tasks.task import Task
from chainrule.text.tokenizers import Tokenizer
from chainrule.text.tokenizers.huggingface import BLOB, ByteLevelTokenizer


@dataclass(frozen=True)
class Pretrained:
    """An encoder whose states another model reads."""

    shape: Any  # of layers/encoders
    tokenizer: str  # file or folder of its tokeniser, as a value of `tokenizer.kind`
    fill: Callable[[nn.Module], None]  # puts its weights into an encoder of its shape


def with_pretrained(config: RunConfig, task: Task, folder: RunFolder) -> RunConfig:
    """The configuration with the shape and the tokeniser of the pretrained encoder that it names, if any.

    The encoder is opened when a run is begun; afterwards the run's own configuration holds all of it.
    """
    options = config.model.options
    if not options.get("pretrained"):
        return config
    if folder.exists():
        return config.model_copy(update={"model": folder.read_config().model})
    if config.init and "pretrained_shape" in options:
        return config
    pretrained = open_pretrained(options["pretrained"])
    options["pretrained_shape"] = pretrained.shape.model_dump(mode="json", exclude_none=True)
    return config.model_copy(
        update={
            "model": NamedSection(name=config.model.name, **options),
            "tokenizer": task.with_encoder_tokenizer(config.tokenizer, pretrained.tokenizer),
        }
    )


def open_pretrained(name: str) -> Pretrained:
    """The encoder of a folder, a package or a run."""
    folder = RunFolder.open(name)
    if folder.exists():
        return _from_run(folder)
    place = find_pretrained(name)
    if HuggingFaceFolder(place).model_type == "gpt2":
        return _from_gpt2(place)

    def fill(encoder: nn.Module) -> None:
        assert isinstance(encoder, BertEncoder)
        load_bert(encoder, place)

    return Pretrained(read_shape(place), str(find_tokenizer(place)), fill)


def _from_gpt2(place: Path) -> Pretrained:
    """GPT-2 in the layout of Hugging Face, read as a `transformer`."""
    folder, tokenizer = HuggingFaceFolder(place), find_tokenizer(place)
    native, make = read_gpt2(folder, folder.load_weights()), MODELS.get("transformer").make
    options, size = parse(make.Config, native.options, "model"), native.tokenizer.vocab_size
    weights = make.encoder_weights(options, native.weights, size)
    shape = make.encoder_shape(options, size, native.tokenizer.eos)
    return Pretrained(shape, str(tokenizer), lambda encoder: _load(encoder, weights, str(place)))


def _from_run(folder: RunFolder) -> Pretrained:
    config, tokenizer = folder.read_config(), folder.read_tokenizer()
    make = MODELS.get(config.model.name).make
    if not make.encodes:
        encoders = [entry.name for entry in MODELS.entries() if entry.make.encodes]
        raise ConfigError(
            f"{folder.path} is a run of {config.model.name}, which is not an encoder; give a run of "
            f"{', '.join(encoders)}, or a folder in the layout of Hugging Face"
        )
    options, size = model_options(config), tokenizer.vocab_size

    def fill(encoder: nn.Module) -> None:
        _load(encoder, make.encoder_weights(options, folder.read_weights(), size), str(folder.path))

    return Pretrained(make.encoder_shape(options, size, tokenizer.eos), _tokenizer_path(folder, tokenizer), fill)


def _tokenizer_path(folder: RunFolder, tokenizer: Tokenizer) -> str:
    """Where the tokeniser of a run is, for a model that reads lines.

    For a tokeniser of whole texts, with newlines among its tokens, it is the file that also gives one for lines.
    """
    return str(folder.path / BLOB if isinstance(tokenizer, ByteLevelTokenizer) else folder.path)


def _load(encoder: nn.Module, weights: Mapping[str, Tensor], name: str) -> None:
    """All of an encoder's weights, each of its shape."""
    own = encoder.state_dict()
    if {key: tensor.shape for key, tensor in own.items()} != {key: tensor.shape for key, tensor in weights.items()}:
        raise RunError(f"the weights of {name} do not fit its configuration; restore the files that belong together")
    encoder.load_state_dict(dict(weights))
