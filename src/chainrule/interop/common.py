"""Shared by all exchange formats: the description of a format, and the results of an import and an export."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from chainrule.base.progress import Progress
from chainrule.base.targets import check_folder
from chainrule.checkpoint.folder import RunFolder
from chainrule.config import RunConfig
from chainrule.errors import ConfigError, unknown_name

Note = Callable[[str], None]

QUANTIZATIONS = ("int8",)
"""Kinds of weights with fewer bits."""


class ExportResult(NamedTuple):
    """What an export wrote."""

    path: Path
    bytes: int
    ngrams: Sequence[int] = ()  # number of n-grams by order; for n-gram models
    words: int | None = None  # number of words; for word vectors
    vector_size: int | None = None
    difference: float | None = None  # greatest difference between the outputs of the export and of the run, if compared


class Obstacle(NamedTuple):
    """Something that a format cannot represent, and the option of `train` that avoids it."""

    reason: str
    remedy: str  # for example --set model.norm=pre


class Importer(Protocol):
    """Creates a run from a model of another tool. A repeated call finds the finished run."""

    def __call__(
        self, path: str | Path, out: str | Path, *, note: Note = ..., progress: Progress | None = None
    ) -> RunFolder: ...


class Exporter(Protocol):
    """Writes the model of a run to files of another tool."""

    def __call__(self, run: str | Path, path: str | Path, *, progress: Progress | None = None) -> ExportResult: ...


class QuantizingExporter(Protocol):
    """An exporter that can also write weights of fewer bits; `quantize` is one of the format's quantizations."""

    def __call__(
        self, run: str | Path, path: str | Path, *, quantize: str | None = None, progress: Progress | None = None
    ) -> ExportResult: ...


@dataclass(frozen=True, kw_only=True)
class Format:
    """A file format of other tools, from and to which runs are converted."""

    name: str
    summary: str
    export_run: Exporter
    obstacles: Callable[[RunConfig], list[Obstacle]]  # of options that may still be open, which are no obstacle
    models: tuple[str, ...]  # models of which it represents the whole run
    export_unit: str  # what the progress of an export counts
    export_quantized: QuantizingExporter | None = None  # None: weights keep their precision
    import_run: Importer | None = None  # None: the format is only written
    import_unit: str = ""
    suffixes: tuple[str, ...] = ()  # file name suffixes that identify the format
    recognise: Callable[[Path], bool] = lambda path: False  # whether the content of a path is in this format

    def matches(self, path: str | Path) -> bool:
        """Whether a path is in this format, by the suffixes of a file or by its content."""
        place = Path(path)
        return (place.is_file() and not set(self.suffixes).isdisjoint(place.suffixes)) or self.recognise(place)

    def check(self, config: RunConfig, subject: str = "the run") -> None:
        """Refuse options that the format cannot represent; the error lists all of them."""
        if not (found := self.obstacles(config)):
            return
        reasons = "; ".join(f"({number}) {obstacle.reason}" for number, obstacle in enumerate(found, 1))
        reasons = found[0].reason if len(found) == 1 else reasons
        options = " ".join(dict.fromkeys(obstacle.remedy for obstacle in found))
        raise ConfigError(f"{subject} cannot be exported as {self.name}: {reasons}; train with {options}")

    def quantizing(self, quantize: str) -> QuantizingExporter:
        """The exporter for quantized weights; a format or quantization that does not exist is an error."""
        if self.export_quantized is None:
            raise ConfigError(f"the format {self.name} has no quantized weights; leave out --quantize")
        if quantize not in QUANTIZATIONS:
            raise unknown_name("quantization", quantize, QUANTIZATIONS)
        return self.export_quantized


def require_packages(extra: str, *names: str) -> None:
    """Refuse to go on without packages that one of our extras installs."""
    if missing := [name for name in names if find_spec(name) is None]:
        raise ConfigError(f"this needs {' and '.join(missing)}; install it: pip install 'chainrule[{extra}]'")


def folder_bytes(folder: Path) -> int:
    """The size of all files of a folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def find_finished_import(out: Path, request: dict[str, Any], note: Note) -> RunFolder | None:
    """The run of an earlier identical import; None if `out` is new or empty."""
    folder = RunFolder(out)
    check_folder(out, lambda: folder.is_finished(request))
    if not folder.exists():
        return None
    note(f"{out} is finished already; choose another --out to import it again")
    return folder


def import_result(model: Any, seconds: float, memory: int) -> dict[str, Any]:
    """The result of an import, with the keys of a training result."""
    return {
        "steps": 0,
        "seconds": round(seconds, 2),
        "train_seconds": round(seconds, 2),
        "tokens": 0,
        "parameters": model.parameter_count,
        "tokens_per_second": None,
        "budget": {},
        "peak_memory": memory,
    }
