"""Trainings killed at random moments and at random file operations, resumed until they end.

The weights, the checkpoint and the log must then be those of a training that nothing disturbed. Of a training of
several processes any one is killed; the others must end by themselves.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from chainrule.checkpoint.folder import RunFolder
from torture.interruption import Interrupted, describing, interrupted, kill_at, let_all, read_message
from torture.outcomes import Clock, Tally
from torture.processes import HANG, Child, family, last_line, no_orphans
from torture.toys import TRAININGS, Training, write_data

TIMES = {"seconds", "tokens_per_second", "peak_memory"}
"""Entries of a log that no two trainings share."""

MOST_KILLS = 12
"""A training is disturbed so often, then left alone."""


def campaign(place: Path, seed: int, clock: Clock, names: list[str], kills: int | None = None) -> list[Tally]:
    """Kill trainings of these names until the time is over or each had `kills`; at least one training of each."""
    data = place / "data"
    data.mkdir(parents=True)
    write_data(data)
    tallies, repeat = [], f"--only kills --seed {seed}"
    for number, name in enumerate(names):
        tally, share = Tally(name), clock.share(len(names) - number)
        bed = Bed(TRAININGS[name], data, place / name.replace(" ", "_"), random.Random(f"{seed} {name}"))
        while not tally.cases or (share and (kills is None or tally.outcomes["killed"] < kills)):
            bed.torture(tally, repeat, MOST_KILLS if kills is None else min(MOST_KILLS, kills))
        tallies.append(tally)
    return tallies


class Bed:
    """One training, undisturbed and disturbed."""

    def __init__(self, training: Training, data: Path, place: Path, draw: random.Random) -> None:
        self.training, self.data, self.place, self.draw = training, data, place, draw
        self.place.mkdir()
        self.log = place / "log"
        self._undisturbed("warm")  # compiles and fills the cache
        begun = monotonic()
        self.operations = self._undisturbed("whole")
        self.seconds = monotonic() - begun
        self.expected = contents(place / "whole")
        self.rounds = 0

    def _undisturbed(self, name: str) -> int:
        """Train -> the number of its file operations."""
        ended = interrupted(lambda: self.training(self.data, self.place / name), self.place / name, self.log, let_all)
        assert ended.checked_status == 0, f"{ended.refused} {self.log.read_text()}"
        return len(ended.operations)

    def torture(self, tally: Tally, repeat: str, most: int = MOST_KILLS) -> None:
        """Train once with at most so many kills; count these, and how it ended."""
        self.rounds += 1
        out = self.place / "broken"
        shutil.rmtree(out, ignore_errors=True)
        repeat = f"{repeat}, training {self.rounds}"
        for _ in range(most):
            orphans: list[int] = []
            with no_orphans(orphans):
                killed, ended = self._killed(out)
            if orphans:
                return tally.add("orphan", f"{repeat}: {len(orphans)} processes lived on")
            if problem := self._problem(killed, ended):
                return tally.add(problem, f"{repeat}: {ended.refused or last_line(self.log)}")
            if not killed:
                break
            tally.add("killed")
            self._load(out, tally, repeat)
        status = Child(lambda: self.training(self.data, out), self.log).wait()
        if status != 0:
            return tally.add("lost", f"{repeat}: {last_line(self.log)}")
        different = compare(self.expected, contents(out))
        return tally.add("different", f"{repeat}: {different}") if different else tally.add("same end")

    def _problem(self, killed: bool, ended: Interrupted) -> str:
        """A failure; after a kill of one of several processes the training ends well or with a message."""
        if ended.status is None:
            return "hang"
        if killed:
            return "" if ended.status in (0, signal.SIGKILL) else "bug"
        return "" if ended.status == 0 and ended.refused is None else "bug"

    def _killed(self, out: Path) -> tuple[bool, Interrupted]:
        """Train, and kill at a random moment or at a random file operation -> whether it came to that, and the end."""

        def work() -> object:
            return self.training(self.data, out)

        if self.draw.random() < 0.5:
            number = self.draw.randint(1, self.operations + 1)
            ended = interrupted(work, out, self.log, kill_at(number))
            return ended.status == signal.SIGKILL, ended
        message = self.log.with_name("message")
        child = Child(describing(work, message), self.log)
        killed = not child.ended(self.draw.uniform(0, self.seconds))
        if killed:
            os.kill(self.draw.choice(family(child.id)), signal.SIGKILL)
        status = child.wait(HANG)
        if status is None:
            child.kill()
        return killed, Interrupted(status, refused=read_message(message))

    def _load(self, out: Path, tally: Tally, repeat: str) -> None:
        """Whatever weights a kill left must be whole."""
        folder = RunFolder(out)
        if folder.exists() and folder.has_model() and self.draw.random() < 0.3:
            folder.check_model(anew=True)
            tally.add("loaded between")


def contents(run: Path) -> dict[str, Any]:
    """The weights, the checkpoint and the log of a run, without times."""
    found: dict[str, Any] = {}
    for path in sorted(run.rglob("*.safetensors")):
        found |= {f"{path.relative_to(run)}: {name}": array for name, array in load_file(path).items()}
    path = run / "metrics.jsonl"  # counting has none
    log = path.read_text().splitlines() if path.exists() else []
    found["log"] = [{key: value for key, value in json.loads(line).items() if key not in TIMES} for line in log]
    found["configuration"] = (run / "config.toml").read_text()
    return found


def compare(expected: dict[str, Any], found: dict[str, Any]) -> str:
    """What differs between two contents; empty: nothing."""
    names = expected.keys() ^ found.keys()
    for name in expected.keys() & found.keys():
        one, other = expected[name], found[name]
        same = np.array_equal(one, other, equal_nan=False) if isinstance(one, np.ndarray) else one == other
        names |= set() if same else {name}
    return ", ".join(sorted(names))
