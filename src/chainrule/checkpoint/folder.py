"""A run is a folder; this file is its whole format.

    config.toml          everything resolved
    tokenizer.*          see text/tokenizers
    model.safetensors    the weights to use: the best on validation
    metrics.jsonl        one object a log line
    result.json          what the training came to, once it has ended
    signature            data, tokeniser, seed and versions, one a line
    training/step-N/     weights, optimiser, random state, carried state: all that resuming needs
    training/request.json  the options as given, to recognise the same command
    source/tokenizer.*   of a translator with two vocabularies: that of the source
    parts/N/             of a mixture: the runs it is made of

Everything is written beside its place and moved there, so a kill leaves the last good version.
"""

from __future__ import annotations

import json
import platform
import shutil
from collections.abc import Collection
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.torch import load as load_bytes
from safetensors.torch import save as save_bytes
from torch import Tensor, nn

from chainrule.base.files import disk_errors, folder_atomically, write_atomically
from chainrule.config import RunConfig, parse, read_toml, write_toml
from chainrule.errors import ConfigError, RunError
from chainrule.registry import MODELS, OUTPUTS
from chainrule.text.tokenizers import Tokenizer, load_tokenizer
from chainrule.types import OutputChoice, Vocabulary

COUNTS = "unigram_counts"
OF_ARRAYS = ("counting", "sweeps")
"""Ways of making models that no gradient of torch goes through: they keep and load their own arrays."""

OF_TRAINING = ("output", "objective", "training")
"""Sections of config.toml that say nothing about a model which no gradient made."""


class WeightsError(RunError):
    """Weights of one model were given to another."""


@dataclass
class Checkpoint:
    """All that resuming needs: tensors by name, and plain values."""

    tensors: dict[str, Tensor]
    values: dict[str, Any]


