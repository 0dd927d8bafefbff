"""Counting in shards and merging, against `train` in one process with the same tokeniser: seconds, and equal bytes.

Shards are counted by one process per core at a time, each with one thread, as a scheduler would. Every command is a
process of its own, with its start. The script stops if the models differ. On a busy machine the clock says little:
the seconds of the processor, over all processes, are reported too.

    python bench/counting_shards.py debdocs.txt --shards 8 --repeats 3
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

from harness import Figure, alternate, arguments, begin, report, speed_up
from ngram_estimation import QUICK_BYTES, VALID_LINES, beginning, processor_seconds

PROGRAM = str(Path(sys.executable).with_name("chainrule"))


class Contest:
    """A text, its shards, and the two ways to a model."""

    def __init__(self, text: Path, folder: Path, shards: int, threads: int) -> None:
        self.text, self.folder, self.threads = text, folder, threads
        (folder / "shards").mkdir()
        subprocess.run(["split", "-n", f"l/{shards}", "-d", "-a", "4", text, f"{folder / 'shards'}/"], check=True)
        self.valid = beginning(text, folder / "valid", lines=VALID_LINES)
        self.run(["count", str(text), "--vocabulary", "word", "--out", str(folder / "words")])
        self.run(["merge", str(folder / "words"), "--vocabulary", "--out", str(folder / "tokenizer")])

    def run(self, command: list[str], threads: int | None = None) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads or self.threads)}
        environment["CHAINRULE_CACHE"] = str(self.folder / "cache")
        subprocess.run([PROGRAM, *command], env=environment, check=True, capture_output=True)

    def train(self) -> None:
        for name in ("cache", "whole"):
            shutil.rmtree(self.folder / name, ignore_errors=True)
        shape = ["--model", "ngram", "--tokenizer", str(self.folder / "tokenizer"), "--out", str(self.folder / "whole")]
        self.run(["train", str(self.text), "--valid", str(self.valid), *shape])

    def count_and_merge(self) -> None:
        for name in ("counts", "merged"):
            shutil.rmtree(self.folder / name, ignore_errors=True)
        with ThreadPoolExecutor(self.threads) as pool:
            list(pool.map(self._count, sorted((self.folder / "shards").iterdir())))
        parts = [str(part) for part in sorted((self.folder / "counts").iterdir())]
        self.run(["merge", *parts, "--out", str(self.folder / "merged")])
        ours, theirs = ((self.folder / name / "model.safetensors").read_bytes() for name in ("merged", "whole"))
        if ours != theirs:
            raise SystemExit("the merged model differs from that of train")

    def _count(self, shard: Path) -> None:
        out = self.folder / "counts" / shard.name
        self.run(["count", str(shard), "--tokenizer", str(self.folder / "tokenizer"), "--out", str(out)], threads=1)


def main() -> None:
    parser = arguments(__doc__, repeats=3)
    parser.add_argument("text", type=Path, help="text of words between white space, one sentence per line")
    parser.add_argument("--shards", type=int, default=8, help="number of shards (default: %(default)s)")
    options = begin(parser)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text = beginning(options.text, folder / "text", size=QUICK_BYTES) if options.quick else options.text
        contest = Contest(text, folder, options.shards, options.threads)
        used: dict[str, list[float]] = {"train": [], "shards": []}

        def timed(name: str, run: Callable[[], None]) -> Callable[[], None]:
            def call() -> None:
                before = processor_seconds()
                run()
                used[name].append(processor_seconds() - before)
                print(f"{name}: processor {used[name][-1]:.1f} s", file=sys.stderr, flush=True)

            return call

        ways = {"train": contest.train, "shards": contest.count_and_merge}
        times = alternate({name: timed(name, way) for name, way in ways.items()}, options.repeats)
    ratio = 1 / speed_up(times, "shards", "train")
    ours, theirs = (sorted(times[name])[len(times[name]) // 2] for name in ("shards", "train"))
    figure = Figure("count and merge, whole processes", ours, "s", theirs, ratio, at_most=1.3, note="equal bytes")
    mine, others = (median(used[name][1:]) for name in ("shards", "train"))
    processor = Figure("count and merge, processor", mine, "s", others, mine / others)
    report([figure, processor], options, shards=options.shards)


if __name__ == "__main__":
    main()
