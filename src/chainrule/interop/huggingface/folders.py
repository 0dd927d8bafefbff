"""Folders in which Hugging Face keeps a model: where they are, what config.json says, and the tensors of the weights.

The weights are in `model.safetensors`, in several such files that `model.safetensors.index.json` names, or in the old
`pytorch_model.bin`, whole or in parts, which is read as plain tensors and nothing else.
Legend: none of the shapes are ours; tensors are in the shape that their names have there.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from chainrule.errors import ConfigError
from chainrule.text.tokenizers import Tokenizer

CONFIG, WEIGHTS, OLD_WEIGHTS = "config.json", "model.safetensors", "pytorch_model.bin"
RESTORE = "restore the file that came with the model"
READ = (
    *(CONFIG, "generation_config.json", "tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt"),
    *("vocab.txt", "spiece.model", "source.spm", "target.spm", "target_vocab.json"),
)
"""Files that an import may look at, besides the weights."""


@dataclass(frozen=True)
class Native:
    """A model of a folder as one of ours."""

    model: str
    options: dict[str, Any]
    weights: Mapping[str, Tensor]  # under our names; `unigram_counts` is made up
    tokenizer: Tokenizer
    source: Tokenizer | None = None  # of a translator with two vocabularies
    output: dict[str, Any] = field(default_factory=dict)
    notes: Sequence[str] = ()
    fresh: Sequence[str] = ()  # beginnings of names of weights that the folder does not have, left as a model begins


@dataclass(frozen=True)
class Foreign:
    """A model of ours as one of a folder."""

    config: dict[str, Any]
    weights: dict[str, Tensor]
    first: int | None = None  # the token before every text, if the tokeniser is to put one there
    ends: bool = False  # whether it is to put the end token behind every text
    generation: dict[str, Any] = field(default_factory=dict)
    special: dict[str, int] = field(default_factory=dict)  # tokens by what they are for: mask_token, …


class Folder:
    """What a folder holds."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = read_json(path / CONFIG)

    @property
    def kind(self) -> Any:
        """The `model_type`."""
        return self.config.get("model_type")

    def need(self, *names: str) -> list[Any]:
        """Numbers that config.json must have."""
        if lacking := [name for name in names if not isinstance(self.config.get(name), int)]:
            raise ConfigError(f"{self.path / CONFIG} does not say {lacking[0]}; {RESTORE}")
        return [self.config[name] for name in names]

    def choose(self, name: str, known: Mapping[str, str], default: str) -> str:
        """The value of an option of which only some have a counterpart here, as that."""
        got = self.config.get(name, default)
        if got not in known:
            raise ConfigError(
                f"{self.path / CONFIG} has {name} = {got!r}, but only models with one of {', '.join(known)} can be read"
            )
        return known[got]

    def refuse(self, name: str, default: Any) -> None:
        """An option that has no counterpart here unless it is at its usual value."""
        if (got := self.config.get(name, default)) != default:
            raise ConfigError(
                f"{self.path / CONFIG} has {name} = {got!r}, but only models where it is {default!r} can be read"
            )

    def read(self, name: str) -> bytes | None:
        """The content of a file, None if there is none."""
        file = self.path / name
        return file.read_bytes() if file.is_file() else None

    def json(self, name: str) -> dict[str, Any]:
        """A JSON file, empty if there is none."""
        return read_json(self.path / name) if (self.path / name).is_file() else {}

    def fingerprint(self) -> str:
        """32 hexadecimal digits: equal for folders with the same files."""
        digest = hashlib.blake2b(digest_size=16)
        files = [self.path / name for name in READ] + self.weight_files()
        for file in files:
            if file.is_file():
                digest.update(f"{file.name}\0{file.stat().st_size}\0".encode())
                with file.open("rb") as content:
                    while chunk := content.read(1 << 22):
                        digest.update(chunk)
        return digest.hexdigest()

    def weight_files(self) -> list[Path]:
        """The files that hold the weights, one or several."""
        for name in (WEIGHTS, OLD_WEIGHTS):
            index = self.path / f"{name}.index.json"
            if (self.path / name).is_file():
                return [self.path / name]
            if index.is_file():
                parts = read_json(index).get("weight_map")
                if not isinstance(parts, dict) or not parts:
                    raise ConfigError(f"{index} has no weight_map that says which file has which weights; {RESTORE}")
                return [self.path / str(part) for part in sorted(set(map(str, parts.values())))]
        raise ConfigError(
            f"{self.path} has no {WEIGHTS}: it has no weights; load the model with transformers and save it to the "
            "folder again, and the file is there"
        )

    def weights(self, progress: Callable[[int, int], None] | None = None) -> Weights:
        """All tensors by name; `progress(bytes read, of all)` is called after each file."""
        tensors: dict[str, Tensor] = {}
        files = self.weight_files()
        whole, done = sum(file.stat().st_size for file in files if file.is_file()), 0
        for file in files:
            if not file.is_file():
                raise ConfigError(f"{self.path} has no {file.name}, which its index names; {RESTORE}")
            tensors |= _tensors(file)
            done += file.stat().st_size
            if progress:
                progress(done, whole)
        single = {name: t.float() if t.is_floating_point() else t for name, t in tensors.items()}
        return Weights(single, files[0] if len(files) == 1 else self.path)


