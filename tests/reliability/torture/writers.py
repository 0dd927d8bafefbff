"""Every verb that writes, killed before each of its file operations and with each of them failing.

Afterwards the place holds the old content or the whole new one, and the same call works.
"""

from __future__ import annotations

import contextlib
import errno
import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import faults

from chainrule import export, load, mix, tune
from chainrule.errors import ChainruleError
from chainrule.experiments.distill import distill
from chainrule.interop.formats import import_run
from torture.outcomes import Clock, Tally
from torture.processes import Child, last_line
from torture.toys import TRAININGS, counting, write_data

ERRORS = (errno.ENOSPC, errno.EROFS, errno.EIO)


@dataclass
class Writer:
    """A call that writes into an empty folder, or changes what `prepare` put there."""

    name: str
    write: Callable[[Path], object]
    check: Callable[[Path], object]  # reads the result, which must be whole
    prepare: Callable[[Path], object] = lambda folder: None


def writers(data: Path) -> list[Writer]:
    """All writers; the runs they read are made in `data`."""
    data.mkdir(parents=True)
    write_data(data)
    text, pairs = data / "text.txt", data / "pairs.tsv"
    settings = {"model": {"across_lines": False}}
    counting("ngram", tokenizer="word", order=2, settings=settings)(data, data / "ngram")
    for name in ("lm lstm", "word2vec", "translator", "masked bert"):
        TRAININGS[name](data, data / name)
    export(data / "ngram", data / "model.arpa")
    load(data / "ngram").compress(text, data / "text.cr")
    mix([data / "ngram", data / "ngram"], valid=text, out=data / "mixture")

    def same_text(out: Path) -> None:
        assert (out / "text").read_bytes() == text.read_bytes()

    def loads(name: str) -> Callable[[Path], object]:
        return lambda out: load(out / name).folder.check()

    def exists(name: str) -> Callable[[Path], object]:
        return lambda out: (out / name).stat()

    return [
        Writer("train lstm", lambda out: TRAININGS["lm lstm"](data, out / "run"), loads("run")),
        Writer("train ngram", lambda out: TRAININGS["ngram"](data, out / "run"), loads("run")),
        Writer("mix", lambda out: mix([data / "ngram", data / "ngram"], valid=text, out=out / "mix"), loads("mix")),
        Writer("import arpa", lambda out: import_run(data / "model.arpa", out / "run"), loads("run")),
        Writer("export arpa", lambda out: export(data / "ngram", out / "x.arpa"), exists("x.arpa")),
        Writer("export word2vec", lambda out: export(data / "word2vec", out / "x.txt", to="word2vec"), exists("x.txt")),
        Writer("export hf", lambda out: export(data / "masked bert", out / "hf", to="hf"), exists("hf/config.json")),
        Writer("compress", lambda out: load(data / "ngram").compress(text, out / "x.cr"), exists("x.cr")),
        Writer("decompress", lambda out: load(data / "ngram").decompress(data / "text.cr", out / "text"), same_text),
        Writer("distill", lambda out: distill(load(data / "translator"), [pairs], out / "x.tsv"), exists("x.tsv")),
        Writer(
            "tune",
            lambda out: tune(out / "run", valid=text),
            loads("run"),
            lambda out: shutil.copytree(data / "mixture", out / "run"),
        ),
    ]


def campaign(found: list[Writer], place: Path, clock: Clock, cases: int | None) -> list[Tally]:
    """Disturb every writer at every file operation, or at `cases` of them spread evenly."""
    tallies = []
    for number, writer in enumerate(found):
        tallies.append(_disturb(writer, place / writer.name.replace(" ", "_"), clock.share(len(found) - number), cases))
    return tallies


def _disturb(writer: Writer, place: Path, share: Clock, cases: int | None) -> Tally:
    tally, whole = Tally(writer.name), place / "whole"
    place.mkdir(parents=True)
    total = len(_operations(writer, whole, place))
    step = 1 if cases is None else max(total // cases, 1)
    for number in range(1, total + 1, step):
        if not share:
            tally.add("not reached", count=total + 1 - number)
            break
        _kill(writer, place, number, tally)
        _fail(writer, place, number, tally)
    return tally


def _operations(writer: Writer, out: Path, place: Path) -> list[str]:
    """The file operations of an undisturbed call, made twice: the first fills caches."""
    counted = place / "operations"
    for _ in range(2):
        _fresh(writer, out)

        def work() -> None:
            counted.write_text("\n".join(faults.count(lambda: writer.write(out), out)))

        status = Child(work, place / "log").wait()
        assert status == 0, (place / "log").read_text()
    writer.check(out)
    return counted.read_text().split("\n")


def _fresh(writer: Writer, out: Path) -> None:
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    writer.prepare(out)


def _kill(writer: Writer, place: Path, number: int, tally: Tally) -> None:
    out, log = place / "killed", place / "log"
    _fresh(writer, out)
    status = Child(lambda: faults.die_at(number, lambda: writer.write(out), out), log).wait()
    if status not in (0, signal.SIGKILL):
        return tally.add("bug", f"killed at operation {number}: {last_line(log)}")
    return _again(writer, out, log, tally, "killed", f"killed at operation {number}")


def _fail(writer: Writer, place: Path, number: int, tally: Tally) -> None:
    """Each operation from this one on fails; the call must end with a message."""
    out, log = place / "failed", place / "log"
    _fresh(writer, out)

    def work() -> None:
        # Anything else ends the child with status 1.
        with contextlib.suppress(ChainruleError), faults.failing_at(number, out, ERRORS[number % len(ERRORS)]):
            writer.write(out)

    status = Child(work, log).wait()
    repeat = f"{errno.errorcode[ERRORS[number % len(ERRORS)]]} from operation {number}"
    if status != 0:
        return tally.add("bug", f"{repeat}: {last_line(log)}")
    return _again(writer, out, log, tally, "failed", repeat)


def _again(writer: Writer, out: Path, log: Path, tally: Tally, outcome: str, repeat: str) -> None:
    """The same call works, or finds the result finished."""

    def work() -> None:
        try:
            writer.write(out)
        except ChainruleError:
            writer.check(out)  # it refuses to replace a finished result
        writer.check(out)

    status = Child(work, log).wait()
    tally.add(outcome) if status == 0 else tally.add("lost", f"{repeat}: {last_line(log)}")
