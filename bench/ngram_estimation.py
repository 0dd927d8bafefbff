"""Speed and memory of estimating n-gram models, from a text file to a saved model, with and without a memory bound.

Every measurement is a whole process of `chainrule train` with an empty token cache: imports, vocabulary, tokenising,
counting, smoothing, saving, and the evaluation of a short validation text. The first round is not counted: it fills
numba's cache of compiled kernels and the system's file cache. Tokens are words between white space, without line ends,
as KenLM's lmplz counts them; the vocabulary contains every word, as lmplz's does.

lmplz is not a Python module, so it cannot take turns here. Give its speed on the same machine and text with
--peer-tokens-per-second, one number per order; the ratio then refers to that.

Two peaks of memory are reported: resident memory (VmHWM), which includes cached pages of mapped files, and private
memory (RssAnon). Both are sampled every few milliseconds (Linux).
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
"""Lines of the validation text: few, so that estimation dominates the time."""
QUICK_BYTES = 500_000
SAMPLING_SECONDS = 0.02
STATUS, SECONDS = ("VmHWM", "RssAnon"), ("seconds", "counting", "processor")


@dataclass(frozen=True)
class Usage:
    """Time and memory of one process."""

    seconds: float  # wall-clock time of the process
    counting: float  # of these, from tokens to the saved model
    processor: float  # CPU seconds; fewer than expected mean that the process waited
    resident: int  # bytes
    private: int


@dataclass
class Estimation:
    """One configuration of the estimation; every call runs it once."""

    text: Path
    valid: Path
    order: int
    threads: int
    memory: str | None = None
    usages: list[Usage] = field(default_factory=list)
    ngrams: list[int] = field(default_factory=list)  # per order

    @property
    def name(self) -> str:
        return f"order {self.order}" + (f", --memory {self.memory}" if self.memory else "")

    def __call__(self) -> None:
        with tempfile.TemporaryDirectory() as place:
            environment = {**os.environ, "CHAINRULE_CACHE": f"{place}/cache", "OMP_NUM_THREADS": str(self.threads)}
            before = processor_seconds()
            seconds, peaks = run_watched(self._command(f"{place}/run"), environment)
            processor = processor_seconds() - before
            result = json.loads(Path(place, "run", "result.json").read_text(encoding="utf-8"))
        self.usages.append(Usage(seconds, result["seconds"], processor, *peaks))
        self.ngrams = result["ngrams"]

    def _command(self, out: str) -> list[str]:
        program = str(Path(sys.executable).with_name("chainrule"))
        bound = ["--memory", self.memory] if self.memory else []
        shape = ["--model", "ngram", "--order", str(self.order), "--tokenizer", "word"]
        vocabulary = ["--set", "tokenizer.min_count=1"]
        return [program, "train", str(self.text), "--valid", str(self.valid), *shape, *vocabulary, *bound, "--out", out]

    def figures(self, words: int, peer: float | None) -> list[Figure]:
        """Return median speed and peak memory over the counted rounds; the target is for unbounded memory."""
        counted = self.usages[1:]
        seconds, counting, processor = (median(getattr(one, name) for one in counted) for name in SECONDS)
        speed = words / seconds
        return [
            Figure(
                self.name, speed, "tokens/s", peer, speed / peer if peer else None,
                at_least=2.0 if peer and not self.memory else None,
                note=f"{seconds:.1f} s, of which {counting:.1f} s counting and saving; CPU {processor:.1f} s",
            ),
            Figure(f"{self.name}, resident", max(one.resident for one in counted) / 2**20, "MiB"),
            Figure(f"{self.name}, private", max(one.private for one in counted) / 2**20, "MiB"),
        ]  # fmt: skip


def run_watched(command: list[str], environment: dict[str, str]) -> tuple[float, list[int]]:
    """Run a command -> seconds and peak memory in bytes, resident and private."""
    peaks = [0 for _ in STATUS]
    with tempfile.TemporaryFile() as messages:
        began = time.perf_counter()
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=messages)
        while not _ended(process):
            # The process resets VmHWM before counting, so the last value is not the highest.
            peaks = list(map(max, peaks, _memory(process.pid)))
        seconds = time.perf_counter() - began
        if process.returncode:
            messages.seek(0)
            raise SystemExit(
                f"{' '.join(command)}\nfailed with exit status {process.returncode}:\n{messages.read().decode()}"
            )
    return seconds, peaks


def _ended(process: subprocess.Popen[bytes]) -> bool:
    """Wait briefly -> whether the process has ended."""
    try:
        process.wait(SAMPLING_SECONDS)
    except subprocess.TimeoutExpired:
        return False
    return True


def _memory(pid: int) -> list[int]:
    """Return the fields of STATUS in bytes; 0 if the process is just ending."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    fields = {name: rest.split() for name, _, rest in (line.partition(":") for line in lines)}
    return [int(fields[name][0]) * 1024 if name in fields else 0 for name in STATUS]


def processor_seconds() -> float:
    """Return the CPU seconds of all child processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def count_words(text: Path) -> int:
    """Count the words between white space."""
    with text.open("rb") as file:
        return sum(len(line.split()) for line in file)


def beginning(text: Path, place: Path, *, lines: int | None = None, size: int = -1) -> Path:
    """Write the start of a text to another file: the first `lines` lines, or those of its first `size` bytes."""
    with text.open("rb") as source:
        place.write_bytes(b"".join(islice(source, lines) if lines else source.readlines(size)))
    return place


def main() -> None:
    parser = arguments(__doc__, repeats=3)
    parser.add_argument("text", type=Path, help="text of words between white space, one sentence per line")
    parser.add_argument("--orders", type=int, nargs="+", default=[5, 3], help="orders of the models (default: 5 3)")
    parser.add_argument("--memory", default="1G", help="memory bound (default: %(default)s)")
    parser.add_argument("--peer-tokens-per-second", type=float, nargs="+", metavar="SPEED", help="one per order")
    options = begin(parser)
    peers = options.peer_tokens_per_second or [None] * len(options.orders)
    if len(peers) != len(options.orders):
        parser.error(
            f"--peer-tokens-per-second has {len(peers)} numbers for {len(options.orders)} orders; give one per order"
        )
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
