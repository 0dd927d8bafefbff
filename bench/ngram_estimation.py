"""Estimating n-gram models by the command line: from a text file to a saved model, in memory and with it bounded.

Every measurement is a whole process of `chainrule train` with an empty cache of tokens, from its start to its end:
imports, vocabulary, tokenising, counting, smoothing, saving, and the evaluation of a short validation text. The first
round is not counted: it leaves the compiled kernels in numba's cache and the text in the system's. Tokens are words
between white space, line ends not among them, which is how KenLM's lmplz counts; the vocabulary has every word, as
lmplz has it.

lmplz is no Python module, so it cannot take its turn here. What it reaches on the same machine and text can be given
with --peer-tokens-per-second, a number for each of --orders; the ratio is then to that.

Two peaks of memory are told: all that was resident (VmHWM), in which the system counts the pages of mapped files that
it happens to keep, and what the process holds for itself (RssAnon). Both are read every few milliseconds (Linux).
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from statistics import median

from harness import Figure, alternate, arguments, begin, report

VALID_LINES = 100
"""Lines that are evaluated in the end: so few that the estimation is what is measured."""
QUICK_BYTES = 500_000
SAMPLING_SECONDS = 0.02
STATUS, SECONDS = ("VmHWM", "RssAnon"), ("seconds", "counting", "processor")


@dataclass(frozen=True)
class Taken:
    """What one process took."""

    seconds: float  # from its start to its end
    counting: float  # of these: from tokens to the saved model
    processor: float  # seconds of processors' time, which tells whether it had to wait for them
    resident: int  # bytes
    private: int


@dataclass
class Estimation:
    """One way to estimate a model of a text; every call does it once more."""

    text: Path
    valid: Path
    order: int
    threads: int
    memory: str | None = None
    taken: list[Taken] = field(default_factory=list)
    ngrams: list[int] = field(default_factory=list)  # by order

    @property
    def name(self) -> str:
        return f"order {self.order}" + (f", --memory {self.memory}" if self.memory else "")

    def __call__(self) -> None:
        with tempfile.TemporaryDirectory() as place:
            environment = {**os.environ, "CHAINRULE_CACHE": f"{place}/cache", "OMP_NUM_THREADS": str(self.threads)}
            before = _processor_seconds()
            seconds, peaks = run_watched(self._command(f"{place}/run"), environment)
            processor = _processor_seconds() - before
            result = json.loads(Path(place, "run", "result.json").read_text(encoding="utf-8"))
        self.taken.append(Taken(seconds, result["seconds"], processor, *peaks))
        self.ngrams = result["ngrams"]

    def _command(self, out: str) -> list[str]:
        program = str(Path(sys.executable).with_name("chainrule"))
        bound = ["--memory", self.memory] if self.memory else []
        shape = ["--model", "ngram", "--order", str(self.order), "--tokenizer", "word"]
        vocabulary = ["--set", "tokenizer.min_count=1"]
        return [program, "train", str(self.text), "--valid", str(self.valid), *shape, *vocabulary, *bound, "--out", out]

    def figures(self, words: int, peer: float | None) -> list[Figure]:
        """The median speed and the highest peaks of the rounds that count; the bar is for memory without a bound."""
        counted = self.taken[1:]
        seconds, counting, processor = (median(getattr(t, name) for t in counted) for name in SECONDS)
        speed = words / seconds
        return [
            Figure(
                self.name, speed, "tokens/s", peer, speed / peer if peer else None,
                at_least=2.0 if peer and not self.memory else None,
                note=f"{seconds:.1f} s, counting and saving {counting:.1f} of them; processors {processor:.1f} s",
            ),
            Figure(f"{self.name}, resident", max(t.resident for t in counted) / 2**20, "MiB"),
            Figure(f"{self.name}, private", max(t.private for t in counted) / 2**20, "MiB"),
        ]  # fmt: skip


def run_watched(command: list[str], environment: dict[str, str]) -> tuple[float, list[int]]:
    """Run a command to its end -> seconds, and its peaks of memory in bytes, resident and private."""
    peaks = [0 for _ in STATUS]
    with tempfile.TemporaryFile() as messages:
        began = time.perf_counter()
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=messages)
        while not _ended(process):
            # The process begins a new VmHWM when it begins to count, so the last reading is not the highest.
            peaks = list(map(max, peaks, _memory(process.pid)))
        seconds = time.perf_counter() - began
        if process.returncode:
            messages.seek(0)
            raise SystemExit(f"{' '.join(command)}\nended with {process.returncode}:\n{messages.read().decode()}")
    return seconds, peaks


def _ended(process: subprocess.Popen[bytes]) -> bool:
    """Whether a process has ended, after waiting a little for it."""
    try:
        process.wait(SAMPLING_SECONDS)
    except subprocess.TimeoutExpired:
        return False
    return True


def _memory(pid: int) -> list[int]:
    """The fields of STATUS in bytes; one that is just ending has none left."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    fields = {name: rest.split() for name, _, rest in (line.partition(":") for line in lines)}
    return [int(fields[name][0]) * 1024 if name in fields else 0 for name in STATUS]


def _processor_seconds() -> float:
    """What all processes that were started and have ended took."""
    taken = resource.getrusage(resource.RUSAGE_CHILDREN)
    return taken.ru_utime + taken.ru_stime


def count_words(text: Path) -> int:
    """Words between white space."""
    with text.open("rb") as file:
        return sum(len(line.split()) for line in file)


def beginning(text: Path, place: Path, *, lines: int | None = None, size: int = -1) -> Path:
    """Write the first lines of a text to a file of their own: so many, or those of its first `size` bytes."""
    with text.open("rb") as source:
        place.write_bytes(b"".join(islice(source, lines) if lines else source.readlines(size)))
    return place


def main() -> None:
    parser = arguments(__doc__, repeats=3)
    parser.add_argument("text", type=Path, help="a text of words between white space, a sentence a line")
    parser.add_argument("--orders", type=int, nargs="+", default=[5, 3], help="(default: 5 3)")
    parser.add_argument("--memory", default="1G", help="the bound of those that have one (default: %(default)s)")
    parser.add_argument("--peer-tokens-per-second", type=float, nargs="+", metavar="SPEED", help="one for each order")
    options = begin(parser)
    peers = options.peer_tokens_per_second or [None] * len(options.orders)
    if len(peers) != len(options.orders):
        parser.error(f"--peer-tokens-per-second has {len(peers)} numbers, --orders {len(options.orders)}; give as many")
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        text = beginning(options.text, place / "text", size=QUICK_BYTES) if options.quick else options.text
        valid = beginning(text, place / "valid", lines=VALID_LINES)
        ways = [
            (Estimation(text, valid, order, options.threads, memory), peer)
            for order, peer in zip(options.orders, peers, strict=True)
            for memory in (None, options.memory)
        ]
        alternate({way.name: way for way, _ in ways}, options.repeats)
        words = count_words(text)
    figures = [figure for way, peer in ways for figure in way.figures(words, peer)]
    ngrams = {way.order: sum(way.ngrams) for way, _ in ways}
    report(figures, options, tokens=words, ngrams=" ".join(f"{order}:{count:,}" for order, count in ngrams.items()))


if __name__ == "__main__":
    main()
