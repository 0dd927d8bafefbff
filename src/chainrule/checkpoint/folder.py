"""A run is a folder; this file is its whole format.

    config.toml          every option, resolved
    tokenizer.*          see text/tokenizers
    model.safetensors    the weights to use: the best on validation
    metrics.jsonl        one object per log line
    result.json          the result of the training, once it has ended
    signature            data, tokeniser, seed and versions, one per line
    training/step-N/     weights, optimiser, random state, carried state: all that resuming needs
    training/request.json  the options as given, to recognise the same command
    source/tokenizer.*   translators with two vocabularies: the tokeniser of the source
    parts/N/             mixtures: the runs they consist of

Everything is written beside its final place and then moved there, so a kill leaves the last good version.
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

from safetensors import SafetensorError
from safetensors.torch import load as load_bytes
from safetensors.torch import save as save_bytes
from torch import Tensor

from chainrule.base.files import disk_errors, folder_atomically, write_atomically
from chainrule.config import RunConfig, parse, read_toml, write_toml
from chainrule.errors import RunError
from chainrule.text.tokenizers import Tokenizer, load_tokenizer

TRAINING_SECTIONS = ("output", "objective", "training")
"""Sections of config.toml that do not apply to a model without gradient training."""


@dataclass
class Checkpoint:
    """All that resuming needs: tensors by name, and plain values."""

    tensors: dict[str, Tensor]
    values: dict[str, Any]


class RunFolder:
    """Reads and writes the parts of one run."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @property
    def model_path(self) -> Path:
        """The file of the weights to use."""
        return self.path / "model.safetensors"

    # Identity

    def exists(self) -> bool:
        """Whether a run was begun here."""
        return (self.path / "config.toml").exists()

    def write_config(self, config: RunConfig, without: Collection[str] = ()) -> None:
        """Every option, except for the sections that do not apply to this run."""
        write_atomically(self.path / "config.toml", write_toml(config, without))

    def read_config(self) -> RunConfig:
        """The options of the run."""
        if not self.path.exists():
            raise RunError(f"no run at {self.path}; train one with: chainrule train TEXT --out {self.path}")
        if not self.exists():
            raise RunError(f"{self.path} is not a run: it has no config.toml; give a folder that chainrule train made")
        return parse(RunConfig, read_toml(self.path / "config.toml"))

    def write_signature(self, lines: dict[str, str]) -> None:
        """Data, tokeniser and seed as given, and the versions of the libraries."""
        versions = {name: metadata.version(name) for name in ("chainrule", "torch", "numpy")}
        whole = {**lines, **versions, "python": platform.python_version()}
        write_atomically(self.path / "signature", "".join(f"{key}: {value}\n" for key, value in whole.items()))

    def read_signature(self) -> dict[str, str]:
        """The lines of the signature by name."""
        try:
            lines = (self.path / "signature").read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            raise RunError(f"{self.path} has no signature: its training never began; train it again") from None
        return dict(line.split(": ", 1) for line in lines)

    def read_tokenizer(self) -> Tokenizer:
        """The tokeniser of the run: of the target, in a translator."""
        self.read_config()
        return load_tokenizer(self.path)

    def read_source_tokenizer(self) -> Tokenizer | None:
        """The separate tokeniser of the source; None: there is none."""
        folder = self.path / "source"
        return load_tokenizer(folder) if (folder / "tokenizer.json").exists() else None

    # Weights

    def write_weights(self, weights: dict[str, Tensor]) -> None:
        """The weights to use."""
        write_atomically(self.model_path, save_bytes(weights))

    def has_model(self) -> bool:
        """Whether there are weights to use."""
        return self.model_path.exists()

    def read_weights(self) -> dict[str, Tensor]:
        """The weights to use."""
        if not self.has_model():
            raise RunError(f"{self.path} has no model yet; rerun the same train command to finish its training")
        return _read_tensors(
            self.model_path, f"{self.model_path} is damaged; rerun the same train command, or restore the file"
        )

    # Training

    def write_request(self, request: dict[str, Any]) -> None:
        """The options as given."""
        write_atomically(self.path / "training" / "request.json", json.dumps(request, indent=1, ensure_ascii=False))

    def read_request(self) -> dict[str, Any] | None:
        """The options as given; None: not known."""
        return _read_json(self.path / "training" / "request.json")

    def write_result(self, result: dict[str, Any]) -> None:
        """The result of the training."""
        write_atomically(self.path / "result.json", json.dumps(result, indent=1, ensure_ascii=False))

    def remove_result(self) -> None:
        """Mark the training as unfinished."""
        (self.path / "result.json").unlink(missing_ok=True)

    def read_result(self) -> dict[str, Any] | None:
        """The result of the training; None: it is unfinished."""
        return _read_json(self.path / "result.json")

    def write_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Add a checkpoint; older ones are deleted once it is safely written."""
        older = self._checkpoints()
        place = self.path / "training" / f"step-{checkpoint.values['step']:09d}"
        with folder_atomically(place) as folder:
            write_atomically(folder / "tensors.safetensors", save_bytes(contiguous(checkpoint.tensors)))
            write_atomically(folder / "values.json", json.dumps(checkpoint.values))
        for path in older:
            if path != place:
                shutil.rmtree(path, ignore_errors=True)

    def read_checkpoint(self) -> Checkpoint | None:
        """The newest checkpoint; None: there is none."""
        if not (paths := self._checkpoints()):
            return None
        message = f"{paths[-1]} is damaged; delete {self.path / 'training'} to train from the start"
        values = _read_json(paths[-1] / "values.json")
        if values is None:
            raise RunError(message)
        return Checkpoint(_read_tensors(paths[-1] / "tensors.safetensors", message), values)

    def _checkpoints(self) -> list[Path]:
        return sorted((self.path / "training").glob("step-*"))

    # Log

    def log(self, record: dict[str, Any]) -> int:
        """Append a line to the metrics -> the length of the file after it."""
        path = self.path / "metrics.jsonl"
        with disk_errors(path), path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
            return file.tell()

    def cut_log(self, length: int) -> None:
        """Remove what was logged after the checkpoint from which training resumes."""
        path = self.path / "metrics.jsonl"
        if path.exists():
            with path.open("r+b") as file:
                file.truncate(length)


def contiguous(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Named tensors as a file stores them: detached, contiguous, on the CPU."""
    return {name: tensor.detach().contiguous().cpu() for name, tensor in tensors.items()}


def _read_tensors(path: Path, message: str) -> dict[str, Tensor]:
    try:
        tensors: dict[str, Tensor] = load_bytes(path.read_bytes())
    except (SafetensorError, FileNotFoundError, ValueError):
        raise RunError(message) from None
    return tensors


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError, UnicodeDecodeError):
        return None
    return values
