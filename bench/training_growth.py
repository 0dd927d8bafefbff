"""Training a network as the text grows: tokens/s, seconds to the first step with a warm cache, and private memory.

A larger text is made of perturbed copies of TEXT (`counting_growth.py`). It is first tokenised by a training of one
step, whose seconds are not counted: afterwards the cache is warm. Then the sizes take turns. Of the steps after
--warm-up of them, the most memory in the second half is compared with the most in the first; what the process needs
after the last step, when it evaluates the model, is reported separately. On a busy machine the steps per second of
processor time are steadier than the tokens/s by the clock, and so are the processor seconds of the start.

    python bench/training_growth.py debdocs.txt --megabytes 10 1000 --steps 400
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from counting_growth import PROGRAM, perturb
from harness import Figure, arguments, begin, report
from ngram_estimation import beginning

SAMPLING_SECONDS = 0.05
MEGABYTE = 1_000_000


@dataclass(frozen=True)
class Sample:
    """The state of a training at a moment."""

    steps: int
    private: int  # bytes
    processor: float  # seconds


@dataclass(frozen=True)
class Training:
    """What one training took."""

    start: float  # seconds until its first step has ended
    start_processor: float  # of these, seconds of the processor
    tokens_per_second: float
    steps_per_processor_second: float
    private: tuple[int, ...]  # bytes, the most in the first half of the steps, in the second, and after the last


@dataclass
class Growth:
    """What training on a text took."""

    text: Path
    tokenising: float  # seconds of the first training
    trainings: list[Training] = field(default_factory=list)

    def median(self, what: str) -> float:
        return statistics.median(getattr(one, what) for one in self.trainings)


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


def watch(given: list[str], environment: dict[str, str], log: Path) -> tuple[float, list[Sample], dict]:
    """Run a training -> seconds until its first step, its states over time, and its result."""
    began, first, samples = time.perf_counter(), 0.0, list[Sample]()
    with subprocess.Popen(given, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None:
            steps = log.read_bytes().count(b'"lr"') if log.exists() else 0
            if steps and not first:
                first = time.perf_counter() - began
            if steps and (private := private_bytes(process.pid)):
                samples.append(Sample(steps, private, processor_seconds(process.pid)))
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


def processor_seconds(process: int) -> float:
    """The processor time of a process; 0 once it has ended."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def begin_on(text: Path, folder: Path, options: argparse.Namespace, environment: dict[str, str]) -> Growth:
    """Tokenise a text."""
    began = time.perf_counter()
    given = command(text, folder / "first", options.tokenizer, options.model, 1)
    subprocess.run(given, env=environment, check=True, capture_output=True)
    shutil.rmtree(folder / "first")
    return Growth(text, time.perf_counter() - began)


def train_on(text: Path, folder: Path, options: argparse.Namespace, environment: dict[str, str]) -> Training:
    """Train on a tokenised text."""
    out, steps = folder / "second", options.steps
    given = command(text, out, options.tokenizer, options.model, steps)
    start, samples, result = watch(given, environment, out / "metrics.jsonl")
    shutil.rmtree(out)
    warm = [one for one in samples if options.warm_up * steps <= one.steps < steps]
    after = [one for one in samples if one.steps == steps] or warm[-1:]
    speed = (warm[-1].steps - warm[0].steps) / max(warm[-1].processor - warm[0].processor, 1e-9)
    half = len(warm) // 2
    private = tuple(max(one.private for one in part) for part in (warm[: half or 1], warm[half:], after))
    line = f"{text.name}: start {start:.1f} s, processor {samples[0].processor:.1f} s; {speed:.2f} steps/s; {private}"
    print(line, file=sys.stderr, flush=True)
    return Training(start, samples[0].processor, result["tokens_per_second"], speed, private)


def figures(found: list[Growth]) -> list[Figure]:
    lines, base = [], found[0]
    for one in found:
        name = f"{one.text.stat().st_size / 1e6:.0f} MB"
        units = {"tokens_per_second": "tokens/s", "steps_per_processor_second": "steps/s"}
        for (what, unit), way in zip(units.items(), ("clock", "processor"), strict=True):
            pairs = zip(one.trainings, base.trainings, strict=True)
            ratio = statistics.median(getattr(mine, what) / getattr(other, what) for mine, other in pairs)
            lines.append(Figure(f"{name}, training, {way}", one.median(what), unit, ratio=ratio, at_least=0.95))
        start = one.median("start")
        lines.append(Figure(f"{name}, to the first step, warm cache", start, "s", 5.0, ratio=start / 5.0, at_most=1.0))
        processor = one.median("start_processor")
        lines.append(Figure(f"{name}, the same, processor", processor, "s", 5.0, ratio=processor / 5.0, at_most=1.0))
        begins, most, end = (max(sizes) / 2**20 for sizes in zip(*(one.private for one in one.trainings), strict=True))
        growth = max(one.private[1] / one.private[0] for one in one.trainings)
        lines.append(Figure(f"{name}, private, second half of the steps", most, "MiB", begins, growth, at_most=1.02))
        lines.append(Figure(f"{name}, private, evaluation at the end", end, "MiB", begins, end / begins))
        lines.append(Figure(f"{name}, first training of one step", one.tokenising, "s"))
    return lines


def main() -> None:
    parser = arguments(__doc__, repeats=2)
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
            place = grown(text, folder / f"{megabytes}.txt", megabytes, options.changed)
            found.append(begin_on(place, folder, options, environment))
        for _ in range(options.repeats):
            for one in found:
                one.trainings.append(train_on(one.text, folder, options, environment))
        lines = figures(found)
    report(lines, options, model=options.model, tokenizer=options.tokenizer, steps=options.steps)


if __name__ == "__main__":
    main()
