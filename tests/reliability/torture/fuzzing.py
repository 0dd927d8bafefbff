"""Damaged files are read in a child process, each case with a limit of time and memory.

A case is the seed, the name of a target and a number: `--only fuzz --seed S --target NAME` repeats it.
"""

from __future__ import annotations

import contextlib
import random
import resource
import signal
import struct
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chainrule.errors import ChainruleError
from torture.mutators import mutate
from torture.outcomes import Clock, Tally
from torture.processes import Child

SECONDS = 10
"""A case that takes longer counts as hung."""

ROOM = 64 << 20
"""Bytes that a damaged file may need beyond twice those of the good one."""

CEILING = 6 << 30
"""Address space that a child may add, so that no case can harm the machine."""

OUTCOMES = ("accepted", "refused", "bug", "hang", "memory", "silent")
RECORD = struct.Struct("<QB")


@dataclass
class Target:
    """A file and the function that reads it."""

    name: str
    file: Path
    kind: str  # of the mutators
    read: Callable[[], Any]  # what it gives is the meaning of the file
    same: bool = False  # whether a damaged file that is accepted must mean the same


class Hang(BaseException):
    """Raised by the alarm; no reader catches it."""


def campaign(targets: list[Target], place: Path, seed: int, clock: Clock, cases: int | None) -> list[Tally]:
    """Fuzz every target for its share of the time, or a number of cases."""
    place.mkdir(parents=True, exist_ok=True)
    tallies = []
    for number, target in enumerate(targets):
        tally, share = Tally(target.name), clock.share(len(targets) - number)
        begin = 0
        while share and (cases is None or begin < cases):
            begin = _fuzz(target, place, seed, begin, share, cases, tally)
        tallies.append(tally)
    return tallies


def _fuzz(target: Target, place: Path, seed: int, begin: int, share: Clock, cases: int | None, tally: Tally) -> int:
    """Fuzz in a child from the case `begin` on -> the next case; a child that dies is a crash of its case."""
    results, report = place / "results", place / "report"
    report.write_text("")
    results.write_bytes(b"")
    good = target.file.read_bytes()
    child = Child(lambda: _cases(target, seed, begin, share, cases, results, report), place / "log")
    status = child.wait(max(share.left, 0) + 60)
    if status is None:
        status = child.kill()
    target.file.write_bytes(good)
    done = list(RECORD.iter_unpack(results.read_bytes()[: results.stat().st_size // RECORD.size * RECORD.size]))
    about: dict[str, str] = dict(line.split("\t", 1) for line in report.read_text().splitlines())
    for case, outcome in done:
        tally.add(OUTCOMES[outcome], f"--only fuzz --seed {seed} case {case}: {about.get(str(case), '')}")
    following: int = done[-1][0] + 1 if done else begin
    if status != 0:
        ending = (place / "log").read_text(errors="replace")[-300:].replace("\n", " ")
        tally.add("crash", f"--only fuzz --seed {seed} case {following}: status {status} {ending}")
        return following + 1
    return following


def _cases(target: Target, seed: int, begin: int, share: Clock, cases: int | None, results: Path, report: Path) -> None:
    """In the child: one case after the other, each with a record."""
    good = target.file.read_bytes()
    _limit_memory()
    with alarms():
        expected = target.read()
        _reset_peak()
        before = _memory("VmRSS")
        target.read()
        room = 2 * max(_memory("VmHWM") - before, 0) + ROOM
        case = begin
        with results.open("wb", buffering=0) as record, report.open("a") as notes:
            while share and (cases is None or case < cases):
                data = mutate(good, random.Random(f"{seed} {target.name} {case}"), target.kind)
                outcome, about = one_case(target, data, expected, room + 2 * max(len(data) - len(good), 0))
                if about:
                    print(case, about, sep="\t", file=notes, flush=True)
                record.write(RECORD.pack(case, OUTCOMES.index(outcome)))
                case += 1


def one_case(target: Target, data: bytes, expected: Any, room: int) -> tuple[str, str]:
    """Read a damaged file -> the outcome, and what is known about a failure."""
    target.file.write_bytes(data)
    _reset_peak()
    before = _memory("VmRSS")
    try:
        signal.setitimer(signal.ITIMER_REAL, SECONDS)
        try:
            found = target.read()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        if target.same and found != expected:
            return "silent", f"{str(found)[:80]} instead of {str(expected)[:80]}"
        outcome, about = "accepted", ""
    except ChainruleError as error:
        if "allocate memory" in str(error):  # the ceiling was met; without it, the memory would have been taken
            return "memory", _place_of(error)
        outcome, about = ("refused", "") if str(error).strip() else ("bug", "an empty message")
    except Hang:
        return "hang", ""
    except MemoryError as error:
        return "memory", _place_of(error)
    except BaseException as error:  # every other error is a finding, panics of libraries in Rust too
        return "bug", _place_of(error)
    if (peak := _memory("VmHWM") - before) > room:
        return "memory", f"{peak >> 20} MiB, expected at most {room >> 20}"
    return outcome, about


def _place_of(error: BaseException) -> str:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "chainrule" in frame.filename]
    where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return " ".join(f"{type(error).__name__} {where} {error}".split())[:200]


@contextlib.contextmanager
def alarms() -> Iterator[None]:
    """Let the alarm of a case raise `Hang`."""

    def alarm(number: int, frame: object) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, alarm)
    try:
        yield
    finally:
        signal.signal(signal.SIGALRM, before)


def _limit_memory() -> None:
    ceiling = _memory("VmSize") + CEILING
    resource.setrlimit(resource.RLIMIT_AS, (ceiling, ceiling))


def _reset_peak() -> None:
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def _memory(name: str) -> int:
    """A line of /proc/self/status in bytes."""
    with open("/proc/self/status", "rb") as file:
        text = file.read()
    begin = text.index(name.encode() + b":") + len(name) + 1
    return int(text[begin : text.index(b"kB", begin)]) << 10