class RunFolder:
    """Reads and writes the parts of one run."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    # What the run is

    def exists(self) -> bool:
        return (self.path / "config.toml").exists()

    def write_config(self, config: RunConfig, without: Collection[str] = ()) -> None:
        """Everything resolved, but for sections that say nothing about this run."""
        write_atomically(self.path / "config.toml", write_toml(config, without))

    def read_config(self) -> RunConfig:
        if not self.path.exists():
            raise RunError(f"no run at {self.path}; train one with: chainrule train TEXT --out {self.path}")
        if not self.exists():
            raise RunError(
                f"{self.path} is not a run: it has no config.toml; give the folder that train made with --out"
            )
        return parse(RunConfig, read_toml(self.path / "config.toml"))

    def write_signature(self, lines: dict[str, str]) -> None:
        versions = {name: metadata.version(name) for name in ("chainrule", "torch", "numpy")}
        whole = {**lines, **versions, "python": platform.python_version()}
        write_atomically(self.path / "signature", "".join(f"{key}: {value}\n" for key, value in whole.items()))

    def read_signature(self) -> dict[str, str]:
        try:
            lines = (self.path / "signature").read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            raise RunError(f"{self.path} has no signature: it was not fully made; train it again") from None
        return dict(line.split(": ", 1) for line in lines)

    def read_tokenizer(self) -> Tokenizer:
        self.read_config()
        return load_tokenizer(self.path)

    def read_source_tokenizer(self) -> Tokenizer | None:
        """Of a translator with two vocabularies: that of the text it reads."""
        place = self.path / "source"
        return load_tokenizer(place) if (place / "tokenizer.json").exists() else None

    # The weights

    def write_model(self, model: Any) -> None:
        if hasattr(model, "save"):  # it has a form of its own
            model.save(self.path / "model.safetensors")
            return
        write_atomically(self.path / "model.safetensors", save_bytes(weights_of(model)))

    def has_model(self) -> bool:
        return (self.path / "model.safetensors").exists()

    def read_weights(self) -> dict[str, Tensor]:
        path = self.path / "model.safetensors"
        if not path.exists():
            raise RunError(f"{self.path} has no model yet; run the same train command again to finish its training")
        return _read_tensors(path, f"{path} is damaged; run the same train command again, or restore the file")

    # The training

    def write_request(self, request: dict[str, Any]) -> None:
        write_atomically(self.path / "training" / "request.json", json.dumps(request, indent=1, ensure_ascii=False))

    def read_request(self) -> dict[str, Any] | None:
        return _read_json(self.path / "training" / "request.json")

    def write_result(self, result: dict[str, Any]) -> None:
        write_atomically(self.path / "result.json", json.dumps(result, indent=1, ensure_ascii=False))

    def remove_result(self) -> None:
        """The training goes on: what it came to is open again."""
        (self.path / "result.json").unlink(missing_ok=True)

    def read_result(self) -> dict[str, Any] | None:
        return _read_json(self.path / "result.json")

    def write_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Add a checkpoint; the ones before it go once it is safely there."""
        older = self._checkpoints()
        place = self.path / "training" / f"step-{checkpoint.values['step']:09d}"
        with folder_atomically(place) as folder:
            write_atomically(folder / "tensors.safetensors", save_bytes(_contiguous(checkpoint.tensors)))
            write_atomically(folder / "values.json", json.dumps(checkpoint.values))
        for path in older:
            if path != place:
                shutil.rmtree(path, ignore_errors=True)

    def read_checkpoint(self) -> Checkpoint | None:
        """The newest checkpoint, or None if there is none."""
        if not (paths := self._checkpoints()):
            return None
        values = _read_json(paths[-1] / "values.json")
        if values is None:
            raise RunError(f"{paths[-1]} is damaged; delete {self.path / 'training'} to train from the start")
        sentence = f"{paths[-1]} is damaged; delete {self.path / 'training'} to train from the start"
        return Checkpoint(_read_tensors(paths[-1] / "tensors.safetensors", sentence), values)

    def _checkpoints(self) -> list[Path]:
        return sorted((self.path / "training").glob("step-*"))

    # The log

    def log(self, record: dict[str, Any]) -> int:
        """Append a line to the metrics -> the file's length after it."""
        path = self.path / "metrics.jsonl"
        with disk_errors(path), path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
            return file.tell()

    def cut_log(self, length: int) -> None:
        """Forget what was logged after a checkpoint that training goes back to."""
        path = self.path / "metrics.jsonl"
        if path.exists():
            with path.open("r+b") as file:
                file.truncate(length)


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """A model's tensors by name; one that stands in two places (a tied matrix) is named once."""
    seen: dict[int, str] = {}
    weights: dict[str, Tensor] = {}
    for name, tensor in model.state_dict().items():
        if tensor.numel() and seen.setdefault(tensor.data_ptr(), name) != name:
            continue
        weights[name] = tensor
    return _contiguous(weights)


def load_weights(model: nn.Module, weights: dict[str, Tensor]) -> None:
    """Put named tensors into a model; tied places follow by themselves."""
    own = model.state_dict()
    needed = set(weights_of(model))
    fits = needed <= set(weights) <= set(own) and all(weights[name].shape == own[name].shape for name in weights)
    if not fits:
        raise WeightsError("the weights do not fit the model of config.toml; the run's files come from different runs")
    model.load_state_dict(weights, strict=False)


def build_model(config: RunConfig, vocabulary: Vocabulary) -> nn.Module:
    """The model that a configuration names, freshly initialised."""
    entry = MODELS.get(config.model.name)
    if entry.about.get("made_by") in OF_ARRAYS:
        raise ConfigError(f"{entry.name} has no weights to start from; it is made from tokens alone")
    if entry.about.get("made_by") == "mix":
        raise ConfigError(
            f"a {entry.name} is not trained but made of runs: chainrule mix RUN RUN --valid TEXT --out RUN"
        )
    make = entry.make
    output = OUTPUTS.get(config.output.name).make
    choice = OutputChoice(output, parse(output.Config, config.output.options, "output"))
    model: nn.Module = make(parse(make.Config, config.model.options, "model"), vocabulary, choice)
    return model


