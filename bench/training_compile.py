"""Training speed with `training.compile` against without, and how long a training must be for it to pay.

Transformers of 4 layers × 128 with 12 × 64 characters and of 6 × 384 with 16 × 256, the default form, and an LSTM of
2 × 200 with 20 × 35 of 10,000 words. The seconds of compilation are those of the first three steps, less the same steps
without it; the caches of the compiler are empty. "pays after" is the time after which a compiled training has done as
many steps as a plain one.
"""

from __future__ import annotations

import os
import tempfile
import time
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from harness import Figure, FixedBatches, Project, alternate, arguments, begin, random_batches, report, speed, speed_up

from chainrule.types import Vocabulary

FIRST_STEPS = 3


class Case(NamedTuple):
    """A model, its batches, and the steps of a round."""

    model: dict[str, Any]
    vocabulary: int
    rows: int
    length: int
    steps: int


CASES = {
    "transformer 4 × 128": Case(
        {"name": "transformer", "embedding": 128, "layers": 4, "heads": 4, "context": 64}, 65, 12, 64, 20
    ),
    "transformer 6 × 384": Case(
        {"name": "transformer", "embedding": 384, "layers": 6, "heads": 6, "context": 256}, 65, 16, 256, 1
    ),
    "lstm 2 × 200": Case({"name": "lstm", "embedding": 200, "hidden": 200, "layers": 2}, 10_000, 20, 35, 5),
}


def project(case: Case, *, compiled: bool) -> Project:
    """The training loop of a case, which takes its steps on the threads that are set."""
    tokens = np.random.default_rng(1).integers(case.vocabulary, size=case.rows * (8 * case.length + 1))
    batches = FixedBatches(random_batches(tokens, 8, case.rows, case.length))
    training = {"lr": 1e-3, "clip": 1.0, "compile": compiled}
    return Project(
        {"model": case.model, "training": training},
        Vocabulary(case.vocabulary, 0, np.ones(case.vocabulary, np.int64)),
        batches,
    )


def seconds(steps: int, one: Project) -> float:
    began = time.perf_counter()
    one.steps(steps)
    return time.perf_counter() - began


def figure(name: str, case: Case, repeats: int) -> Figure:
    """Measure one case in turns."""
    ways = {"compiled": project(case, compiled=True), "plain": project(case, compiled=False)}
    first = {way: seconds(FIRST_STEPS, one) for way, one in ways.items()}
    compiling = max(first["compiled"] - first["plain"], 0.0)
    times = alternate({way: partial(one.steps, case.steps) for way, one in ways.items()}, repeats)
    tokens, ratio = case.steps * case.rows * case.length, speed_up(times, "compiled", "plain")
    pays = f"pays after {compiling / (1 - 1 / ratio):.0f} s" if ratio > 1 else "never pays"
    note = f"compiling {compiling:.1f} s, {pays}"
    fast, slow = (speed(times, way, tokens) for way in ("compiled", "plain"))
    return Figure(name, fast, "tokens/s", slow, ratio, note=note)


def main() -> None:
    parser = arguments(__doc__, repeats=5)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES), help="models to measure")
    options = begin(parser)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        cases = {name: CASES[name]._replace(steps=1) if options.quick else CASES[name] for name in options.cases}
        report([figure(name, case, options.repeats) for name, case in cases.items()], options)


if __name__ == "__main__":
    main()
