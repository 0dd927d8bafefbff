"""Checkpoints of a training: folders `step-N`, of which the newest whole one is resumed.

step-N/tensors.safetensors   all tensors by name, except those that processes divide
step-N/part-R.safetensors    of the divided tensors, the rows that process R holds, in the order of the processes
step-N/values.json           plain values, and the CRC-32 of the other files
.parts/                      parts that processes have written, until all of them are there
.step-N.old/                 the previous one of the same step, for the moment in which it is replaced
"""

from __future__ import annotations

import contextlib
import json
import shutil
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chainrule.base.files import aside, disk_errors, folder_atomically, write_atomically
from chainrule.base.processes import ALONE, Processes
from chainrule.errors import RunError

if TYPE_CHECKING:
    from torch import Tensor

CHECKSUM = "checksum"
"""Name of the CRC-32 of the tensors among the values."""

PART_CHECKSUMS = "part_checksums"
"""Name of the CRC-32s of the parts, in their order."""

PARTS = ".parts"

VALUES_CHECKSUM = "values_checksum"
"""Name of the CRC-32 of all other values."""


@dataclass
class Checkpoint:
    """All that resuming needs: tensors by name, and plain values."""

    tensors: dict[str, Tensor]
    values: dict[str, Any]


def write_divided(folder: Path, checkpoint: Checkpoint, rows: dict[str, Tensor], processes: Processes = ALONE) -> None:
    """Add a checkpoint of which every process has some `rows` of the same tensors; the main process has the rest."""
    place, content = folder / PARTS / _part(processes.rank), to_bytes(contiguous(rows))
    with disk_errors(place):
        place.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(place, content)
    own = [0.0] * processes.world
    own[processes.rank] = float(zlib.crc32(content))
    sums = [int(one) for one in processes.sum(own)]  # and all have written their parts
    if processes.is_main:
        write_checkpoint(folder, checkpoint, sums)
    processes.sum([0.0])  # the next parts are not written before these have been moved


def write_checkpoint(folder: Path, checkpoint: Checkpoint, parts: Sequence[int] = ()) -> None:
    """Add a checkpoint; older ones are deleted once it is safely written.

    `parts`: the CRC-32s of the parts that processes have written, which become parts of this checkpoint.
    """
    older = find_checkpoints(folder)
    place = folder / f"step-{checkpoint.values['step']:09d}"
    content = to_bytes(contiguous(checkpoint.tensors))
    with folder_atomically(place) as building:
        write_atomically(building / "tensors.safetensors", content)
        for number in range(len(parts)):
            (folder / PARTS / _part(number)).replace(building / _part(number))
        sums: dict[str, Any] = {CHECKSUM: zlib.crc32(content), VALUES_CHECKSUM: _sum_values(checkpoint.values)}
        if parts:
            sums[PART_CHECKSUMS] = list(parts)
        write_atomically(building / "values.json", json.dumps({**checkpoint.values, **sums}))
    for path in older:
        if path != place:
            shutil.rmtree(path, ignore_errors=True)
    shutil.rmtree(folder / PARTS, ignore_errors=True)


def _part(number: int) -> str:
    return f"part-{number}.safetensors"


def read_checkpoint(folder: Path) -> Checkpoint | None:
    """The newest whole checkpoint; None: there is none."""
    paths = find_checkpoints(folder)
    for path in reversed(paths):
        if (checkpoint := _read_whole(path)) is not None:
            return checkpoint
    if paths:
        raise RunError(f"{paths[-1]} is damaged; restore it, or train from the start into another --out")
    return None


def find_checkpoints(folder: Path) -> list[Path]:
    """All checkpoints, oldest first; one that was being replaced by another of the same step comes before that."""
    found = [(path.name.removeprefix("step-"), 1, path) for path in folder.glob("step-*")]
    for path in folder.glob(aside(Path("step-*")).name):
        found.append((path.name.removeprefix(".step-").removesuffix(".old"), 0, path))
    return [path for _, _, path in sorted(found)]


def _sum_values(values: dict[str, Any]) -> int:
    """The CRC-32 of values, the same before and after they are written as JSON."""
    return zlib.crc32(json.dumps(json.loads(json.dumps(values)), sort_keys=True).encode())


def remove_replaced(folder: Path) -> None:
    """Delete all checkpoints but the newest, which a kill may have left, if the newest is whole."""
    *older, newest = find_checkpoints(folder) or [folder]
    if older and _read_whole(newest) is not None:
        for path in older:
            shutil.rmtree(path, ignore_errors=True)


def _read_whole(path: Path) -> Checkpoint | None:
    """The checkpoint in a folder; None if it is damaged."""
    values = read_json(path / "values.json")
    if values is None or "step" not in values:
        return None
    checksum, own = (values.pop(name, None) for name in (CHECKSUM, VALUES_CHECKSUM))  # earlier releases wrote none
    parts = values.pop(PART_CHECKSUMS, [])
    if own is not None and own != _sum_values(values):
        return None
    damaged = RunError("damaged")
    try:
        tensors = read_tensors(path / "tensors.safetensors", damaged, checksum)
        rows = [read_tensors(path / _part(number), damaged, one) for number, one in enumerate(parts)]
        return Checkpoint({**tensors, **_joined(rows, damaged)}, values)
    except RunError:
        return None


def _joined(parts: list[dict[str, Tensor]], damaged: RunError) -> dict[str, Tensor]:
    """The tensors whose rows are in parts."""
    import torch

    if any(part.keys() != parts[0].keys() for part in parts):
        raise damaged
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]} if parts else {}


# Files


def contiguous(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Named tensors as a file stores them: detached, contiguous, on the CPU."""
    return {name: tensor.detach().contiguous().cpu() for name, tensor in tensors.items()}


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn a file that cannot be read into a message."""
    try:
        yield
    except OSError as error:
        raise RunError(f"{path} cannot be read ({error.strerror}); restore the file") from None


def to_bytes(tensors: dict[str, Tensor], about: dict[str, str] | None = None) -> bytes:
    """Named tensors as the content of a file, with notes `about` them in its header."""
    from safetensors.torch import save  # here: a run of arrays needs no torch

    content: bytes = save(tensors, about)
    return content


def read_tensors(path: Path, damaged: RunError, checksum: int | None = None) -> dict[str, Tensor]:
    """The tensors of a file; `damaged` is raised if they are, or if the file has another CRC-32."""
    from safetensors import SafetensorError
    from safetensors.torch import load as load_bytes

    with reading(path):
        content = path.read_bytes()
    if checksum is not None and zlib.crc32(content) != checksum:
        raise damaged
    try:
        tensors: dict[str, Tensor] = load_bytes(content)
    except (SafetensorError, ValueError):
        raise damaged from None
    return tensors


def read_notes(path: Path, damaged: RunError) -> dict[str, str]:
    """The notes in the header of a file of tensors; `damaged` is raised if it has none that can be read."""
    from safetensors import SafetensorError, safe_open

    try:
        with reading(path), safe_open(path, "np") as file:
            return dict(file.metadata() or {})
    except (SafetensorError, ValueError):
        raise damaged from None


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a file; None if there is no such file, or if it is damaged."""
    try:
        with reading(path):
            values = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
    except (ValueError, RecursionError):  # not JSON, or not UTF-8
        return None
    return values if isinstance(values, dict) else None
