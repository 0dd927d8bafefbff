"""Two processes of torchrun with one thread each, against one process with two threads: tokens per second.

The default Transformer, 4 layers × 128, on random characters, by whole runs of `chainrule train` in turn. The rate is
the one that `train --json` reports: tokens over the time of the steps, without start-up and validations.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from harness import Figure, arguments, begin, report

CHARACTERS = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz     .\n", np.uint8)
OPTIONS = (
    "model.embedding=128", "model.layers=4", "model.heads=4", "model.dropout=0", "training.batch_size=12",
    "training.length=64", "training.validations=1", "training.valid_tokens=2048",
)  # fmt: skip


def rate(text: Path, out: Path, processes: int, threads: int, steps: int) -> float:
    """Tokens per second of one training."""
    options = [part for option in (*OPTIONS, f"training.threads={threads}") for part in ("--set", option)]
    command = ["chainrule.cli.main", "train", str(text), "--model", "transformer", "--tokenizer", "char"]
    command += ["--steps", str(steps), *options, "--out", str(out), "--json"]
    launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)] if processes > 1 else []
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    run = [sys.executable, "-m", *launcher, *(["-m"] if launcher else []), *command]
    done = subprocess.run(run, env=environment, check=True, capture_output=True, text=True)
    return float(json.loads(done.stdout[done.stdout.index("{") :])["tokens_per_second"])


def main() -> None:
    options = begin(arguments(__doc__, repeats=3))
    steps = 5 if options.quick else 150
    rng = np.random.default_rng(1)
    rates: dict[int, list[float]] = {1: [], options.threads: []}
    with tempfile.TemporaryDirectory() as place:
        text = Path(place) / "text.txt"
        text.write_bytes(CHARACTERS[rng.integers(len(CHARACTERS), size=400_000)].tobytes())
        for number in range(options.repeats):
            for processes in rates:
                out = Path(place) / f"{processes}-{number}"
                rates[processes].append(rate(text, out, processes, options.threads // processes, steps))
    one, several = rates[1], rates[options.threads]
    figure = Figure(
        f"{options.threads} processes of torchrun",
        statistics.median(several),
        "tokens/s",
        statistics.median(one),
        statistics.median(mine / other for mine, other in zip(several, one, strict=True)),
        at_least=1.0,
    )
    report([figure], options, peer=f"one process, {options.threads} threads")


if __name__ == "__main__":
    main()
