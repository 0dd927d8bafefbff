"""Work in a child process that is disturbed at one of its file operations.

Where the kernel can be asked, operations are system calls (`system_calls`); elsewhere they are the functions of Python
that change files (`faults`).
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import faults

from chainrule.cli.failures import describe
from torture import system_calls
from torture.processes import Child

Answer = system_calls.Answer

SUPPORTED = system_calls.supported()


@dataclass
class Interrupted:
    """How a disturbed call ended: its status (None: it hangs), its operations, and the message if it was refused."""

    status: int | None
    operations: list[str] = field(default_factory=list)
    refused: str | None = None

    @property
    def checked_status(self) -> int | None:
        """The status, with 1 for a call that was refused."""
        return 1 if self.status == 0 and self.refused is not None else self.status


def kill_at(number: int) -> Answer:
    """Kill the process before its operation `number`."""
    return lambda now, name: None if now == number else 0


def fail_from(number: int, error: int) -> Answer:
    """Each operation from `number` on fails; a full disk lets files be deleted."""
    possible = ("unlink", "rmdir") if error == errno.ENOSPC else ()
    return lambda now, name: error if now >= number and name not in possible else 0


def fail_once(number: int, error: int) -> Answer:
    """The operation `number` alone fails."""
    return lambda now, name: error if now == number else 0


def let_all(now: int, name: str) -> int:
    """Every operation happens."""
    return 0


def interrupted(work: Callable[[], object], root: Path, log: Path, answer: Answer) -> Interrupted:
    """Run `work` in a child; `answer` says what happens at each operation that writes below `root`."""
    run = system_calls.supervise if SUPPORTED else _python_level
    message = log.with_name("message")
    status, operations = run(describing(work, message), root, log, answer)
    return Interrupted(status, operations, read_message(message))


def described(work: Callable[[], object], log: Path) -> Interrupted:
    """Run `work` in a child that nothing disturbs from here."""
    message = log.with_name("message")
    return Interrupted(Child(describing(work, message), log).wait(), refused=read_message(message))


def describing(work: Callable[[], object], message: Path) -> Callable[[], None]:
    """The same work, which ends well with a message if its error is one that the command line describes."""
    message.unlink(missing_ok=True)

    def run() -> None:
        try:
            work()
        except Exception as error:
            if (found := describe(error)) is None:
                raise
            message.write_text(found[0])

    return run


def read_message(message: Path) -> str | None:
    """The message of `describing`, if there was one."""
    return message.read_text() if message.exists() else None


def _python_level(work: Callable[[], object], root: Path, log: Path, answer: Answer) -> tuple[int | None, list[str]]:
    names = log.with_name("operations")
    names.write_text("")

    def watched() -> None:
        with names.open("a") as notes:

            def at(number: int, name: str) -> None:
                print(name, file=notes, flush=True)
                error = answer(number, name)
                if error is None:
                    os.kill(os.getpid(), signal.SIGKILL)
                elif error:
                    raise OSError(error, os.strerror(error))

            with faults.watched(root, at):
                work()

    return Child(watched, log).wait(), names.read_text().split()
