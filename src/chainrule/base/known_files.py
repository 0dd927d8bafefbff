"""What reading large files whole has shown, kept in the cache as long as nothing writes the files.

    cache/known/<key>   the answer: a hash, a size, a place

The key names the question and the state of the files: device, inode, size and times, which any writing changes. A start
on a text of many gigabytes then reads none of them.
"""

from __future__ import annotations

import contextlib
import hashlib
import stat
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from chainrule.base.cache import default_cache, usable
from chainrule.base.files import write_atomically
from chainrule.errors import DiskError

FOLDER = "known"

LARGE = 1 << 24
"""Bytes of files from which answers are kept; smaller ones are read faster than it matters."""

SETTLED = 0.1
"""Seconds after which another write gives a file another time: clocks of file systems have ticks."""


class FileState(NamedTuple):
    """The state of one or several files, or of a part of them."""

    name: str  # another one after any writing
    bytes: int  # of the files

    def part(self, name: str) -> FileState:
        """The state of a part of the same files."""
        return FileState(f"{self.name} {name}", self.bytes)

    def recall(self, question: str) -> str | None:
        """The answer to a question about these files; None if it is not known."""
        cache = default_cache()
        if cache is None or self.bytes < LARGE:
            return None
        try:
            return (cache / FOLDER / self._key(question)).read_text(encoding="ascii")
        except (OSError, ValueError):
            return None

    def note(self, question: str, answer: str) -> None:
        """Keep an answer. Without it the files are read again, so a full disk is no error here."""
        if self.bytes < LARGE or (cache := usable(default_cache())) is None:
            return
        with contextlib.suppress(OSError, DiskError):
            write_atomically(cache / FOLDER / self._key(question), answer)

    def _key(self, question: str) -> str:
        return hashlib.blake2b(f"{question}\n{self.name}".encode(), digest_size=16).hexdigest()


def state_of(path: Path, *, settled: bool = False) -> FileState | None:
    """The state of a file; None if it is no regular file, or was written just now and may be written again unnoticed.

    `settled`: nothing writes the file any more.
    """
    try:
        about = path.stat()
    except OSError:
        return None
    if not stat.S_ISREG(about.st_mode) or not (settled or time.time() - about.st_ctime > SETTLED):
        return None
    times = f"{about.st_mtime_ns} {about.st_ctime_ns}"
    return FileState(f"{about.st_dev} {about.st_ino} {about.st_size} {times}", about.st_size)


def joined(states: Iterable[FileState | None]) -> FileState | None:
    """The state of several files in this order; None if one of them has none."""
    digest, size = hashlib.blake2b(digest_size=16), 0
    for state in states:
        if state is None:
            return None
        digest.update(f"{state.name}\n".encode())
        size += state.bytes
    return FileState(digest.hexdigest(), size)
