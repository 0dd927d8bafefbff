"""A run as one file: a ZIP archive of its files, stored uncompressed.

    pack.json            {"format", "version", "files": {name: {"bytes", "sha256"}}}, the first entry
    config.toml …        the files of the run folder, without training/, sorted by name

Names, times and attributes are fixed, so the same run gives the same bytes. A packed run is read from a folder in the
cache, which is unpacked once and named by the hash of pack.json: opening it again reads pack.json alone. An archive
cannot write elsewhere or grow: only names of files of a run are accepted, nothing is compressed, and every file is
compared with its size and hash.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import functools
import hashlib
import json
import os
import re
import shutil
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from chainrule.base.cache import default_cache, temporary_cache, usable
from chainrule.base.files import disk_errors, file_atomically, flush_folder, folder_atomically, temporary_name
from chainrule.checkpoint.integrity import hash_file
from chainrule.errors import RunError

MANIFEST, FORMAT, VERSION = "pack.json", "chainrule run", 1
FILE_NAME = re.compile(
    r"(parts/\d{1,4}/){0,4}(config\.toml|signature|model\.safetensors|metrics\.jsonl|result\.json|tuning\.json"
    r"|(source/)?tokenizer\.[A-Za-z0-9.]{1,40})"
)
"""The files of a run, and of the runs that a mixture consists of."""

MAX_FILES, MAX_MANIFEST, CHUNK = 10_000, 1 << 24, 1 << 20
TIME = (1980, 1, 1, 0, 0, 0)

Files = dict[str, dict[str, Any]]


def is_packed(path: Path) -> bool:
    """Whether a path is a file that begins like an archive."""
    with contextlib.suppress(OSError):
        if path.is_file():
            with path.open("rb") as file:
                return file.read(4) == b"PK\x03\x04"
    return False


# Writing


def write_packed(folder: Path, target: Path) -> int:
    """Write the files of a run folder as one file, atomically -> its size."""
    names = run_files(folder)
    files: Files = {
        name: {"bytes": (folder / name).stat().st_size, "sha256": hash_file(folder / name)} for name in names
    }
    manifest = json.dumps({"format": FORMAT, "version": VERSION, "files": files}, indent=1).encode()
    with file_atomically(target) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(_entry(MANIFEST, len(manifest)), manifest)
        for name, about in files.items():
            entry = _entry(name, about["bytes"])
            large = about["bytes"] >= zipfile.ZIP64_LIMIT
            with (folder / name).open("rb") as source, archive.open(entry, "w", force_zip64=large) as out:
                if _copy(source, out, about["bytes"]) != about["sha256"]:
                    raise RunError(f"{folder / name} changed while it was packed; pack the run again")
    return target.stat().st_size


def run_files(folder: Path) -> list[str]:
    """The names of the files that belong to the run in a folder, without the state of its training."""
    return sorted(name for name in _names_below(folder) if FILE_NAME.fullmatch(name))


def _names_below(folder: Path) -> Iterator[str]:
    for root, _, names in os.walk(folder):
        yield from ((Path(root) / name).relative_to(folder).as_posix() for name in names)


def _entry(name: str, size: int) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, TIME)
    entry.create_system, entry.external_attr, entry.file_size = 3, 0o644 << 16, size
    return entry


def _copy(source: Any, out: Any, size: int) -> str:
    """Copy at most `size` bytes, and one more if there is one -> their SHA-256."""
    digest, left = hashlib.sha256(), size + 1
    while left and (chunk := source.read(min(CHUNK, left))):
        digest.update(chunk)
        out.write(chunk)
        left -= len(chunk)
    return digest.hexdigest()


# Reading


def unpack(path: Path, target: Path) -> None:
    """Write the files of a packed run to a new folder, atomically."""
    with _opened(path) as (archive, files, _), folder_atomically(target) as place:
        _extract(archive, files, place, path)


def cached_folder(path: Path) -> Path:
    """The folder in the cache with the files of a packed run; they are unpacked if they are not there."""
    with _opened(path) as (archive, files, identity):
        packs = _packs()
        place = packs / identity
        if _is_complete(place, files):
            return place
        beside = temporary_name(place)
        with disk_errors(place):
            try:
                beside.mkdir()
                _extract(archive, files, beside, path)
                flush_folder(beside)
                if place.exists() and not _is_complete(place, files):
                    shutil.rmtree(place, ignore_errors=True)
                with contextlib.suppress(FileExistsError):  # another process was faster
                    _rename(beside, place)
            finally:
                shutil.rmtree(beside, ignore_errors=True)
        return place


def _rename(source: Path, target: Path) -> None:
    try:
        source.rename(target)
    except OSError:
        if not target.is_dir():
            raise
        raise FileExistsError(str(target)) from None


def _packs() -> Path:
    """The folder of unpacked runs; a temporary one if there is no cache."""
    packs = (usable(default_cache()) or _temporary()) / "packs"
    packs.mkdir(exist_ok=True)
    return packs


@functools.cache
def _temporary() -> Path:
    """A folder that is deleted when this process ends."""
    folder = temporary_cache(default_cache())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _is_complete(place: Path, files: Files) -> bool:
    sizes = ((place / name, about["bytes"]) for name, about in files.items())
    return all(file.is_file() and file.stat().st_size == size for file, size in sizes)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[tuple[zipfile.ZipFile, Files, str]]:
    """A packed run whose entries were checked: the archive, its files, and a name for its content."""
    try:
        with zipfile.ZipFile(path) as archive:
            manifest = _check_entries(archive, path)
            yield archive, manifest["files"], hashlib.sha256(json.dumps(manifest).encode()).hexdigest()[:32]
    except (zipfile.BadZipFile, EOFError, struct.error, RuntimeError) as error:
        raise _damaged(path, str(error) or "it is truncated") from None
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        raise _damaged(path, "an entry begins outside of it") from None  # where zipfile cannot seek


def _check_entries(archive: zipfile.ZipFile, path: Path) -> dict[str, Any]:
    """The manifest, after checking every entry against it."""
    entries = archive.infolist()
    names = [entry.filename for entry in entries]
    if not names or names[0] != MANIFEST:
        raise RunError(f"{path} is not a packed run: it does not begin with {MANIFEST}; give a file of chainrule pack")
    if len(names) > MAX_FILES or len(set(names)) != len(names):
        raise _damaged(path, "it has too many entries, or one twice")
    for entry in entries:
        if entry.filename != MANIFEST and not FILE_NAME.fullmatch(entry.filename):
            raise _damaged(path, f"the entry {entry.filename[:80]!r} is no file of a run")
        if entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & 1 or entry.file_size != entry.compress_size:
            raise _damaged(path, f"the entry {entry.filename} is compressed or encrypted")
    if sum(entry.file_size for entry in entries) > path.stat().st_size or entries[0].file_size > MAX_MANIFEST:
        raise _damaged(path, "its entries are larger than the file")
    return _check_manifest(archive.read(MANIFEST), {entry.filename: entry.file_size for entry in entries[1:]}, path)


def _check_manifest(content: bytes, sizes: dict[str, int], path: Path) -> dict[str, Any]:
    try:
        manifest = json.loads(content)
        about, version, files = manifest["format"], manifest["version"], manifest["files"]
        listed = {name: int(entry["bytes"]) for name, entry in files.items() if isinstance(entry["sha256"], str)}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise _damaged(path, f"{MANIFEST} cannot be read") from None
    if about != FORMAT or version != VERSION:
        raise RunError(
            f"{path} has version {version} of the format, but this release reads {VERSION}; update chainrule"
        )
    if listed != sizes:
        raise _damaged(path, f"its entries are not those of {MANIFEST}")
    kept: dict[str, Any] = manifest
    return kept


def _extract(archive: zipfile.ZipFile, files: Files, place: Path, path: Path) -> None:
    for name, about in files.items():
        target = place / name
        target.parent.mkdir(parents=True, exist_ok=True)
        with archive.open(name) as source, target.open("wb") as out:
            if _copy(source, out, about["bytes"]) != about["sha256"]:
                raise _damaged(path, f"{name} differs from its checksum")


def _damaged(path: Path, reason: str) -> RunError:
    return RunError(f"{path} is damaged ({reason}); copy it again, or pack the run again")
