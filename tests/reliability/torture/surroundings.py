"""Hostile surroundings: a disk that is full, a folder that cannot be written, too little memory, two writers.

Every verb that writes ends with a message, and what was there before stays.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from chainrule.cli.failures import describe
from torture.outcomes import Clock, Tally
from torture.processes import Child, last_line
from torture.writers import Writer

SIZES = ("4k", "64k", "160k", "400k")
"""Sizes of the full disk."""

MEMORY = (32 << 20, 128 << 20, 512 << 20)
"""Address space that a call may add, in bytes."""


def campaign(found: list[Writer], place: Path, clock: Clock, cases: int | None) -> list[Tally]:
    """Every writer in all surroundings."""
    place.mkdir(parents=True, exist_ok=True)
    parts: list[tuple[str, Callable[[Writer, Path], Iterator[tuple[str, int | None]]]]] = [
        ("full disk", _full_disks),
        ("out of memory", _little_memory),
        ("two writers", _two_writers),
    ]
    tallies = []
    for name, part in parts:
        tally = Tally(name)
        if name == "full disk" and not _can_mount():
            tally.add("skipped: mounting needs root", count=1)
            tallies.append(tally)
            continue
        for writer in found[:cases]:
            for repeat, status in part(writer, place) if clock else ():
                if status == 0:
                    tally.add("message or result")
                else:
                    tally.add("bug" if status else "hang", f"{writer.name}, {repeat}: {last_line(place / 'log')}")
        tallies.append(tally)
    return tallies


def _ends_well(work: Callable[[], object]) -> Callable[[], None]:
    """The call gives a result or an error that the command line describes in one line."""

    def run() -> None:
        try:
            work()
        except Exception as error:
            if describe(error) is None:
                raise

    return run


def _can_mount() -> bool:
    return os.geteuid() == 0 and shutil.which("mount") is not None


@contextmanager
def small_disk(place: Path, size: str) -> Iterator[Path]:
    """A file system in memory of this size."""
    place.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "torture", str(place)], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def _full_disks(writer: Writer, place: Path) -> Iterator[tuple[str, int | None]]:
    """Fill a disk; then the same call in another place that has room works on what is there."""
    for size in SIZES:
        with small_disk(place / "disk", size) as disk:
            try:
                writer.prepare(disk)
            except OSError:
                continue  # not even the old content fits
            before = {path: path.read_bytes() for path in disk.rglob("model.safetensors")}
            yield f"a disk of {size}", Child(_ends_well(lambda: writer.write(disk)), place / "log").wait()
            unchanged = all(path.read_bytes() == content for path, content in before.items())
            yield f"a disk of {size}: what was there", 0 if unchanged else 1


def _little_memory(writer: Writer, place: Path) -> Iterator[tuple[str, int | None]]:
    for room in MEMORY:
        out = place / "memory"
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        writer.prepare(out)

        def work(room: int = room, out: Path = out) -> None:
            used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
            resource.setrlimit(resource.RLIMIT_AS, (used + room, used + room))
            _ends_well(lambda: writer.write(out))()

        yield f"{room >> 20} MiB", Child(work, place / "log").wait()


def _two_writers(writer: Writer, place: Path) -> Iterator[tuple[str, int | None]]:
    """Two calls at once; afterwards the result is whole."""
    out = place / "two"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    writer.prepare(out)
    children = [Child(_ends_well(lambda: writer.write(out)), log) for log in (place / "log", place / "other")]
    for child in children:
        yield "two at once", child.wait()
    yield "two at once: the result", Child(lambda: writer.check(out), place / "log").wait()
