"""A lock on a folder: one process at a time writes it. The system releases it when the process ends in any way."""

from __future__ import annotations

import contextlib
import errno
import os
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from chainrule.base.files import disk_errors
from chainrule.errors import RunError

try:
    import fcntl
except ModuleNotFoundError:  # not on Windows
    fcntl = None  # type: ignore[assignment]


@contextlib.contextmanager
def lock(file: Path, subject: Path) -> Iterator[None]:
    """Hold the lock `file`, which is created and names this process; refuse if another process holds it."""
    with disk_errors(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        held = file.open("a+", encoding="utf-8", errors="replace")
    with held:
        _acquire(held, subject)
        held.truncate(0)
        held.write(f"process {os.getpid()} on {platform.node()}\n")
        held.flush()
        yield


def refuse_if_locked(file: Path, subject: Path) -> None:
    """Refuse if another process holds the lock; nothing is created."""
    with (
        contextlib.suppress(FileNotFoundError, PermissionError),
        file.open("r", encoding="utf-8", errors="replace") as held,
    ):
        _acquire(held, subject)


@contextlib.contextmanager
def open_alone(file: Path, subject: Path) -> Iterator[IO[bytes]]:
    """Open a file to read and append, created if needed; refuse if another process has it open this way."""
    with disk_errors(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        held = file.open("a+b")
    with held:
        _acquire(held, subject)
        if not file.exists() or not os.path.samestat(file.stat(), os.fstat(held.fileno())):
            raise RunError(f"{subject} was written by another process at the same time; rerun the command")
        yield held


def _acquire(held: IO[str] | IO[bytes], subject: Path) -> None:
    if fcntl is None:
        return
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = _owner(held)
        raise RunError(f"{subject} is being written by {owner}; wait until it ends, or choose another --out") from None
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.EINVAL, errno.ENOSYS, errno.EBADF):
            raise  # disks that have no locks are used without


def _owner(held: IO[str] | IO[bytes]) -> str:
    """The process that a lock file names."""
    held.seek(0)
    found = held.read(200)
    return (found.strip() if isinstance(found, str) else "") or "another process"
