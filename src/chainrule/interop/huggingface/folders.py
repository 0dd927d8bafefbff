"""Model folders of Hugging Face: where they are, their config.json, and the tensors of their weights.

The weights are in `model.safetensors`, in several such files listed in `model.safetensors.index.json`, or in the older
`pytorch_model.bin`, in one or several files, from which plain tensors are loaded and nothing else.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from chainrule.base.progress import Progress
from chainrule.errors import ConfigError
from chainrule.text.tokenizers import Tokenizer

CONFIG, WEIGHTS, OLD_WEIGHTS = "config.json", "model.safetensors", "pytorch_model.bin"
RESTORE = "restore the file that came with the model"
PART_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*\.(safetensors|bin)")
"""The names of files of weights that an index may list: in the same folder, never elsewhere."""
MAX_BYTES = 1 << 30
"""The largest file that is read besides the weights."""
OTHER_FILES = (
    *(CONFIG, "generation_config.json", "tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt"),
    *("vocab.txt", "spiece.model", "source.spm", "target.spm", "target_vocab.json"),
)
"""Files that an import may read, besides the weights."""


@dataclass(frozen=True)
class ImportedModel:
    """The model of a folder, converted to one of ours."""

    model: str
    options: dict[str, Any]
    weights: Mapping[str, Tensor]  # by our names; `unigram_counts` is added later
    tokenizer: Tokenizer
    source_tokenizer: Tokenizer | None = None  # of a translator with two vocabularies
    output: dict[str, Any] = field(default_factory=dict)
    notes: Sequence[str] = ()
    fresh: Sequence[str] = ()  # prefixes of the weights that the folder lacks, which keep their initial values


@dataclass(frozen=True)
class ExportedModel:
    """One of our models, converted to the files of a folder."""

    config: dict[str, Any]
    weights: dict[str, Tensor]
    first_token: int | None = None  # the token that the tokeniser puts before every text
    appends_end: bool = False  # whether the tokeniser appends the end token to every text
    generation: dict[str, Any] = field(default_factory=dict)
    special_tokens: dict[str, int] = field(default_factory=dict)  # by their names: mask_token, …


class HuggingFaceFolder:
    """A folder with a model."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = read_json(path / CONFIG)

    @property
    def model_type(self) -> Any:
        return self.config.get("model_type")

    def require(self, *names: str) -> list[Any]:
        """The values of integers that config.json must have."""
        if missing := [name for name in names if not isinstance(self.config.get(name), int)]:
            raise ConfigError(f"{self.path / CONFIG} has no {missing[0]}; {RESTORE}")
        return [self.config[name] for name in names]

    def map_option(self, name: str, known: Mapping[str, str], default: str) -> str:
        """Our counterpart of the value of an option; a value without one is refused."""
        got = self.config.get(name, default)
        if got not in known:
            raise ConfigError(f"{self.path / CONFIG} has {name} = {got!r}; supported are {', '.join(known)}")
        return known[got]

    def require_default(self, name: str, default: Any) -> None:
        """Refuse a model that changes an option without a counterpart here."""
        if (got := self.config.get(name, default)) != default:
            raise ConfigError(f"{self.path / CONFIG} has {name} = {got!r}; supported is only {default!r}")

    def read_bytes(self, name: str) -> bytes | None:
        """The content of a file, None if it is missing."""
        file = self.path / name
        return _read_small(file) if file.is_file() else None

    def read_json(self, name: str) -> dict[str, Any]:
        """The values of a JSON file, none if it is missing."""
        return read_json(self.path / name) if (self.path / name).is_file() else {}

    def fingerprint(self) -> str:
        """32 hexadecimal digits: equal for folders with the same files."""
        digest = hashlib.blake2b(digest_size=16)
        files = [self.path / name for name in OTHER_FILES] + self.weight_files()
        for file in files:
            if file.is_file():
                digest.update(f"{file.name}\0{file.stat().st_size}\0".encode())
                with file.open("rb") as content:
                    while chunk := content.read(1 << 22):
                        digest.update(chunk)
        return digest.hexdigest()

    def weight_files(self) -> list[Path]:
        """The files of the weights, one or several."""
        for name in (WEIGHTS, OLD_WEIGHTS):
            index = self.path / f"{name}.index.json"
            if (self.path / name).is_file():
                return [self.path / name]
            if index.is_file():
                parts = read_json(index).get("weight_map")
                if not isinstance(parts, dict) or not parts:
                    raise ConfigError(f"{index} has no weight_map, which maps weights to files; {RESTORE}")
                return [self.path / _plain_name(part, index) for part in sorted(set(map(str, parts.values())))]
        raise ConfigError(
            f"{self.path} has no {WEIGHTS}; load the model with transformers and save it to the folder again, which "
            "writes the file"
        )

    def weight_names(self) -> set[str]:
        """The names of all tensors."""
        return {name for file in self.weight_files() if file.is_file() for name in _tensor_names(file)}

    def load_weights(self, progress: Progress | None = None) -> FolderWeights:
        """All tensors by name. `progress(bytes read, total)` is called after each file."""
        tensors: dict[str, Tensor] = {}
        files = self.weight_files()
        total, done = sum(file.stat().st_size for file in files if file.is_file()), 0
        for file in files:
            if not file.is_file():
                raise ConfigError(f"{self.path} has no {file.name}, which its index lists; {RESTORE}")
            tensors |= _load_tensors(file)
            done += file.stat().st_size
            if progress:
                progress(done, total)
        single = {name: t.float() if t.is_floating_point() else t for name, t in tensors.items()}
        return FolderWeights(single, files[0] if len(files) == 1 else self.path)


