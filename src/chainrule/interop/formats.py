"""The verbs `export` and `import`: which format is meant, and who reads or writes it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from chainrule.base.progress import Progress
from chainrule.checkpoint.folder import RunFolder
from chainrule.errors import ConfigError, unknown_name
from chainrule.interop.common import Exported
from chainrule.interop.huggingface.folders import CONFIG, find_folder

FORMATS = ("arpa", "hf", "word2vec")

__all__ = ["FORMATS", "Exported", "export", "format_of", "import_run"]


def export(run: str | Path, path: str | Path, *, to: str = "arpa", progress: Progress | None = None) -> Exported:
    """Write the model of a run's folder in a form that other tools read."""
    if to == "hf":
        from chainrule.interop.huggingface.runs import export_folder

        return export_folder(run, path, progress=progress)
    if to == "word2vec":
        from chainrule.interop.word2vec import export_vectors

        return export_vectors(run, path, progress=progress)
    if to not in FORMATS:
        raise unknown_name("format", to, FORMATS)
    from chainrule.interop.arpa.runs import export_arpa

    return export_arpa(run, path, progress=progress)


def import_run(
    path: str | Path,
    out: str | Path,
    *,
    note: Callable[[str], None] = lambda text: None,
    progress: Progress | None = None,
) -> RunFolder:
    """Make a run of a model that another tool wrote. The same call again finds it done."""
    kind = format_of(path)
    if kind == "hf":
        from chainrule.interop.huggingface.runs import import_folder

        return import_folder(path, out, note=note, progress=progress)
    if kind == "word2vec":
        from chainrule.interop.word2vec import import_vectors

        return import_vectors(path, out, note=note, progress=progress)
    from chainrule.interop.arpa.runs import import_arpa

    return import_arpa(path, out, note=note, progress=progress)


def format_of(path: str | Path) -> str:
    """In which format a model is, told by what is there: a folder or package, word vectors, else ARPA."""
    if Path(path).is_dir():
        if not (Path(path) / CONFIG).is_file():
            raise ConfigError(f"{path} has no {CONFIG}; give a folder that transformers saved a model to")
        return "hf"
    if not Path(path).exists():
        return "hf" if find_folder(str(path)) is not None else "arpa"
    if ".arpa" in Path(path).suffixes:
        return "arpa"
    from chainrule.interop.word2vec import looks_like_vectors

    return "word2vec" if looks_like_vectors(path) else "arpa"
