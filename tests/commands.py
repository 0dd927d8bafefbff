"""The command line in processes of its own, which begin with torch already imported, so that starting one is cheap."""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SECONDS = 300
"""Long enough for a busy machine; only a process that hangs takes as long."""

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["commands", "chainrule.cli.main", "chainrule.api", "chainrule.experiments.compare"])


@dataclass
class Result:
    """What a command came to."""

    code: int
    out: str
    err: str


class Command:
    """`chainrule ARGUMENTS…`, running."""

    def __init__(self, *arguments: object, stdin: str = "", **environment: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="chainrule-test-"))
        (self.folder / "in").write_text(stdin, encoding="utf-8")
        environment |= {name: os.environ[name] for name in ("CHAINRULE_CACHE", "OMP_NUM_THREADS")}
        self.process: Any = _context.Process(
            target=_run, args=(list(map(str, arguments)), str(self.folder), environment)
        )
        self.process.start()

    def wait(self) -> Result:
        self.process.join(SECONDS)
        if self.process.exitcode is None:
            self.process.kill()
            raise AssertionError(f"hung: {(self.folder / 'err').read_text()}")
        out, err = ((self.folder / name).read_text(encoding="utf-8") for name in ("out", "err"))
        return Result(self.process.exitcode, out, err)


def chainrule(*arguments: object, stdin: str = "") -> Result:
    """Run a command to its end."""
    return Command(*arguments, stdin=stdin).wait()


def _run(arguments: list[str], folder: str, environment: dict[str, str]) -> None:
    """In the new process: put files in the place of the three streams, then do what the shell would."""
    for number, (name, flags) in enumerate(
        [("in", os.O_RDONLY), ("out", os.O_WRONLY | os.O_CREAT), ("err", os.O_WRONLY | os.O_CREAT)]
    ):
        os.dup2(os.open(f"{folder}/{name}", flags), number)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        setattr(sys, name, os.fdopen(number, "r" if number == 0 else "w", encoding="utf-8"))
    os.environ.update(environment)
    sys.argv = ["chainrule", *arguments]
    from chainrule.cli.main import main

    main()
