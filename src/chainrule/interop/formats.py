"""The exchange formats, and the functions behind `chainrule export` and `chainrule import`.

A new format is one module that defines a `Format`, and its entry in `FORMATS`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path

from chainrule.base.progress import Progress
from chainrule.checkpoint.folder import RunFolder
from chainrule.errors import ConfigError, DataError, unknown_name
from chainrule.interop.common import ExportResult, Format, Note, Obstacle

__all__ = [
    "FORMATS",
    "ExportResult",
    "Format",
    "Obstacle",
    "detect_format",
    "export",
    "find_format",
    "format_for",
    "import_run",
]


class LazyFormats(Mapping[str, Format]):
    """Formats by name, each imported when it is first asked for: n-grams need no torch, and Hugging Face models do."""

    def __init__(self, homes: dict[str, tuple[str, str]]) -> None:
        self._homes = homes

    def __getitem__(self, name: str) -> Format:
        module, constant = self._homes[name]
        found: Format = getattr(import_module(module), constant)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._homes)

    def __len__(self) -> int:
        return len(self._homes)


FORMATS = LazyFormats(
    {
        "arpa": ("chainrule.interop.arpa.runs", "ARPA"),
        "hf": ("chainrule.interop.huggingface.runs", "HUGGING_FACE"),
        "word2vec": ("chainrule.interop.word2vec", "WORD2VEC"),
        "ctranslate2": ("chainrule.interop.ctranslate2.runs", "CTRANSLATE2"),
        "onnx": ("chainrule.interop.onnx.runs", "ONNX"),
        "run": ("chainrule.interop.run_copies", "RUN_COPY"),
    }
)
"""All formats by name, in the order in which `detect_format` tries them: the module and the name of each."""


FILE_SUFFIXES = frozenset((".arpa", ".gz", ".xz", ".zst", ".bin", ".txt", ".vec"))
"""Suffixes of files that are imported; a missing path without any of them may be meant as a name on a hub."""


def export(
    run: str | Path,
    path: str | Path,
    *,
    to: str | None = None,
    quantize: str | None = None,
    progress: Progress | None = None,
) -> ExportResult:
    """Write the model in a run folder to a format of another tool.

    Args:
        run: Folder of the run.
        path: The file or folder to write.
        to: The format: "arpa" (n-grams), "hf" (Hugging Face), "word2vec" (vectors), "ctranslate2" (an inference engine
            for Transformers), "onnx" (graphs of recurrent models, Transformers and translators) or "run" (a run folder
            without the state of its training). None: that of the file name (.arpa), or the one that suits the run.
        quantize: "int8" for weights of 8 bits, in "ctranslate2" and "run". None: weights keep their precision.
        progress: Called with the work done and the total.
    """
    chosen = format_for(run, path) if to is None else find_format(to)
    chosen.check(RunFolder.open(run).read_config(), str(run))
    if quantize is not None:
        return chosen.quantizing(quantize)(run, path, quantize=quantize, progress=progress)
    return chosen.export_run(run, path, progress=progress)


def find_format(name: str) -> Format:
    """The format of this name."""
    if name not in FORMATS:
        raise unknown_name("format", name, FORMATS)
    return FORMATS[name]


def format_for(run: str | Path, path: str | Path) -> Format:
    """The format of a file name, or the one that represents the whole of a run."""
    for known in FORMATS.values():
        if not set(known.suffixes).isdisjoint(Path(path).suffixes):
            return known
    name = RunFolder.open(run).read_config().model.name
    for known in FORMATS.values():
        if name in known.models:
            return known
    raise ConfigError(
        f"{run} is a run of the model {name}, which no format represents; give --to word2vec to export its "
        "word vectors alone"
    )


def import_run(
    path: str | Path, out: str | Path, *, note: Note = lambda text: None, progress: Progress | None = None
) -> RunFolder:
    """Create a run from a model of another tool. A repeated call finds the finished run."""
    read = detect_format(path).import_run
    assert read is not None
    return read(path, out, note=note, progress=progress)


def detect_format(path: str | Path) -> Format:
    """The first format that matches a file, a folder or the name of a package.

    If none matches a file, it is ARPA, whose reader reports what is wrong with the path.
    """
    readable = (known for known in FORMATS.values() if known.import_run is not None)
    if found := next((known for known in readable if known.matches(path)), None):
        return found
    if not Path(path).exists() and FILE_SUFFIXES.isdisjoint(Path(path).suffixes):
        raise DataError(
            f"there is no file, folder or installed package '{path}'; models are not downloaded: fetch the folder "
            f"first, for example with: hf download {path} --local-dir FOLDER"
        )
    return FORMATS["arpa"]
