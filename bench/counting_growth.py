"""Counting n-grams in shards as the text grows: tokens/s of `count`, and of `count` and `merge`, and the memory.

A larger text is made of perturbed copies of TEXT: in each copy --changed of the words are replaced by words from other
places, so that n-grams become rare and new as in a text that grows. Each copy is one shard: it is written, counted and
deleted, so the disk holds one shard, the counts and the model. Every command is a process of its own, with its start.

    python bench/counting_growth.py debdocs.txt --copies 1 8 75 --memory 1G
"""

from __future__ import annotations

import os
import random
import shutil
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from harness import Figure, arguments, begin, report
from ngram_estimation import QUICK_BYTES, beginning, count_words, processor_seconds, run_watched

PROGRAM = str(Path(sys.executable).with_name("chainrule"))


@dataclass
class Growth:
    """What counting a text of some copies took."""

    copies: int
    bytes: int = 0
    words: int = 0
    counting: float = 0.0  # seconds of the clock
    merging: float = 0.0
    processor: list[float] = field(default_factory=lambda: [0.0, 0.0])  # seconds of the processor: counting, merging
    private: list[int] = field(default_factory=lambda: [0, 0])  # peaks of counting and merging


def perturb(text: Path, place: Path, changed: float, seed: int) -> Path:
    """Write a copy of a text in which some words are those of other places."""
    words, chance = text.read_bytes().split(b" "), random.Random(seed)
    if seed:  # the first copy is the text itself
        size = len(words)
        for _ in range(int(changed * size)):
            other = words[chance.randrange(size)]
            if b"\n" not in other:
                words[chance.randrange(size)] = other
    place.write_bytes(b" ".join(words))
    return place


def measure(text: Path, tokenizer: Path, folder: Path, copies: int, changed: float, memory: str) -> Growth:
    """Count and merge a text of some copies."""
    found, counts = Growth(copies), folder / "counts"
    for number in range(copies):
        shard = perturb(text, folder / "shard.txt", changed, number)
        found.bytes += shard.stat().st_size
        found.words += count_words(shard)
        out = counts / f"{number:04}"
        command = ["count", str(shard), "--tokenizer", str(tokenizer), "--memory", memory, "--out", str(out)]
        before = processor_seconds()
        seconds, (_, private) = run_watched([PROGRAM, *command], ENVIRONMENT)
        found.counting += seconds
        found.processor[0] += processor_seconds() - before
        found.private[0] = max(found.private[0], private)
        shard.unlink()
    parts = [str(part) for part in sorted(counts.iterdir())]
    command = ["merge", *parts, "--memory", memory, "--out", str(folder / "run")]
    before = processor_seconds()
    found.merging, (_, found.private[1]) = run_watched([PROGRAM, *command], ENVIRONMENT)
    found.processor[1] = processor_seconds() - before
    shutil.rmtree(counts)
    shutil.rmtree(folder / "run", ignore_errors=True)
    return found


def figures(found: list[Growth], base: Growth) -> list[Figure]:
    """Tokens per second against those of one copy, by the clock and by the processor, and peaks of private memory."""
    lines = []
    for one in found:
        name = f"{one.bytes / 1e9:.3f} GB"
        ways = {
            "count": (one.counting, base.counting),
            "count, processor": (one.processor[0], base.processor[0]),
            "count and merge": (one.counting + one.merging, base.counting + base.merging),
            "both, processor": (sum(one.processor), sum(base.processor)),
        }
        for way, (seconds, usual) in ways.items():
            ratio = one.words * usual / (base.words * seconds)
            lines.append(Figure(f"{name}, {way}", one.words / seconds, "tokens/s", ratio=ratio, at_least=0.6))
        for way, private in zip(("count", "merge"), one.private, strict=True):
            lines.append(Figure(f"{name}, {way}, private", private / 2**20, "MiB"))
    return lines


ENVIRONMENT: dict[str, str] = {}


def main() -> None:
    parser = arguments(__doc__, repeats=1)
    parser.add_argument("text", type=Path, help="text of words between white space, one sentence per line")
    parser.add_argument("--copies", type=int, nargs="+", default=[1, 8], help="sizes of the text in copies of TEXT")
    parser.add_argument("--changed", type=float, default=0.03, help="share of changed words (default: %(default)s)")
    parser.add_argument("--memory", default="1G", help="memory bound of each process (default: %(default)s)")
    parser.add_argument("--folder", type=Path, help="folder for texts and counts (default: a temporary one)")
    options = begin(parser)
    ENVIRONMENT.update(os.environ, OMP_NUM_THREADS=str(options.threads))
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        text = beginning(options.text, folder / "text", size=QUICK_BYTES) if options.quick else options.text
        copies = [1, 2] if options.quick else options.copies
        run_watched([PROGRAM, "count", str(text), "--vocabulary", "word", "--out", str(folder / "words")], ENVIRONMENT)
        tokenizer = folder / "tokenizer"
        run_watched([PROGRAM, "merge", str(folder / "words"), "--vocabulary", "--out", str(tokenizer)], ENVIRONMENT)
        small = beginning(text, folder / "small", size=1_000_000)
        found = [measure(small, tokenizer, folder, 1, options.changed, options.memory)]
        for number in copies:
            found.append(measure(text, tokenizer, folder, number, options.changed, options.memory))
            print(found[-1], file=sys.stderr, flush=True)
    report(figures(found, found[1]), options, memory=options.memory, changed=options.changed)


if __name__ == "__main__":
    main()
