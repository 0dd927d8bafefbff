"""The folders of the served runs as they are on disk now: finished runs, and trainings that are still running.

They are looked up by name among those found below the served folders; no path comes from a request, and a file that a
link leads out of them is not read.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from chainrule.base.locks import refuse_if_locked
from chainrule.base.results import json_value
from chainrule.checkpoint.folder import RunFolder
from chainrule.checkpoint.log_tail import Tail, read_tail, thin
from chainrule.errors import ChainruleError, RunError
from chainrule.experiments.repeat import repeat_command
from chainrule.registry import MODELS
from chainrule.server.errors import ApiError
from chainrule.server.library import run_paths

BUCKETS = 600
"""Parts into which a long log is divided before it is sent."""

FIGURES = ("bits_per_byte", "perplexity", "bleu", "chrf", "exact_match", "accuracy", "macro_f1", "f1", "loss")
"""Figures on the validation or test data that a leaderboard shows."""

COSTS = ("parameters", "steps", "tokens", "seconds", "tokens_per_second", "peak_memory", "stopped")
"""Entries of result.json that a leaderboard shows."""


class Place(NamedTuple):
    """A run on disk, and the served folder that it must stay in."""

    folder: RunFolder
    root: Path

    def inside(self, name: str) -> bool:
        """Whether a file of the run exists and lies in the served folder."""
        path = self.folder.path / name
        return path.is_file() and path.resolve().is_relative_to(self.root.resolve())


class RunFolders:
    """The runs below some folders."""

    def __init__(self, given: Iterable[str | Path]) -> None:
        self._given = [Path(path) for path in given]

    def places(self) -> dict[str, Place]:
        """All runs by name, those that were begun a moment ago included."""
        roots = [RunFolder.open(path).path for path in self._given]
        found: dict[str, Place] = {}
        for name, path in run_paths(path for path in self._given if path.exists()).items():
            root = next(root for root in roots if path.is_relative_to(root))
            place = Place(RunFolder(path), root)
            if place.inside("config.toml"):
                found[name] = place
        return found

    def place(self, name: str) -> Place:
        """The run of this name."""
        places = self.places()
        if name not in places:
            message = f"there is no run {name!r}; this server has {', '.join(places)}"
            raise ApiError(404, message, code="model_not_found", param="run")
        return places[name]

    def leaderboard(self) -> list[dict[str, Any]]:
        """One record per run, from its files alone."""
        return [{"name": name, **_record(place)} for name, place in self.places().items()]

    def details(self, name: str) -> dict[str, Any]:
        """Configuration, signature, and the command that repeats the training."""
        place = self.place(name)
        folder = place.folder
        readable = place.inside("training/request.json")
        return {
            "name": name,
            **_record(place),
            "config": (folder.path / "config.toml").read_text(encoding="utf-8", errors="replace"),
            "signature": folder.read_signature() if place.inside("signature") else {},
            "command": repeat_command(folder) if readable else None,
        }

    def metrics(self, name: str, offset: int) -> dict[str, Any]:
        """What was logged after an offset, long logs in few lines."""
        place = self.place(name)
        status = _status(place)  # before the log: what a training wrote last is read
        log = place.folder.path / "metrics.jsonl"
        tail = read_tail(log, offset) if place.inside(log.name) else Tail([], 0, True)
        records = json_value(thin(tail.records, BUCKETS))
        return {"records": records, "offset": tail.offset, "restarted": tail.restarted, "status": status}


def _record(place: Place) -> dict[str, Any]:
    folder = place.folder
    try:
        config = folder.read_config()
        result = (folder.read_result() if place.inside("result.json") else None) or {}
    except ChainruleError as error:
        return {"status": "damaged", "error": str(error)}
    known = MODELS.describe(config.model.name)
    kept = (folder.read_figures() if place.inside("valid.json") else None) or result.get("valid")
    test = (folder.read_figures("test.json") if place.inside("test.json") else None) or {}
    figures = kept if isinstance(kept, dict) and kept else test
    return {
        "model": config.model.name,
        "family": known.family,
        "task": known.task,
        "data": [Path(path).name for path in config.data.train],
        "status": _status(place),
        "updated": (folder.path / "config.toml").stat().st_mtime,
        "valid": {name: figures[name] for name in FIGURES if _is_figure(figures.get(name))},
        "tested": _names(test.get("data")) if figures is test else [],
        **json_value({name: result[name] for name in COSTS if name in result}),
    }


def _names(value: Any) -> list[str]:
    """The names of the test data."""
    return [str(one) for one in value] if isinstance(value, list) else []


def _is_figure(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _status(place: Place) -> str:
    """Whether the training has finished, is running now, or was stopped before its end."""
    if place.inside("result.json"):
        return "finished"
    try:
        refuse_if_locked(place.folder.lock_path, place.folder.path)
    except RunError:
        return "training"
    return "finished" if place.folder.has_model() and not place.folder.has_checkpoint() else "stopped"
