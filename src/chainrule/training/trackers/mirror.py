"""Sends the lines of metrics.jsonl to trackers, each line once, also when a training is stopped and resumed.

A resumed training logs again what came after its last checkpoint. For trackers that remember, `training/tracking.json`
holds the last steps that were sent; it is written before a line is sent, so that a kill may lose a point of a tracker
but never doubles one. What a tracker has not received yet, it receives when the training begins.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any, Self

from chainrule.base.files import write_atomically
from chainrule.checkpoint.checkpoints import read_json
from chainrule.checkpoint.folder import RunFolder
from chainrule.training.trackers.mlflow import MLflow
from chainrule.training.trackers.tensorboard import TensorBoard
from chainrule.training.trackers.tracker import TrackedRun, Tracker
from chainrule.training.trackers.wandb import Trackio, Wandb

TRACKERS: dict[str, type[Tracker]] = {one.name: one for one in (TensorBoard, Trackio, Wandb, MLflow)}
"""By the names of `training.log`."""

VALID = "valid_"
"""Begins the names of figures of a validation."""


def check_trackers(names: Sequence[str]) -> None:
    """Refuse trackers that are not installed."""
    for name in names:
        TRACKERS[name]().check()


class Mirror:
    """The trackers of one training; without trackers it does nothing."""

    def __init__(self, names: Sequence[str], folder: RunFolder) -> None:
        self._trackers = [TRACKERS[name]() for name in dict.fromkeys(names)]
        self._folder = folder
        self._path = folder.path / "training" / "tracking.json"
        self._state: dict[str, dict[str, Any]] = {}  # by tracker: `key`, and the last step of each kind of line

    def __enter__(self) -> Self:
        """Open the trackers, and send what they have not received yet. The log must be cut to the checkpoint before."""
        if not self._trackers:
            return self
        options = self._folder.read_config().model_dump(mode="json", exclude_none=True)
        self._state = read_json(self._path) or {}
        for tracker in self._trackers:
            known = self._state.get(tracker.name, {}) if tracker.remembers else {}
            key = tracker.open(TrackedRun(self._folder.path, options, known.get("key")))
            self._state[tracker.name] = {**known, "key": key}
        for record in self._folder.read_log():
            self.send(record)
        return self

    def __exit__(self, *failure: object) -> None:
        """Close the trackers."""
        for tracker in self._trackers:
            tracker.close()

    def send(self, record: dict[str, Any]) -> None:
        """Send a line to the trackers that have not received it."""
        kind = "valid" if any(name.startswith(VALID) for name in record) else "train"
        step, figures = int(record["step"]), figures_of(record)
        waiting = [one for one in self._trackers if step > self._state[one.name].get(kind, -1)]
        for tracker in waiting:
            self._state[tracker.name][kind] = step
        if waiting:
            write_atomically(self._path, json.dumps(self._state, indent=1))
        for tracker in waiting:
            tracker.log(figures, step)


def figures_of(record: dict[str, Any]) -> dict[str, float]:
    """The curves of a line: {"valid_loss": 1.0} -> {"valid/loss": 1.0}, other figures under train/."""
    found = {}
    for name, value in record.items():
        if name != "step" and isinstance(value, int | float) and math.isfinite(value):
            found[f"valid/{name[len(VALID) :]}" if name.startswith(VALID) else f"train/{name}"] = float(value)
    return found
