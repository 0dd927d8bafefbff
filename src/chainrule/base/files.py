"""Atomic writing: a process killed at any moment leaves the old file or the new one, never a part."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from chainrule.errors import DiskError


@contextlib.contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn a failed write into a message that states what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskError(
                f"the disk is full, {path} was not written; free some space and rerun the command"
            ) from None
        if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM):
            raise DiskError(
                f"{path} cannot be written ({error.strerror}); choose a folder with write permission"
            ) from None
        raise


@contextlib.contextmanager
def file_atomically(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file beside `path`; it is flushed to disk and moved to `path` if the block succeeds."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with disk_errors(path):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with temporary.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def write_atomically(path: Path, content: bytes | str) -> None:
    """Write a whole file atomically."""
    with file_atomically(path) as file:
        file.write(content.encode("utf-8") if isinstance(content, str) else content)


@contextlib.contextmanager
def folder_atomically(path: Path) -> Iterator[Path]:
    """Create a temporary folder beside `path`; it is moved to `path` if the block succeeds, else deleted."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with disk_errors(path):
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        try:
            yield temporary
            if path.exists():
                shutil.rmtree(path)
            temporary.replace(path)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
