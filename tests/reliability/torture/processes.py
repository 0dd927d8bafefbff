"""Work in a forked child that has everything imported, so that starting it costs a few milliseconds."""

from __future__ import annotations

import os
import select
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

HANG = 120.0
"""Seconds after which a child counts as hung."""


class Child:
    """A function in a forked process; what it prints goes to a file."""

    def __init__(self, work: Callable[[], object], log: Path) -> None:
        self.log = log
        self.id = os.fork()
        if self.id == 0:
            _run(work, log)
        self._handle = os.pidfd_open(self.id)

    def wait(self, seconds: float = HANG) -> int | None:
        """The status of `waitpid`; None: it still runs."""
        if not select.select([self._handle], [], [], seconds)[0]:
            return None
        os.close(self._handle)
        return os.waitpid(self.id, 0)[1]

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
