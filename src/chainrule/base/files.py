"""Atomic writing: a process killed at any moment leaves the old file or the new one, never a part.

Temporary names are `.NAME.HOST-PROCESS.tmp`, beside the final place. What a killed process left is deleted when the
same file is next written.
"""

from __future__ import annotations

import contextlib
import errno
import os
import platform
import re
import shutil
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from chainrule.errors import DiskError

_TAG = re.compile(r"\.([0-9a-f]{8})-(\d+)\.tmp")

_ADVICE = {
    errno.ENOSPC: "the disk is full, {path} was not written; free some space and rerun the command",
    errno.EDQUOT: "the disk is full, {path} was not written; free some space and rerun the command",
    errno.ENOTDIR: "{path} cannot be written: a part of its path is a file; choose another place",
    errno.EISDIR: "{path} is a folder: expected the name of a file; add one",
    errno.ENAMETOOLONG: "{path} cannot be written: the name is too long; choose a shorter one",
    errno.ENOTEMPTY: "{path} was written by another process at the same time; rerun the command",
    errno.EEXIST: "{path} was written by another process at the same time; rerun the command",
    errno.EIO: "{path} cannot be written: the disk reports an error; check it, or choose another disk",
    errno.EFBIG: "{path} cannot be written: it is larger than this disk or user may write; choose another disk",
}
"""What to do about a failed write, by the number of the error."""


@contextlib.contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn a failed write into a message that states what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in _ADVICE:
            raise DiskError(_ADVICE[error.errno].format(path=path)) from None
        if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM):
            raise DiskError(
                f"{path} cannot be written ({error.strerror}); choose a folder with write permission"
            ) from None
        raise


@contextlib.contextmanager
def file_atomically(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file beside `path`; it is flushed to disk and moved to `path` if the block succeeds."""
    with disk_errors(path):
        temporary = temporary_name(path)
        try:
            with temporary.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            move(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def write_atomically(path: Path, content: bytes | str) -> None:
    """Write a whole file atomically."""
    with file_atomically(path) as file:
        file.write(content.encode("utf-8") if isinstance(content, str) else content)


@contextlib.contextmanager
def folder_atomically(path: Path) -> Iterator[Path]:
    """Create a temporary folder beside `path`; it is moved to `path` if the block succeeds, else deleted.

    A folder that it replaces is first moved to `aside(path)`, so that one of the two is there at any moment.
    """
    with disk_errors(path):
        temporary = temporary_name(path)
        temporary.mkdir()
        try:
            yield temporary
            flush_folder(temporary)
            _move_folder(temporary, path)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def _move_folder(source: Path, target: Path) -> None:
    old = aside(target)
    if target.is_dir() and any(target.iterdir()):
        shutil.rmtree(old, ignore_errors=True)  # a leftover; `target` is newer
        with contextlib.suppress(FileNotFoundError):  # another process replaces the same folder
            move(target, old)
    move(source, target)
    shutil.rmtree(old, ignore_errors=True)


def aside(path: Path) -> Path:
    """Where the old version of a folder is while it is replaced."""
    return path.with_name(f".{path.name}.old")


def move(source: Path, target: Path) -> None:
    """Rename a flushed file or folder, and flush the entry of the folder too."""
    source.replace(target)
    _flush_entry(target.parent)


def flush_folder(folder: Path) -> None:
    """Flush all files below a folder to disk, and their entries."""
    for root, _, names in os.walk(folder):
        for name in names:
            _flush_entry(Path(root) / name)
        _flush_entry(Path(root))


def _flush_entry(path: Path) -> None:
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network disks cannot flush a folder
            raise
    finally:
        os.close(number)


def allocate(path: Path, size: int) -> None:
    """Create a file of `size` bytes that occupies its space on disk: a map of a sparse file would crash if it fills."""
    with disk_errors(path), path.open("wb") as file:
        if size > shutil.disk_usage(path.parent).free:  # not only tried: it would fill the disk for a moment
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if sys.platform == "linux":
            os.posix_fallocate(file.fileno(), 0, size)
            return
        for begin in range(0, size, 1 << 20):
            file.write(bytes(min(1 << 20, size - begin)))


# Temporary names


def temporary_name(path: Path) -> Path:
    """A temporary name beside `path`, whose folder exists and has no leftovers of killed processes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(path.parent, path.name)
    temporary = path.with_name(f".{path.name}.{_host()}-{os.getpid()}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    return temporary


def remove_leftovers(folder: Path, name: str | None = None) -> None:
    """Delete the temporary files and folders, of the file `name` or of all, that killed processes left in `folder`."""
    for entry in list(os.scandir(folder)):
        found = _TAG.search(entry.name)
        ours = found and entry.name == f".{name}{found.group()}" if name else found and entry.name.startswith(".")
        if not found or not ours or found[1] != _host() or _is_alive(int(found[2])):
            continue
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path, ignore_errors=True)
        else:
            Path(entry.path).unlink(missing_ok=True)


def _host() -> str:
    """This machine, in a name: the number of a process means nothing elsewhere."""
    return f"{zlib.crc32(platform.node().encode()):08x}"


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True
