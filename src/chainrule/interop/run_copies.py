"""Export of a run as a run: its folder without the state of the training, in single precision or with 8-bit weights."""

from __future__ import annotations

import shutil
from pathlib import Path

from chainrule.base.files import folder_atomically
from chainrule.base.progress import Progress
from chainrule.base.targets import check_folder
from chainrule.checkpoint.eight_bits import quantise_weights
from chainrule.checkpoint.folder import RunFolder
from chainrule.checkpoint.packed import run_files
from chainrule.config import RunConfig
from chainrule.errors import ConfigError
from chainrule.interop.common import ExportResult, Format, Obstacle, folder_bytes
from chainrule.registry import MODELS


def export_run(
    run: str | Path, path: str | Path, *, quantize: str | None = None, progress: Progress | None = None
) -> ExportResult:
    """Copy a run to a new folder, which every verb reads; with `quantize`, its matrices have 8 bits per weight."""
    folder, target = RunFolder.open(run), check_folder(path)
    folder.check_model(anew=True)
    if quantize and not _networks(folder):
        raise ConfigError(f"{run} has no matrices to quantize; leave out --quantize (train an n-gram with --quantize)")
    with folder_atomically(target) as beside:
        names = run_files(folder.path)
        for done, name in enumerate(names, 1):
            (beside / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(folder.path / name, beside / name)
            if progress:
                progress(done, len(names))
        if quantize:
            _quantise(RunFolder(beside))
        size = folder_bytes(beside)
    return ExportResult(target, size)


def _networks(folder: RunFolder) -> list[RunFolder]:
    """The run itself if it is a network, or the networks of a mixture."""
    model = MODELS.get(folder.read_config().model.name).make
    if model.has_parts:
        return [network for part in _parts(folder) for network in _networks(part)]
    return [] if model.stores_arrays else [folder]


def _parts(folder: RunFolder) -> list[RunFolder]:
    paths = (folder.path / "parts").iterdir()
    return [RunFolder(path) for path in sorted(paths, key=lambda path: int(path.name))]


def _quantise(folder: RunFolder) -> None:
    """Replace the weights of a run by 8-bit ones; a mixture then names the new weights of its parts."""
    model = MODELS.get(folder.read_config().model.name).make
    if model.stores_arrays:
        return
    if not model.has_parts:
        folder.write_weights(quantise_weights(folder.read_weights()), precision="int8")
        return
    for part in _parts(folder):
        _quantise(part)
    folder.signature.record({"part_weights": " ".join(part.weights_hash() for part in _parts(folder))})
    folder.write_weights(folder.read_weights(), precision="int8")


def _no_obstacles(config: RunConfig) -> list[Obstacle]:
    return []


RUN_COPY = Format(
    name="run",
    summary="a run folder without the state of its training, with --quantize int8 a quarter of its size",
    obstacles=_no_obstacles,
    models=(),
    export_run=export_run,
    export_quantized=export_run,
    export_unit="files",
)
