"""Hostile surroundings: a full disk, a read-only disk or cache, too little memory, two writers, a writer that sleeps.

Every verb that writes gives its result or a message. What was there before stays, and the same call works once the
surroundings are good again.
"""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from torture.interruption import Interrupted, described, describing, interrupted, kill_at
from torture.outcomes import Clock, Tally
from torture.processes import Child, last_line
from torture.verbs import Writer
from torture.writers import Bed, Problem

SIZES = ("4k", "64k", "160k", "400k")
"""Sizes of the full disk."""

MEMORY = (32 << 20, 128 << 20, 512 << 20)
"""Address space that a call may add, in bytes."""

MOUNTS = os.geteuid() == 0 and shutil.which("mount") is not None

Case = tuple[str, Problem | None]
"""What was tried, and what was wrong."""


def campaign(found: list[Writer], place: Path, seed: int, clock: Clock, cases: int | None) -> list[Tally]:
    """Every writer in all surroundings."""
    beds = [Bed(one, place / one.name.replace(" ", "_"), random.Random(f"{seed} {one.name}")) for one in found[:cases]]
    tallies = []
    for name, (possible, part) in PARTS.items():
        tally = Tally(name)
        if not possible:
            tally.add("skipped: mounting needs root")
        for bed in beds if possible else ():
            for repeat, problem in part(bed) if clock else ():
                about = f'--only surroundings --seed {seed} --target "{bed.writer.name}", {repeat}'
                tally.add(problem[0], f"{about}: {problem[1]}") if problem else tally.add("message or result")
        tallies.append(tally)
    return tallies


@contextmanager
def disk(place: Path, options: str = "size=64m") -> Iterator[Path]:
    """A file system in memory."""
    place.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "torture", str(place)], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def remount(place: Path, options: str) -> None:
    """Change the options of a file system."""
    subprocess.run(["mount", "-o", f"remount,{options}", str(place)], check=True)


def _full_disks(bed: Bed) -> Iterator[Case]:
    """The disk fills; then there is room again."""
    for size in SIZES:
        with disk(bed.place / "disk", f"size={size}") as out:
            try:
                bed.prepare(out)
            except OSError:
                continue  # not even the old content fits
            ended = bed.call(out)
            remount(out, "size=64m")
            yield f"a disk of {size}", bed.problem(ended, out)


def _read_only(bed: Bed) -> Iterator[Case]:
    """A killed call is repeated on a read-only disk, which it reports, and again when the disk can be written."""
    for number in (0, 1, len(bed.names) // 2, len(bed.names)):
        with _lockable(bed.place / "readonly") as (out, set_writable):
            bed.prepare(out)
            if number:
                interrupted(lambda out=out: bed.writer.write(out), out, bed.log, kill_at(number))  # type: ignore[misc]
            before = content(out)
            set_writable(False)
            ended = bed.call(out)
            changed = content(out) != before
            set_writable(True)
            if changed:
                yield f"read-only after operation {number}", ("lost", "the content of a read-only folder changed")
            yield f"read-only after operation {number}", _must_refuse(ended, bed, out) or bed.problem(ended, out)


def _must_refuse(ended: Interrupted, bed: Bed, out: Path) -> Problem | None:
    """A call that writes nothing may only end well if its result was already there."""
    if ended.status == 0 and ended.refused is None and not bed.writer.cache and bed.differs(out):
        return "silent", "the call ended well, but nothing could be written"
    return None


@contextmanager
def _lockable(place: Path) -> Iterator[tuple[Path, Callable[[bool], None]]]:
    """A folder that can be made read-only: by a mount as root, who may write everywhere, else by its mode."""
    if MOUNTS:
        with disk(place) as out:
            yield out, lambda writable: remount(out, "rw" if writable else "ro")
        return
    place.mkdir(parents=True, exist_ok=True)

    def set_writable(writable: bool) -> None:
        for folder in (place, *(path for path in place.rglob("*") if path.is_dir())):
            folder.chmod(0o755 if writable else 0o555)

    try:
        yield place, set_writable
    finally:
        set_writable(True)
        shutil.rmtree(place)


def _read_only_cache(bed: Bed) -> Iterator[Case]:
    """Without a cache, every call works."""
    with _lockable(bed.place / "cache") as (cache, set_writable):
        set_writable(False)

        def without_cache() -> None:
            os.environ["CHAINRULE_CACHE"] = str(cache)
            bed.writer.write(out)

        out = bed.fresh()
        ended = described(without_cache, bed.log)
        set_writable(True)
        yield "a read-only cache", ("lost", ended.refused) if ended.refused else bed.problem(ended, out)


def _little_memory(bed: Bed) -> Iterator[Case]:
    for room in MEMORY:
        out = bed.fresh()

        def limited(room: int = room, out: Path = out) -> None:
            used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
            resource.setrlimit(resource.RLIMIT_AS, (used + room, used + room))
            bed.writer.write(out)

        yield f"{room >> 20} MiB", bed.problem(described(limited, bed.log), out)


def _two_writers(bed: Bed) -> Iterator[Case]:
    """Two calls at once; afterwards the result is whole."""
    out = bed.fresh()
    yield "two at once", _both(bed, out, lambda child: None)


def _sleeping_writer(bed: Bed) -> Iterator[Case]:
    """A call is stopped in the middle, the same call is made, then the first continues."""
    for _ in range(3):
        out, pause = bed.fresh(), bed.draw.uniform(0, bed.seconds)

        def stop(child: Child, pause: float = pause) -> None:
            if not child.ended(pause):
                os.kill(child.id, signal.SIGSTOP)

        yield f"stopped after {pause:.3f} seconds", _both(bed, out, stop)


def _both(bed: Bed, out: Path, between: Callable[[Child], None]) -> Problem | None:
    """Two calls, with something done to the first one before the second."""
    logs = [bed.log, bed.place / "other"]
    work = describing(lambda: bed.writer.write(out), bed.place / "message")
    first = Child(work, logs[0])
    between(first)
    second = Child(work, logs[1])
    states = [second.wait()]
    os.kill(first.id, signal.SIGCONT)
    states.insert(0, first.wait())
    for status, log in zip(states, logs, strict=True):
        if status != 0:
            return ("hang" if status is None else "bug"), last_line(log)
    return bed.again(out)


def content(folder: Path) -> dict[str, bytes]:
    """All files below a folder."""
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


PARTS: dict[str, tuple[bool, Callable[[Bed], Iterator[Case]]]] = {
    "full disk": (MOUNTS, _full_disks),
    "read-only": (True, _read_only),
    "read-only cache": (True, _read_only_cache),
    "out of memory": (True, _little_memory),
    "two writers": (True, _two_writers),
    "sleeping writer": (True, _sleeping_writer),
}
"""By name: whether it is possible here, and the cases of one writer."""