class Weights:
    """Tensors by their names in a folder; what is missing or misshapen is told."""

    def __init__(self, tensors: Mapping[str, Tensor], file: Path) -> None:
        self.tensors, self.file = tensors, file

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.tensors:
            raise ConfigError(f"{self.file} has no tensor {name}, which {CONFIG} calls for; {RESTORE}")
        return self.tensors[name]

    def get(self, name: str, default: Tensor) -> Tensor:
        return self.tensors.get(name, default)

    def shaped(self, name: str, *shape: int) -> Tensor:
        """A tensor that must have this shape."""
        tensor = self[name]
        if tensor.shape != shape:
            raise ConfigError(
                f"{self.file} does not fit its {CONFIG}: {name} is {list(tensor.shape)}, expected {list(shape)}; "
                "restore the files that belong together"
            )
        return tensor

    def joined(self, names: Sequence[str]) -> Tensor:
        """Several tensors one below the other."""
        parts = [self[name] for name in names]
        for name, part in zip(names, parts, strict=True):
            if part.shape[1:] != parts[0].shape[1:]:
                raise ConfigError(
                    f"{self.file} does not fit its {CONFIG}: {name} is {list(part.shape)}, but {names[0]} is "
                    f"{list(parts[0].shape)}; restore the files that belong together"
                )
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def below(self, prefixes: Sequence[str], sign: str) -> Weights:
        """The tensors under the first prefix under which there is one of the name `sign`, without the prefix."""
        prefix = next((prefix for prefix in prefixes if f"{prefix}{sign}" in self.tensors), "")
        taken = {name.removeprefix(prefix): t for name, t in self.tensors.items() if name.startswith(prefix)}
        return Weights(taken, self.file)


def _tensors(file: Path) -> dict[str, Tensor]:
    """The tensors of one file."""
    try:
        if file.suffix == ".bin":
            tensors: Any = torch.load(file, map_location="cpu", weights_only=True)
        else:
            tensors = load_file(file)
    except (SafetensorError, UnpicklingError, RuntimeError, EOFError, ValueError, KeyError) as error:
        reason = str(error).splitlines()[0] if str(error) else "it ends too soon"
        raise ConfigError(f"{file} is damaged ({reason}); {RESTORE}") from None
    if not isinstance(tensors, dict) or not all(isinstance(tensor, Tensor) for tensor in tensors.values()):
        raise ConfigError(f"{file} is no table of tensors; {RESTORE}")
    return tensors


def read_json(file: Path) -> dict[str, Any]:
    """The values of a JSON file."""
    try:
        values = json.loads(file.read_bytes())
    except (OSError, ValueError):
        raise ConfigError(f"{file} cannot be read as JSON; {RESTORE}") from None
    return values if isinstance(values, dict) else {}


def package_folders(name: str) -> list[Path]:
    """Every folder of an installed package with a config.json, the uppermost first; no package: none.

    The package is found without being imported.
    """
    module = name.replace("-", "_")
    spec = importlib.util.find_spec(module) if module.isidentifier() else None
    roots = [] if spec is None else list(spec.submodule_search_locations or ())
    files = [file for root in roots for file in Path(root).rglob(CONFIG)]
    return [file.parent for file in sorted(files, key=lambda file: (len(file.parts), file))]


def find_folder(name: str) -> Path | None:
    """The folder of a model: the one named, or the one that an installed package of that name holds; else None."""
    path = Path(name)
    if (path / CONFIG).is_file():
        return path
    if path.exists():
        return None
    return next((folder for folder in package_folders(name) if "model_type" in read_json(folder / CONFIG)), None)
