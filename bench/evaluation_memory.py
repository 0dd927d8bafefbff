"""Peak memory of evaluating a short text and one ten times as long: it must not grow with the text.

Small byte models are measured on random text, including tokenising, each in its own process. Two peaks are reported:
resident memory (VmHWM), which includes cached pages of the memory-mapped token file, and private memory (RssAnon),
which is bounded.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from harness import Figure, arguments, begin, report

from chainrule.base.devices import PeakMemory
from chainrule.checkpoint.build import build_model
from chainrule.config import RunConfig, parse
from chainrule.data.store import open_store
from chainrule.evaluation.text import evaluate
from chainrule.text.readers import open_texts
from chainrule.text.tokenizers import train_tokenizer
from chainrule.types import Vocabulary

MODELS: dict[str, dict[str, Any]] = {
    "lstm": {"name": "lstm", "embedding": 16, "hidden": 32, "layers": 1},
    "transformer": {"name": "transformer", "embedding": 16, "layers": 1, "heads": 1, "context": 64},
}
MEGABYTE = 1_000_000
MOST_GROWTH = 1.1
"""Largest allowed ratio for a text ten times as long; the order of allocations varies slightly between runs."""


def write_text(path: Path, megabytes: float) -> None:
    """Write random letters in lines of about 60."""
    rng = np.random.default_rng(1)
    letters = np.frombuffer(b"etaoinshrdlucmfwypvbgkjqxz     \n", np.uint8)
    with path.open("wb") as file:
        for _ in range(round(megabytes * 10)):
            file.write(letters[rng.integers(len(letters), size=MEGABYTE // 10)].tobytes())


class PrivatePeak:
    """Samples the private memory of the process (RssAnon) every few milliseconds."""

    def __init__(self) -> None:
        self.bytes, self._stop = 0, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._stop.wait(0.02):
            self.bytes = max(self.bytes, _status("RssAnon"))

    def stop(self) -> int:
        self._stop.set()
        self._thread.join()
        return self.bytes


def _status(field: str) -> int:
    """Return a memory field of /proc/self/status in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field + ":"))


def child(name: str, path: Path) -> None:
    """Tokenise and evaluate a text, and print memory and time as JSON."""
    tokenizer = train_tokenizer("byte", open_texts([path]), vocab_size=None, min_count=1)
    config = parse(RunConfig, {"model": MODELS[name]})
    model: Any = build_model(config, Vocabulary(256, tokenizer.eos, np.ones(256, np.int64))).eval()
    resident, private = PeakMemory(), PrivatePeak()
    store = open_store(open_texts([path]), tokenizer)
    began = time.perf_counter()
    evaluation = evaluate(model, store, tokenizer)
    seconds = time.perf_counter() - began
    print(
        json.dumps(
            {"resident": resident.bytes, "private": private.stop(), "tokens": evaluation.tokens, "seconds": seconds}
        )
    )


def measure(name: str, path: Path, cache: Path, threads: int) -> dict[str, Any]:
    """Run `child` in a new process with an empty token cache."""
    command = [sys.executable, __file__, "--threads", str(threads), "--child", name, str(path)]
    environment = {**os.environ, "CHAINRULE_CACHE": str(cache)}
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    measured: dict[str, Any] = json.loads(done.stdout)
    return measured


def figures_of(name: str, options: argparse.Namespace, place: Path) -> list[Figure]:
    """Measure one model on both texts."""
    taken = [measure(name, path, place / f"cache-{name}", options.threads) for path in sorted(place.glob("*.txt"))]
    short, long = sorted(taken, key=lambda one: int(one["tokens"]))
    sizes = f"{short['tokens'] / MEGABYTE:g} and {long['tokens'] / MEGABYTE:g} MB of text"
    growth = long["private"] / short["private"]
    return [
        Figure(
            f"{name}, private memory", long["private"] / 2**20, "MiB", short["private"] / 2**20, growth,
            at_most=MOST_GROWTH, note=sizes,
        ),
        Figure(f"{name}, resident memory", long["resident"] / 2**20, "MiB", short["resident"] / 2**20, note=sizes),
        Figure(f"{name}, speed", long["tokens"] / long["seconds"], "tokens/s", short["tokens"] / short["seconds"]),
    ]  # fmt: skip


def main() -> None:
    parser = arguments(__doc__, repeats=1)
    parser.add_argument("--megabytes", type=float, nargs=2, default=(5, 50), help="sizes of the texts (default: 5 50)")
    parser.add_argument("--child", nargs=2, metavar=("MODEL", "TEXT"), help=argparse.SUPPRESS)
    options = begin(parser)
    if options.child:
        child(options.child[0], Path(options.child[1]))
        return
    # Texts above 1.05 MB are read in the largest number of tracks; shorter ones have fewer and so need less memory.
    sizes = (1.5, 6) if options.quick else options.megabytes
    with tempfile.TemporaryDirectory() as place:
        for number, size in enumerate(sizes):
            write_text(Path(place) / f"{number}.txt", size)
        figures = [figure for name in MODELS for figure in figures_of(name, options, Path(place))]
    report(figures, options, peer="the shorter text")


if __name__ == "__main__":
    main()
