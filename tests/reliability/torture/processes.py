"""Work in a forked child that has everything imported, so that starting it costs a few milliseconds.

A child may start processes itself. `no_orphans` sees to it that they come to this process when the child ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

HANG = 120.0
"""Seconds after which a child counts as hung."""

ORPHAN_SECONDS = 5.0
"""Time in which the processes of a child must end after it."""

ADOPT, DEATH_SIGNAL = 36, 1  # PR_SET_CHILD_SUBREAPER, PR_SET_PDEATHSIG


class Child:
    """A function in a forked process; what it prints goes to a file."""

    def __init__(self, work: Callable[[], object], log: Path) -> None:
        self.log = log
        self.id = os.fork()
        if self.id == 0:
            _run(work, log)
        self.handle = os.pidfd_open(self.id)

    def wait(self, seconds: float = HANG) -> int | None:
        """The status of `waitpid`; None: it still runs."""
        if not self.ended(seconds):
            return None
        os.close(self.handle)
        return os.waitpid(self.id, 0)[1]

    def ended(self, seconds: float) -> bool:
        """Whether it ends within this time."""
        return bool(select.select([self.handle], [], [], seconds)[0])

    def kill(self) -> int | None:
        """Kill it -> its status."""
        os.kill(self.id, signal.SIGKILL)
        return self.wait()


def _run(work: Callable[[], object], log: Path) -> None:
    code = 1
    try:
        target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(target, 1)
        os.dup2(target, 2)
        work()
        code = 0
    except BaseException:  # whatever it is, the parent reads it from the log
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def last_line(log: Path) -> str:
    """The last line that a child printed."""
    lines = log.read_text(errors="replace").splitlines()
    return lines[-1][:200] if lines else ""


def family(process: int) -> list[int]:
    """A process and those that it started, directly or not."""
    try:
        children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    except OSError:  # it has just ended
        return [process]
    return [process, *(one for child in children for one in family(int(child)))]


@contextlib.contextmanager
def no_orphans(found: list[int]) -> Iterator[None]:
    """Append the processes that live on after the children of the block; they are killed."""
    prctl = ctypes.CDLL(None).prctl
    prctl(ADOPT, 1, 0, 0, 0)
    before = set(family(os.getpid()))
    try:
        yield
    finally:
        end = time.monotonic() + ORPHAN_SECONDS
        while (alive := _alive(before)) and time.monotonic() < end:
            time.sleep(0.005)
        found.extend(alive)
        for process in alive:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(process, signal.SIGKILL)
                os.waitpid(process, 0)
        prctl(ADOPT, 0, 0, 0, 0)


def _alive(before: set[int]) -> list[int]:
    """The processes that this one has adopted and that have not ended."""
    adopted = [process for process in family(os.getpid()) if process not in before]
    return [process for process in adopted if not _ended(process)]


def _ended(process: int) -> bool:
    with contextlib.suppress(ChildProcessError):
        return os.waitpid(process, os.WNOHANG)[0] != 0
    return not Path(f"/proc/{process}").exists()


def die_with_parent() -> None:
    """Let this process be killed when the one that forked it ends."""
    ctypes.CDLL(None).prctl(DEATH_SIGNAL, signal.SIGKILL)
