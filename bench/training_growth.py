"""Training a network as the text grows: tokens/s, seconds to the first step with a warm cache, and private memory.

A larger text is made of perturbed copies of TEXT (`counting_growth.py`). It is first tokenised by a training of one
step, whose seconds are not counted: afterwards the cache is warm. Memory is sampled during a second training, from
--warm-up of its steps to its end.

    python bench/training_growth.py debdocs.txt --megabytes 10 1000 --steps 400
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from counting_growth import PROGRAM, perturb
from harness import Figure, arguments, begin, report
from ngram_estimation import beginning

SAMPLING_SECONDS = 0.05
MEGABYTE = 1_000_000


@dataclass
class Growth:
    """What training on a text took."""

    bytes: int
    tokenising: float  # seconds of the first training
    start: float = 0.0  # seconds of the second until its first step has ended
    tokens_per_second: float = 0.0
    private: tuple[int, int] = (0, 0)  # bytes after the warm-up, and the most after it


def grown(text: Path, place: Path, megabytes: int, changed: float) -> Path:
    """A text of this size."""
    size, number = megabytes * MEGABYTE, 0
    with place.open("wb") as file:
        while file.tell() < size:
            copy = perturb(text, place.with_suffix(".copy"), changed, number)
            with copy.open("rb") as source:
                shutil.copyfileobj(source, file)
            copy.unlink()
            number += 1
        file.truncate(size)
    return place


def command(text: Path, out: Path, tokenizer: str, model: str, steps: int) -> list[str]:
    shape = ["--model", model, "--tokenizer", tokenizer, "--steps", str(steps), "--device", "cpu"]
    frequent = ["--set", "training.log_steps=1", "--set", "training.validations=1"]
    return [PROGRAM, "train", str(text), *shape, *frequent, "--out", str(out), "--json"]


def watch(given: list[str], environment: dict[str, str], log: Path) -> tuple[float, list[tuple[int, int]], dict]:
    """Run a training -> seconds until its first step, its steps and private bytes over time, and its result."""
    began, first, samples = time.perf_counter(), 0.0, list[tuple[int, int]]()
    with subprocess.Popen(given, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None:
            steps = log.read_bytes().count(b'"lr"') if log.exists() else 0
            if steps and not first:
                first = time.perf_counter() - began
            if steps:
                samples.append((steps, private_bytes(process.pid)))
            time.sleep(SAMPLING_SECONDS)
        assert process.stdout is not None
        answer = process.stdout.read()
        if process.returncode:
            raise SystemExit(f"{' '.join(given)} failed with exit status {process.returncode}")
    return first, samples, json.loads(answer)


def private_bytes(process: int) -> int:
    """Memory of a process that is no mapped file; 0 once it has ended."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon")), 0)


def measure(text: Path, folder: Path, options: object, environment: dict[str, str]) -> Growth:
    """Train twice on a text."""
    given = (options.tokenizer, options.model)  # type: ignore[attr-defined]
    began = time.perf_counter()
    subprocess.run(command(text, folder / "first", *given, 1), env=environment, check=True, capture_output=True)
    found, out = Growth(text.stat().st_size, time.perf_counter() - began), folder / "second"
    steps = options.steps  # type: ignore[attr-defined]
    start, samples, result = watch(command(text, out, *given, steps), environment, out / "metrics.jsonl")
    found.start, found.tokens_per_second = start, result["tokens_per_second"]
    warm = [size for step, size in samples if step >= options.warm_up * steps and size]  # type: ignore[attr-defined]
    found.private = warm[0], max(warm)
    for name in ("first", "second"):
        shutil.rmtree(folder / name)
    return found


def figures(found: list[Growth]) -> list[Figure]:
    lines, base = [], found[0]
    for one in found:
        name, ratio = f"{one.bytes / 1e6:.0f} MB", one.tokens_per_second / base.tokens_per_second
        lines.append(Figure(f"{name}, training", one.tokens_per_second, "tokens/s", ratio=ratio, at_least=0.95))
        lines.append(
            Figure(f"{name}, to the first step, warm cache", one.start, "s", 5.0, ratio=one.start / 5.0, at_most=1.0)
        )
        growth = one.private[1] / one.private[0]
        lines.append(
            Figure(f"{name}, private after warm-up", one.private[0] / 2**20, "MiB", ratio=growth, at_most=1.02)
        )
        lines.append(Figure(f"{name}, first training of one step", one.tokenising, "s"))
    return lines


def main() -> None:
    parser = arguments(__doc__, repeats=1)
    parser.add_argument("text", type=Path, help="text of words between white space, one sentence per line")
    parser.add_argument("--megabytes", type=int, nargs="+", default=[10, 1000], help="sizes of the text")
    parser.add_argument("--model", default="lstm", help="model that is trained (default: %(default)s)")
    parser.add_argument("--tokenizer", default="byte", help="its tokeniser (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=400, help="steps of the training (default: %(default)s)")
    parser.add_argument("--warm-up", type=float, default=0.25, help="share of the steps before memory is watched")
    parser.add_argument("--changed", type=float, default=0.03, help="share of changed words (default: %(default)s)")
    parser.add_argument("--folder", type=Path, help="folder for texts (default: a temporary one)")
    options = begin(parser)
    environment = {**os.environ, "OMP_NUM_THREADS": str(options.threads)}
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        environment["CHAINRULE_CACHE"] = str(folder / "cache")
        text = beginning(options.text, folder / "text", size=2 * MEGABYTE) if options.quick else options.text
        found = []
        for megabytes in [1, 4] if options.quick else options.megabytes:
            place = grown(text, folder / "grown.txt", megabytes, options.changed)
            found.append(measure(place, folder, options, environment))
            print(found[-1], file=sys.stderr, flush=True)
    report(figures(found), options, model=options.model, tokenizer=options.tokenizer, steps=options.steps)


if __name__ == "__main__":
    main()
