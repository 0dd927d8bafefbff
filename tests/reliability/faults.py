"""Fault injection: a function is run in a child process that fails, or dies, at its n-th file operation.

File operations are the calls below, in the order in which a process makes them. `count` runs a function undisturbed and
returns how many there are; `killed_at` and `failing_at` disturb one of them.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

OPERATIONS = ("replace", "rename", "fsync", "unlink", "rmdir", "mkdir", "link")
"""Functions of `os` that change a disk."""


@contextmanager
def watched(root: Path, at: Callable[[int, str], None]) -> Iterator[list[str]]:
    """Call `at(number, name)` before each operation that writes below `root`; yield the names so far."""
    seen: list[str] = []

    def note(name: str, target: Any) -> None:
        if isinstance(target, int) or _is_below(target, root):
            seen.append(name)
            at(len(seen), name)

    with pytest.MonkeyPatch.context() as patch:
        for name in OPERATIONS:
            patch.setattr(os, name, _noting(name, getattr(os, name), note))
        opened = io.open

        def open_noting(file: Any, mode: str = "r", *rest: Any, **named: Any) -> Any:
            if set(mode) & set("wax+"):
                note("open", file)
            return opened(file, mode, *rest, **named)

        patch.setattr(io, "open", open_noting)
        patch.setattr(builtins, "open", open_noting)
        yield seen


def _noting(name: str, function: Callable[..., Any], note: Callable[[str, Any], None]) -> Callable[..., Any]:
    def call(target: Any, *rest: Any, **named: Any) -> Any:
        # shutil.rmtree names files relative to an open folder, which is below the root if anything is.
        note(name, 0 if named.get("dir_fd") is not None else target)
        return function(target, *rest, **named)

    return call


def _is_below(target: Any, root: Path) -> bool:
    return root in Path(os.path.abspath(os.fspath(target))).parents


def count(work: Callable[[], object], root: Path) -> list[str]:
    """The names of the file operations of `work`, which is run in this process."""
    with watched(root, lambda number, name: None) as seen:
        work()
    return list(seen)


def die_at(number: int, work: Callable[[], object], root: Path) -> None:
    """Run `work` in this process, which is killed before its operation `number`."""

    def kill(now: int, name: str) -> None:
        if now == number:
            os.kill(os.getpid(), signal.SIGKILL)

    with watched(root, kill):
        work()


def killed_at(number: int, work: Callable[[], object], root: Path) -> bool:
    """Run `work` in a child process that is killed before its operation `number` -> whether it got that far."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            die_at(number, work, root)
            code = 0
        finally:
            os._exit(code)
    status = os.waitpid(child, 0)[1]
    assert status in (0, signal.SIGKILL), f"the child failed with status {status}"
    return status == signal.SIGKILL


@contextmanager
def failing_at(number: int, root: Path, error: int = errno.ENOSPC) -> Iterator[None]:
    """Let the operation `number` of this process, and all later ones that write, fail with a system error."""

    def fail(now: int, name: str) -> None:
        if now >= number and name not in ("unlink", "rmdir"):
            raise OSError(error, os.strerror(error))

    with watched(root, fail):
        yield
