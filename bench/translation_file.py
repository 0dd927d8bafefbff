"""Translation of a file: seconds to the first line, lines/s, and memory, which must not grow with the file.

A small Transformer with random weights (64 wide, 1 + 1 layers) translates 1,000 and 4,000 lines of about 12 words with
5 beams through the public API, each file in its own process. It never predicts eos, so all translations have 30 tokens.
The script stops if the order of the lines changes: some lines are also translated alone. Two peaks of memory are
reported, resident and private (see evaluation_memory.py).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from evaluation_memory import MOST_GROWTH, PrivatePeak
from harness import Figure, arguments, begin, report

import chainrule as cr
from chainrule.base.devices import PeakMemory
from chainrule.checkpoint.build import save_model

SEARCH: dict[str, Any] = {"num_beams": 5, "max_new_tokens": 30}
WORDS, MOST_SECONDS = 2000, 1.0
DEVIATIONS = {"embedding": 0.1, "narrow": 0.003}
OTHER_DEVIATION = 0.3
"""Standard deviations of the random weights, such that the output depends mostly on the source."""


def write_lines(path: Path, count: int, seed: int) -> None:
    """Write lines of 3 to 30 random words from a fixed vocabulary."""
    letters_V5 = np.random.default_rng(0).integers(26, size=(WORDS, 5))
    words = ["".join(chr(97 + letter) for letter in letters) for letters in letters_V5]
    rng = np.random.default_rng(seed)
    with path.open("w", encoding="utf-8") as file:
        for length in np.clip(rng.lognormal(2.4, 0.5, count), 3, 30).astype(int):
            file.write(" ".join(words[word] for word in rng.integers(WORDS, size=length)) + "\n")


def make_run(place: Path) -> Path:
    """Train a translator for one step and set random weights that give different lines different translations."""
    pairs = [place / "train.source", place / "train.target"]
    for seed, path in enumerate(pairs, start=1):
        write_lines(path, 500, seed)
    shape = {"embedding": 64, "encoder_layers": 1, "decoder_layers": 1, "heads": 2}
    run: Any = cr.train(
        *pairs,
        model="seq2seq-transformer",
        tokenizer="word",
        steps=1,
        device="cpu",
        out=place / "run",
        settings={"tokenizer": {"min_count": 1}, "model": shape, "training": {"max_tokens": 256, "valid_tokens": 500}},
    )
    torch.manual_seed(1)
    with torch.no_grad():
        for name, parameter in run.model.named_parameters():
            if parameter.dim() == 2:
                deviation = next((DEVIATIONS[part] for part in DEVIATIONS if part in name), OTHER_DEVIATION)
                parameter.normal_(std=deviation)
        run.model.output.bias_V.zero_()[run.model.eos] = -1000.0
    save_model(run.folder, run.model)
    return place / "run"


def child(run_folder: Path, path: Path) -> None:
    """Load the run, translate a file line by line, and print time and memory as JSON."""
    began = time.perf_counter()
    run: Any = cr.load(run_folder, device="cpu")
    assert run.model is not None  # loaded at first access
    loaded = time.perf_counter()
    resident, private = PeakMemory(), PrivatePeak()
    first, texts = 0.0, []
    with path.open(encoding="utf-8") as lines:
        for translations in run.translate_lines((line.rstrip("\n") for line in lines), **SEARCH):
            first = first or time.perf_counter() - loaded
            texts.append(translations[0].text)
    seconds = time.perf_counter() - loaded
    taken = {"resident": resident.bytes, "private": private.stop(), "first": first, "seconds": seconds}
    check_order(run, path.read_text(encoding="utf-8").splitlines(), texts)
    print(json.dumps({**taken, "lines": len(texts), "different": len(set(texts)), "loading": loaded - began}))


def check_order(run: Any, lines: list[str], texts: list[str]) -> None:
    """Check that lines spread over the file have the same translations as when translated alone."""
    if len(lines) != len(texts):
        raise SystemExit(f"{len(lines)} lines gave {len(texts)} translations")
    for number in np.linspace(0, len(lines) - 1, 7).astype(int).tolist():
        if run.translate(lines[number], **SEARCH) != texts[number]:
            raise SystemExit(f"line {number + 1} has another translation in the file than alone")


def measure(run: Path, path: Path, threads: int) -> dict[str, Any]:
    """Run `child` in a new process."""
    command = [sys.executable, __file__, "--threads", str(threads), "--child", str(run), str(path)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    measured: dict[str, Any] = json.loads(done.stdout)
    return measured


def figures_of(short: dict[str, Any], long: dict[str, Any]) -> list[Figure]:
    sizes = f"{long['lines']:,} and {short['lines']:,} lines"
    first = max(short["first"], long["first"])
    growth = long["private"] / short["private"]
    return [
        Figure("first line", first, "s", MOST_SECONDS, first / MOST_SECONDS, at_most=1.0,
               note=f"peer: the limit; loading took {short['loading']:.2f} s"),
        Figure("lines", long["lines"] / long["seconds"], "lines/s", short["lines"] / short["seconds"], note=sizes),
        Figure("private memory", long["private"] / 2**20, "MiB", short["private"] / 2**20, growth,
               at_most=MOST_GROWTH, note=sizes),
        Figure("resident memory", long["resident"] / 2**20, "MiB", short["resident"] / 2**20, note=sizes),
    ]  # fmt: skip


def main() -> None:
    parser = arguments(__doc__, repeats=1)
    parser.add_argument(
        "--lines", type=int, nargs=2, default=(1000, 4000), help="lines of the two files (default: 1000 4000)"
    )
    parser.add_argument("--child", nargs=2, metavar=("RUN", "FILE"), help=argparse.SUPPRESS)
    options = begin(parser)
    if options.child:
        child(*map(Path, options.child))
        return
    with tempfile.TemporaryDirectory() as place:
        os.environ["CHAINRULE_CACHE"] = f"{place}/cache"
        run, taken = make_run(Path(place)), []
        for number, count in enumerate((50, 200) if options.quick else options.lines):
            path = Path(place, f"{number}.txt")
            write_lines(path, count, seed=10 + number)
            taken.append(measure(run, path, options.threads))
    different = " and ".join(f"{one['different']:,} of {one['lines']:,}" for one in taken)
    report(figures_of(*taken), options, peer="the limit, or the shorter file", different_translations=different)


if __name__ == "__main__":
    main()
