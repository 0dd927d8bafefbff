"""Writing files so that a kill at any moment leaves the old one or the new one, never half of either."""

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
    """Turn a refused write into a sentence."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskError(
                f"the disk is full, {path} was not written; free some space and run the command again"
            ) from None
        if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM):
            raise DiskError(f"{path} cannot be written ({error.strerror}); choose a place you may write to") from None
        raise


@contextlib.contextmanager
def file_atomically(path: Path) -> Iterator[BinaryIO]:
    """A file to write beside its place; flushed to the disk and moved there when the block ends well."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with disk_errors(path):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with beside.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)


def write_atomically(path: Path, content: bytes | str) -> None:
    """Write a whole file beside its place, flush it to the disk, then move it there."""
    with file_atomically(path) as file:
        file.write(content.encode("utf-8") if isinstance(content, str) else content)


@contextlib.contextmanager
def folder_atomically(path: Path) -> Iterator[Path]:
    """A folder to fill; it takes its place when the block ends well, and vanishes when it does not."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with disk_errors(path):
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir(parents=True)
        try:
            yield beside
            if path.exists():
                shutil.rmtree(path)
            beside.replace(path)
        finally:
            shutil.rmtree(beside, ignore_errors=True)
