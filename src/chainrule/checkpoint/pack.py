"""`pack` and `unpack`: a run folder as one file, and back."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from chainrule.base.targets import check_file, check_folder
from chainrule.checkpoint.folder import RunFolder
from chainrule.checkpoint.packed import is_packed, write_packed
from chainrule.checkpoint.packed import unpack as unpack_files
from chainrule.errors import RunError


class Packed(NamedTuple):
    """A file that `pack` wrote."""

    path: Path
    bytes: int


def pack(run: str | Path, path: str | Path) -> Packed:
    """Write a run as one file, which every verb and `load` read like the folder.

    Args:
        run: Folder of a trained or imported run.
        path: The file to write, by convention with the suffix .crn.

    Returns:
        The path and the size of the file.
    """
    folder, target = RunFolder.open(run), check_file(path)
    folder.read_config()
    if not folder.has_model():
        raise RunError(f"{run} has no model yet; rerun the same train command to finish its training")
    folder.check()
    return Packed(target, write_packed(folder.path, target))


def unpack(path: str | Path, out: str | Path) -> Path:
    """Write the run in a packed file to a new folder, for example to tune it.

    Args:
        path: A file that `pack` wrote.
        out: Folder of the run, new or empty.

    Returns:
        The folder.
    """
    file, folder = Path(path), check_folder(out)
    if not is_packed(file):
        raise RunError(f"{file} is not a packed run; give a file of chainrule pack")
    unpack_files(file, folder)
    return folder
