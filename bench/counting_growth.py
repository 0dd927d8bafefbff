"""Counting n-grams in shards as the text grows: tokens/s of `count`, and of `count` and `merge`, and the memory.

A larger text is made of perturbed copies of TEXT: in each copy --changed of the words are replaced by words from other
places, so that n-grams become rare and new as in a text that grows. Each copy is one shard: it is written, counted and
deleted, so the disk holds one shard, the counts and the model. Every command is a process of its own, with its start.
TEXT itself is counted again after every --again shards, so that the processor seconds of both are those of one load.

    python bench/counting_growth.py debdocs.txt --copies 1 8 75 --memory 1G

With --folder the finished commands are noted there: the same command continues after --minutes, or after it was
stopped. With --groups the counts of so many shards are first merged by `merge --counts`.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

import numpy as np
from harness import Figure, arguments, begin, report
from ngram_estimation import QUICK_BYTES, beginning, processor_seconds, run_watched

from chainrule.base.arrays import Array

PROGRAM = str(Path(sys.executable).with_name("chainrule"))
SPACE, NEW_LINE = 32, 10
BLOCK = 1 << 24


@dataclass(frozen=True)
class Usage:
    """What a command took."""

    seconds: float  # of the clock
    processor: float
    private: int  # bytes, the peak
    bytes: int = 0  # of the text that it counted
    words: int = 0


@dataclass
class Growth:
    """What counting a text of some copies took."""

    counting: list[Usage]
    merging: list[Usage]
    again: list[Usage]  # of counting TEXT itself, from time to time

    @property
    def bytes(self) -> int:
        return sum(one.bytes for one in self.counting)

    @property
    def words(self) -> int:
        return sum(one.words for one in self.counting)

    def total(self, what: str, merging: bool) -> float:
        """The sum over the commands: of `count`, or of all."""
        used = [*self.counting, *self.merging] if merging else self.counting
        return float(sum(getattr(one, what) for one in used))


def perturb(text: Path, place: Path, changed: float, seed: int) -> Path:
    """Write a copy of a text in which some words are those of other places."""
    letters = np.fromfile(text, np.uint8)
    if not seed:  # the first copy is the text itself
        letters.tofile(place)
        return place
    rng = np.random.default_rng(seed)
    spaces = np.flatnonzero(letters == SPACE)
    begins, ends = spaces[:-1] + 1, spaces[1:]
    targets = np.unique(rng.integers(len(begins), size=int(changed * len(begins))))
    sources = rng.integers(len(begins), size=len(targets))
    new_lines = np.flatnonzero(letters == NEW_LINE)

    def is_whole(words: Array) -> Array:
        """Whether no line ends inside; otherwise a change would join or divide lines."""
        inside: Array = np.searchsorted(new_lines, begins[words]) == np.searchsorted(new_lines, ends[words])
        return inside

    kept = is_whole(targets) & is_whole(sources)
    targets, sources = targets[kept], sources[kept]
    with place.open("wb") as file:
        for piece in _replaced(memoryview(letters), begins, ends, targets, sources):
            file.write(piece)
    return place


def _replaced(letters: memoryview, begins: Array, ends: Array, targets: Array, sources: Array) -> Iterator[bytes]:
    """The text with other words at the targets, in pieces."""
    pieces, at, size = list[memoryview](), 0, 0
    of = (begins[targets], ends[targets], begins[sources], ends[sources])
    for start, end, low, high in zip(*(places.tolist() for places in of), strict=True):
        pieces += letters[at:start], letters[low:high]
        size, at = size + start - at + high - low, end
        if size > BLOCK:
            yield b"".join(pieces)
            pieces, size = [], 0
    yield b"".join([*pieces, letters[at:]])


def count_words(text: Path) -> int:
    """The number of words between white space."""
    letters = np.fromfile(text, np.uint8)
    inside = (letters != SPACE) & ((letters < 9) | (letters > 13))
    return int(inside[0]) + int(np.count_nonzero(inside[1:] & ~inside[:-1]))


class OutOfTimeError(Exception):
    """The minutes of this call are used up."""


@dataclass(frozen=True)
class Task:
    """What is counted, and how; commands that have finished are noted in the folder."""

    text: Path
    tokenizer: Path
    folder: Path
    changed: float
    memory: str
    again: int  # count TEXT itself after so many shards
    groups: int  # merge the counts of so many shards first; 0: all at once
    deadline: float = float("inf")

    def run(self, command: list[str], out: Path, words: int = 0, size: int = 0) -> Usage:
        """Run a verb, or read what it took."""
        note = self.folder / f"{out.name}.json"
        if note.exists():
            return Usage(**json.loads(note.read_text()))
        if time.monotonic() > self.deadline:
            raise OutOfTimeError
        before = processor_seconds()
        seconds, (_, private) = run_watched([PROGRAM, *command, "--out", str(out)], ENVIRONMENT)
        usage = Usage(seconds, processor_seconds() - before, private, size, words)
        print(f"{out.name}: {usage}", file=sys.stderr, flush=True)
        note.write_text(json.dumps(usage.__dict__))
        return usage

    def count(self, text: Path, out: Path) -> Usage:
        """Count a text."""
        known = ["--tokenizer", str(self.tokenizer), "--memory", self.memory]
        return self.run(["count", str(text), *known], out, count_words(text), text.stat().st_size)

    def count_copy(self, number: int, out: Path) -> Usage:
        """Make a copy and count it."""
        if (self.folder / f"{out.name}.json").exists():
            return self.run([], out)
        shard = perturb(self.text, self.folder / "shard.txt", self.changed, number)
        usage = self.count(shard, out)
        shard.unlink()
        return usage


def measure(task: Task, copies: int) -> Growth:
    """Count and merge a text of some copies."""
    found, folder = Growth([], [], []), task.folder
    name = f"{task.text.name}-{copies}"
    parts = [folder / f"{name}-{number:04}" for number in range(copies)]
    for number, part in enumerate(parts):
        found.counting.append(task.count_copy(number, part))
        if task.again and number % task.again == task.again - 1:
            found.again.append(task.count(task.text, folder / f"{part.name}-again"))
            shutil.rmtree(folder / f"{part.name}-again", ignore_errors=True)
    if task.groups:
        groups = [parts[first : first + task.groups] for first in range(0, copies, task.groups)]
        parts = [folder / f"{name}-group-{number:04}" for number in range(len(groups))]
        for group, part in zip(groups, parts, strict=True):
            found.merging.append(task.run(["merge", *map(str, group), "--counts"], part))
            for one in group:
                shutil.rmtree(one, ignore_errors=True)
    merge = ["merge", *map(str, parts), "--memory", task.memory]
    found.merging.append(task.run(merge, folder / f"{name}-model"))
    for place in (*parts, folder / f"{name}-model"):
        shutil.rmtree(place, ignore_errors=True)
    return found


def figures(found: list[Growth], base: Growth) -> list[Figure]:
    """Tokens per second against those of one copy, by the clock and by the processor, and peaks of private memory."""
    lines = []
    for one in found:
        name = f"{one.bytes / 1e9:.3f} GB"
        for what, way in (("seconds", ""), ("processor", ", processor")):
            for merging, verbs in ((False, "count"), (True, "count and merge")):
                seconds, usual = one.total(what, merging), base.total(what, merging)
                if one.again and not merging:
                    usual = mean(getattr(usage, what) for usage in one.again)
                ratio = one.words * usual / (base.words * seconds)
                figure = Figure(f"{name}, {verbs}{way}", one.words / seconds, "tokens/s", ratio=ratio, at_least=0.6)
                lines.append(figure)
        for way, usages in (("count", one.counting), ("merge", one.merging)):
            private = max(usage.private for usage in usages)
            lines.append(Figure(f"{name}, {way}, private", private / 2**20, "MiB"))
    return lines


def measure_all(task: Task, copies: list[int]) -> list[Growth]:
    """Make the tokeniser, and measure a text of 1 MB and copies of TEXT."""
    task.run(["count", str(task.text), "--vocabulary", "word"], task.folder / "words")
    task.run(["merge", str(task.folder / "words"), "--vocabulary"], task.tokenizer)
    small = beginning(task.text, task.folder / "small", size=1_000_000)
    fields = {**task.__dict__, "text": small, "groups": 0}
    return [measure(Task(**fields), 1), *(measure(task, number) for number in copies)]


ENVIRONMENT: dict[str, str] = {}


def main() -> None:
    parser = arguments(__doc__, repeats=1)
    parser.add_argument("text", type=Path, help="text of words between white space, one sentence per line")
    parser.add_argument("--copies", type=int, nargs="+", default=[1, 8], help="sizes of the text in copies of TEXT")
    parser.add_argument("--changed", type=float, default=0.03, help="share of changed words (default: %(default)s)")
    parser.add_argument("--memory", default="1G", help="memory bound of each process (default: %(default)s)")
    parser.add_argument("--again", type=int, default=10, help="count TEXT itself after N shards (default: %(default)s)")
    parser.add_argument("--groups", type=int, default=0, help="merge the counts of N shards first (default: all)")
    parser.add_argument("--minutes", type=float, help="start no command after this time; needs --folder")
    parser.add_argument("--folder", type=Path, help="folder for texts and counts (default: a temporary one)")
    options = begin(parser)
    ENVIRONMENT.update(os.environ, OMP_NUM_THREADS=str(options.threads))
    deadline = time.monotonic() + 60 * options.minutes if options.minutes else float("inf")
    with tempfile.TemporaryDirectory() as name:
        folder = options.folder or Path(name)
        folder.mkdir(exist_ok=True)
        text = beginning(options.text, folder / "text", size=QUICK_BYTES) if options.quick else options.text
        known = (options.changed, options.memory, options.again, options.groups, deadline)
        try:
            found = measure_all(
                Task(text, folder / "tokenizer", folder, *known), [1, 2] if options.quick else options.copies
            )
        except OutOfTimeError:
            raise SystemExit("stopped; the same command continues") from None
    report(figures(found, found[1]), options, memory=options.memory, changed=options.changed)


if __name__ == "__main__":
    main()
