"""Every verb that writes, killed before each of its file operations and with each of them failing.

Afterwards the place holds the old content or the whole new one, and the same call gives the result of a call that
nothing disturbed.
"""

from __future__ import annotations

import errno
import random
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from time import monotonic

from chainrule.errors import ChainruleError
from torture.interruption import Answer, Interrupted, described, fail_from, fail_once, interrupted, kill_at, let_all
from torture.kills import compare
from torture.outcomes import Clock, Tally
from torture.processes import last_line
from torture.verbs import Result, Writer

ERRORS = (errno.ENOSPC, errno.EROFS, errno.EIO)

Problem = tuple[str, str]
"""A kind of failure and a text."""

Disturbance = tuple[str, str, Callable[[int], Answer]]
"""The outcome to count, a text for the report, and what to do at an operation."""


def disturbances(number: int) -> list[Disturbance]:
    """What is done at an operation: a kill, a failure from then on, and a failure of this operation alone."""
    lasting, once = ERRORS[number % len(ERRORS)], ERRORS[(number + 1) % len(ERRORS)]
    return [
        ("killed", "killed", kill_at),
        ("failed", f"{errno.errorcode[lasting]} from there on", lambda at: fail_from(at, lasting)),
        ("failed once", f"{errno.errorcode[once]} once", lambda at: fail_once(at, once)),
    ]


def campaign(
    found: list[Writer], place: Path, seed: int, clock: Clock, cases: int | None = None, at: int | None = None
) -> list[Tally]:
    """Disturb all writers, the short ones first, in random order at all operations, at `cases` of each, or `at` one."""
    beds = [
        Bed(writer, place / writer.name.replace(" ", "_"), random.Random(f"{seed} {writer.name}")) for writer in found
    ]
    for bed in beds:
        bed.choose(cases, at)
    while clock and any(bed.waiting for bed in beds):
        shortest = min((bed for bed in beds if bed.waiting), key=lambda bed: len(bed.waiting))
        shortest.disturb(shortest.waiting.pop())
    for bed in beds:
        bed.report()
    return [bed.tally for bed in beds]


class Bed:
    """One writer: the result of an undisturbed call, and the operations at which it is still to be disturbed."""

    def __init__(self, writer: Writer, place: Path, draw: random.Random) -> None:
        self.writer, self.place, self.draw = writer, place, draw
        self.log = place / "log"
        self.tally = Tally(writer.name)
        place.mkdir(parents=True)
        if writer.ready:
            writer.ready()
        self.before = writer.result(self.fresh()) if writer.prepare else None
        described(lambda: writer.write(self.fresh()), self.log)  # fills caches
        out, begun = self.fresh(), monotonic()
        whole = interrupted(lambda: writer.write(out), out, self.log, let_all)
        assert whole.checked_status == 0, f"{writer.name}: {whole.refused} {self.log.read_text()}"
        self.names, self.seconds = whole.operations, monotonic() - begun
        self.expected = writer.result(out)
        self.waiting: list[int] = []

    def choose(self, cases: int | None, at: int | None) -> None:
        """The operations at which the writer will be disturbed."""
        numbers = list(range(1, len(self.names) + 1)) if at is None else [at]
        self.draw.shuffle(numbers)
        self.waiting = numbers[:cases]

    def report(self) -> None:
        """State in the name of the tally how much was covered."""
        reached = set(range(1, len(self.names) + 1)) - set(self.waiting)
        self.tally.name += f", {len(reached)} of {len(self.names)} operations"

    def disturb(self, number: int) -> None:
        """Disturb the operation `number` in every way."""
        for outcome, how, answer in disturbances(number):
            repeat = f'--only writers --target "{self.writer.name}" --at {number}, {how} at {self.names[number - 1]}'
            out = self.fresh()
            ended = interrupted(lambda out=out: self.writer.write(out), out, self.log, answer(number))  # type: ignore[misc]
            problem = self.problem(ended, out)
            self.tally.add(problem[0], f"{repeat}: {problem[1]}") if problem else self.tally.add(outcome)

    def call(self, out: Path) -> Interrupted:
        """The call, undisturbed from here."""
        return described(lambda: self.writer.write(out), self.log)

    def problem(self, ended: Interrupted, out: Path) -> Problem | None:
        """What is wrong after a disturbed call, or after the same call again."""
        if ended.status is None:
            return "hang", ""
        if ended.status not in (0, signal.SIGKILL):
            return "bug", last_line(self.log)
        if ended.refused is not None and not ended.refused.strip():
            return "bug", "an empty message"
        well = ended.status == 0 and ended.refused is None
        if well and not self.writer.cache and (problem := self.differs(out)):
            return "silent", f"the call ended well: {problem}"
        if self.before is not None and (problem := self.differs(out, self.before)) and self.differs(out):
            return "lost", f"neither the old content nor the new: {problem}"
        return self.again(out)

    def again(self, out: Path) -> Problem | None:
        """The same call works, or finds the result finished."""
        ended = self.call(out)
        if ended.status != 0:
            return ("hang" if ended.status is None else "bug"), f"the same call again: {last_line(self.log)}"
        if problem := self.differs(out):
            return "lost", f"after the same call again: {problem} {ended.refused or ''}"
        return None

    def differs(self, out: Path, expected: Result | None = None) -> str:
        """In what the content differs from the result, or from another one; empty: in nothing."""
        try:
            return compare(self.expected if expected is None else expected, self.writer.result(out))
        except (ChainruleError, OSError, ValueError) as error:
            return f"{type(error).__name__}: {error}"

    def fresh(self) -> Path:
        """A new place for the next call, with the old content if there is one."""
        out = self.place / "out"
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir(parents=True)
        self.prepare(out)
        return out

    def prepare(self, out: Path) -> None:
        """Write the old content."""
        if self.writer.prepare:
            self.writer.prepare(out)
