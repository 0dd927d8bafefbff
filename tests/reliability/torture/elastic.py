"""A training of two processes under torchrun, of which one is killed again and again; torchrun starts both anew.

The weights, the checkpoint and the log must in the end be those of two processes that nothing disturbed.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from time import monotonic, sleep

from torture.kills import compare, contents
from torture.outcomes import Clock, Tally
from torture.processes import family, last_line
from torture.toys import write_data

STEPS = 2000
KILLS = 50
"""The most kills, unless another number is given."""

LAUNCH = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts"]
SETTINGS = [
    "model.embedding=8",
    "model.hidden=8",
    "model.layers=1",
    "training.batch_size=5",
    "training.save_seconds=0.001",
    "training.validations=4",
    "training.log_steps=10",
]


def campaign(place: Path, seed: int, clock: Clock, kills: int | None = None) -> list[Tally]:
    """Kill processes of trainings until the time is over or `kills` are done; at least one training."""
    place.mkdir(parents=True)
    write_data(place)
    tally, draw, begun = Tally("torchrun"), random.Random(seed), monotonic()
    whole, broken, log = place / "whole", place / "broken", place / "log"
    repeat = f"--only elastic --seed {seed}"
    with _launched(place, whole, log) as command:
        while not list((whole / "training").glob("step-*")) and command.poll() is None:
            sleep(0.01)
        start = monotonic() - begun
        if command.wait() != 0:
            tally.add("bug", f"{repeat}: undisturbed: {last_line(log)}")
            return [tally]
    expected, limit = contents(whole), kills or KILLS
    while not tally.cases or (clock and tally.outcomes["killed"] < limit):
        shutil.rmtree(broken, ignore_errors=True)
        with _launched(place, broken, log) as command:
            _disturb(command, draw, start, tally, clock, limit)
            status = command.wait()
        if status != 0:
            tally.add("lost", f"{repeat}: {last_line(log)}")
            break
        different = compare(expected, contents(broken))
        tally.add("different", f"{repeat}: {different}") if different else tally.add("same end")
    return [tally]


def _launched(data: Path, out: Path, log: Path) -> subprocess.Popen[bytes]:
    """The training under torchrun."""
    given = ["train", str(data / "text.txt"), "--model", "lstm", "--tokenizer", "char", "--steps", str(STEPS)]
    given += [word for setting in SETTINGS for word in ("--set", setting)]
    command = [*LAUNCH, "100000", "--monitor-interval", "0.1", "-m", "chainrule.cli.main", *given]
    with log.open("w") as file:
        return subprocess.Popen([*command, "--device", "cpu", "--out", str(out)], stdout=file, stderr=file)


def _disturb(
    command: subprocess.Popen[bytes], draw: random.Random, start: float, tally: Tally, clock: Clock, kills: int
) -> None:
    """Kill a process whenever some time has passed: while the two start, train, save or end."""
    while tally.outcomes["killed"] < kills and (clock or not tally.outcomes["killed"]):
        end = monotonic() + draw.uniform(0.0, 1.5 * start)
        while monotonic() < end or len(family(command.pid)) < 3:  # both processes
            if command.poll() is not None:
                return
            sleep(0.01)
        with contextlib.suppress(ProcessLookupError):
            os.kill(draw.choice(family(command.pid)[1:]), signal.SIGKILL)
            tally.add("killed")
