"""Resuming: the same command continues a run, another one is refused."""

from __future__ import annotations

from typing import Any

from chainrule.checkpoint.folder import RunFolder
from chainrule.config import RunConfig
from chainrule.errors import ConfigError, DataError
from chainrule.tasks.task import Corpus

FREE = (
    "minutes",
    "steps",
    "epochs",
    "device",
    "threads",
    "memory",
    "save_seconds",
    "log_steps",
    "gradient_norms",
    "compile",
)
"""Options that may differ when a run is resumed: they set how long, where and what is logged, not what is trained."""


def request_of(config: RunConfig) -> dict[str, Any]:
    """The options as given, without the free ones."""
    request = config.model_dump(mode="json", exclude_none=True)
    request["training"] = {key: value for key, value in request["training"].items() if key not in FREE}
    return request


def check_same_request(folder: RunFolder, request: dict[str, Any]) -> None:
    """Refuse other options than those with which the run was begun."""
    before = folder.read_request() if folder.exists() else None
    if before is not None and before != request:
        raise ConfigError(
            f"{folder.path} was made with other options ({_first_difference(before, request)}); rerun the command it "
            "was made with to resume, or choose another --out"
        )


def check_same_data(folder: RunFolder, corpus: Corpus) -> None:
    """Refuse another training text than that with which the run was begun."""
    if folder.exists() and folder.read_signature()["data"] != corpus.signature["data"]:
        raise DataError(
            f"the training text has changed since {folder.path} was begun; restore the old text to resume, or choose "
            "another --out"
        )


def _first_difference(before: dict[str, Any], now: dict[str, Any], path: str = "") -> str:
    for key in [*before, *(key for key in now if key not in before)]:
        old, new = before.get(key), now.get(key)
        if isinstance(old, dict) and isinstance(new, dict) and old != new:
            return _first_difference(old, new, f"{path}{key}.")
        if old != new:
            return f"{path}{key} was {old!r}, now {new!r}"
    return ""