def load_model(folder: RunFolder, tokenizer: Tokenizer) -> nn.Module:
    """The trained model of a run, ready to use."""
    config = folder.read_config()
    entry = MODELS.get(config.model.name)
    if entry.about.get("made_by") in OF_ARRAYS:
        options = parse(entry.make.Config, config.model.options, "model")
        counted = entry.make.load(options, folder.path / "model.safetensors")
        _check_vocabulary(folder, tokenizer, counted.vocab_size)
        return counted.eval()  # type: ignore[no-any-return]
    weights = folder.read_weights()
    if (counts_V := weights.get(COUNTS)) is None:
        raise RunError(
            f"{folder.path / 'model.safetensors'} is not of a model of this package; restore the run's own file"
        )
    _check_vocabulary(folder, tokenizer, len(counts_V))
    vocabulary = _vocabulary(tokenizer, counts_V, folder.read_source_tokenizer())
    if entry.about.get("made_by") == "mix":
        return _load_mixture(folder, config, vocabulary, weights, tokenizer)
    model = build_model(config, vocabulary)
    load_weights(model, weights)
    return model.eval()


def adjust(model: Any, options: dict[str, Any]) -> None:
    """Change options of a trained model, those that its configuration marks as live: no weight depends on them."""
    fields = getattr(type(model.config), "model_fields", {})
    live = [name for name, field in fields.items() if (field.json_schema_extra or {}).get("live")]
    for name in options:
        if name not in live:
            can = f"; what can be set now: {', '.join(live)}" if live else "; nothing can be set after its training"
            raise ConfigError(f"model.{name} was settled when the model was trained{can}")
    model.config = parse(type(model.config), {**model.config.model_dump(), **options}, "model")


def _vocabulary(tokenizer: Tokenizer, counts_V: Tensor, source: Tokenizer | None) -> Vocabulary:
    read = None if source is None else Vocabulary(source.vocab_size, source.eos, np.zeros(source.vocab_size, np.int64))
    return Vocabulary(tokenizer.vocab_size, tokenizer.eos, counts_V.numpy(), read)


def _check_vocabulary(folder: RunFolder, tokenizer: Tokenizer, size: int) -> None:
    if size != tokenizer.vocab_size:
        raise RunError(
            f"{folder.path}: the tokeniser has {tokenizer.vocab_size} tokens but the model was trained with "
            f"{size}; put back the tokenizer files that were saved with the run"
        )


def count_parameters(model: Any) -> int:
    """The numbers a model consists of."""
    if hasattr(model, "parameter_count"):
        return int(model.parameter_count)
    return sum(p.numel() for p in model.parameters())


def _load_mixture(
    folder: RunFolder, config: RunConfig, vocabulary: Vocabulary, weights: dict[str, Tensor], tokenizer: Tokenizer
) -> nn.Module:
    """A mixture from the runs in its folder `parts`."""
    if "weights" not in weights:
        raise RunError(f"{folder.path / 'model.safetensors'} is not of a mixture; restore the run's own file")
    make = MODELS.get(config.model.name).make
    options = parse(make.Config, config.model.options, "model")
    parts = [load_model(RunFolder(folder.path / "parts" / str(number)), tokenizer) for number in range(options.parts)]
    model: nn.Module = make(options, vocabulary, parts, weights["weights"])
    return model.eval()


def _contiguous(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().contiguous().cpu() for name, tensor in tensors.items()}


def _read_tensors(path: Path, sentence: str) -> dict[str, Tensor]:
    try:
        tensors: dict[str, Tensor] = load_bytes(path.read_bytes())
    except (SafetensorError, FileNotFoundError, ValueError):
        raise RunError(sentence) from None
    return tensors


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError, UnicodeDecodeError):
        return None
    return values
