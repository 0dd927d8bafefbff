"""Run the command line in separate processes, forked from one that has everything imported, so that they start fast."""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SECONDS = 300
"""A command that takes longer counts as hung."""

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["commands", "preloaded"])
# Where the process that is forked finds these two.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]))


@dataclass
class Result:
    """Exit code, standard output and standard error of a command."""

    code: int
    out: str
    err: str


class Command:
    """A running `chainrule ARGUMENTS…`; `terminal` is the path of a terminal that takes the place of standard error."""

    def __init__(self, *arguments: object, stdin: str = "", terminal: str | None = None, **environment: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="chainrule-test-"))
        (self.folder / "in").write_text(stdin, encoding="utf-8")
        if terminal is not None:
            (self.folder / "err").symlink_to(terminal)
        environment |= {name: os.environ[name] for name in ("CHAINRULE_CACHE", "OMP_NUM_THREADS")}
        self.process: Any = _context.Process(
            target=_run, args=(list(map(str, arguments)), str(self.folder), environment)
        )
        self.process.start()

    def wait(self) -> Result:
        self.process.join(SECONDS)
        if self.process.exitcode is None:
            self.process.kill()
            raise AssertionError(f"hung: {self._read('err')}")
        return Result(self.process.exitcode, self._read("out"), self._read("err"))

    def _read(self, name: str) -> str:
        """What the command wrote to a file; nothing if it wrote to a terminal."""
        file = self.folder / name
        return file.read_text(encoding="utf-8") if file.is_file() else ""


def chainrule(*arguments: object, stdin: str = "") -> Result:
    """Run a command to its end."""
    return Command(*arguments, stdin=stdin).wait()


def _run(arguments: list[str], folder: str, environment: dict[str, str]) -> None:
    """In the new process: redirect the three standard streams to files, then run the command."""
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