class FolderWeights:
    """The tensors of a folder by their names there; a missing tensor or a wrong shape is reported with its file."""

    def __init__(self, tensors: Mapping[str, Tensor], file: Path) -> None:
        self.tensors, self.file = tensors, file

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.tensors:
            raise ConfigError(f"{self.file} has no tensor {name}, which {CONFIG} requires; {RESTORE}")
        return self.tensors[name]

    def get(self, name: str, default: Tensor) -> Tensor:
        return self.tensors.get(name, default)

    def with_shape(self, name: str, *shape: int) -> Tensor:
        """A tensor that must have this shape."""
        tensor = self[name]
        if tensor.shape != shape:
            raise shape_error(self.file, name, tensor.shape, f"expected {list(shape)}")
        return tensor

    def concatenate(self, names: Sequence[str]) -> Tensor:
        """Several tensors, concatenated along their first axis."""
        parts = [self[name] for name in names]
        for name, part in zip(names, parts, strict=True):
            if part.shape[1:] != parts[0].shape[1:]:
                raise shape_error(self.file, name, part.shape, f"but {names[0]} is {list(parts[0].shape)}")
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def strip_prefix(self, prefixes: Sequence[str], name: str) -> FolderWeights:
        """The tensors under the first prefix under which a tensor `name` exists, by their names without the prefix."""
        prefix = next((prefix for prefix in prefixes if f"{prefix}{name}" in self.tensors), "")
        found = {full.removeprefix(prefix): t for full, t in self.tensors.items() if full.startswith(prefix)}
        return FolderWeights(found, self.file)


def shape_error(file: Path, name: str, shape: Sequence[int], expected: str) -> ConfigError:
    """The error for a tensor whose shape contradicts config.json."""
    return ConfigError(
        f"{file} does not match its {CONFIG}: {name} is {list(shape)}, {expected}; restore the files that belong "
        "together"
    )


@contextlib.contextmanager
def foreign_values(folder: Path) -> Iterator[None]:
    """Turn whatever breaks on a value that no such model has into a message; files of others may contain anything."""
    try:
        yield
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RuntimeError) as error:
        raise _impossible(folder, error) from error
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # of a library in Rust, and not an Exception
            raise
        raise _impossible(folder, error) from error


def _impossible(folder: Path, error: BaseException) -> ConfigError:
    reason = " ".join(str(error).split())[:120]
    return ConfigError(f"{folder} has a value that no such model has ({reason}); {RESTORE}")


def _plain_name(name: str, index: Path) -> str:
    """The name of a file in the folder itself; another place is refused."""
    if not PART_NAME.fullmatch(name):
        raise ConfigError(f"{index} lists the file {name[:80]!r}: expected the name of a file of weights; {RESTORE}")
    return name


def _read_small(file: Path) -> bytes:
    if (size := file.stat().st_size) > MAX_BYTES:
        raise ConfigError(f"{file} has {size:,} bytes, more than {MAX_BYTES:,}; {RESTORE}")
    return file.read_bytes()


def _tensor_names(file: Path) -> list[str]:
    """The names of the tensors of one file."""
    if file.suffix == ".bin":
        return list(_load_tensors(file))
    try:
        with safe_open(file, framework="pt") as content:
            return list(content.keys())
    except SafetensorError as error:
        raise _damaged(file, error) from None


def _damaged(file: Path, error: Exception) -> ConfigError:
    reason = str(error).splitlines()[0] if str(error) else "it is truncated"
    return ConfigError(f"{file} is damaged ({reason}); {RESTORE}")


def _load_tensors(file: Path) -> dict[str, Tensor]:
    """The tensors of one file."""
    try:
        if file.suffix == ".bin":
            tensors: Any = torch.load(file, map_location="cpu", weights_only=True)
        else:
            tensors = load_file(file)
    except (SafetensorError, UnpicklingError, RuntimeError, EOFError, ValueError, KeyError) as error:
        raise _damaged(file, error) from None
    if not isinstance(tensors, dict) or not all(isinstance(tensor, Tensor) for tensor in tensors.values()):
        raise ConfigError(f"{file} is not a dictionary of tensors; {RESTORE}")
    return tensors


def read_json(file: Path) -> dict[str, Any]:
    """The values of a JSON file."""
    try:
        values = json.loads(_read_small(file))
    except (OSError, ValueError, RecursionError):
        raise ConfigError(f"{file} cannot be read as JSON; {RESTORE}") from None
    return values if isinstance(values, dict) else {}


def package_folders(name: str) -> list[Path]:
    """Every folder of an installed package with a config.json, the topmost first; empty if there is no such package.

    The package is not imported.
    """
    module = name.replace("-", "_")
    spec = importlib.util.find_spec(module) if module.isidentifier() else None
    roots = [] if spec is None else list(spec.submodule_search_locations or ())
    files = [file for root in roots for file in Path(root).rglob(CONFIG)]
    return [file.parent for file in sorted(files, key=lambda file: (len(file.parts), file))]


def find_folder(name: str) -> Path | None:
    """The folder of a model: the given one, or that in an installed package of this name; None if there is neither."""
    path = Path(name)
    if (path / CONFIG).is_file():
        return path
    if path.exists():
        return None
    return next((folder for folder in package_folders(name) if "model_type" in read_json(folder / CONFIG)), None)
