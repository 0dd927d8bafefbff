"""Weights & Biases, and trackio, which has the same calls: init, log, finish."""

from __future__ import annotations

import hashlib
from typing import Any

from chainrule.training.trackers.tracker import PROJECT, TrackedRun, Tracker


class Wandb(Tracker):
    """Runs of wandb, each with an id of its own, by which it is continued."""

    name = "wandb"
    package = "wandb"

    def open(self, run: TrackedRun) -> str | None:
        key = run.key or hashlib.blake2b(str(run.folder.resolve()).encode(), digest_size=8).hexdigest()
        self._run = self._init(run, id=key, resume="allow")
        return key

    def _init(self, run: TrackedRun, **options: Any) -> Any:
        return self.load().init(project=PROJECT, name=run.name, config=run.options, **options)

    def log(self, figures: dict[str, float], step: int) -> None:
        self.load().log(figures, step=step)

    def close(self) -> None:
        self.load().finish()


class Trackio(Wandb):
    """Runs of trackio, which are continued by their names."""

    name = "trackio"
    package = "trackio"

    def open(self, run: TrackedRun) -> str | None:
        self._run = self._init(run, resume="allow")
        return run.name
