"""Resuming: the same command continues a run, another one is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from chainrule.checkpoint.folder import RunFolder
from chainrule.checkpoint.signature import BEFORE
from chainrule.config import RunConfig
from chainrule.errors import ConfigError, DataError, RunError
from chainrule.tasks.task import Corpus

FREE = (
    "minutes",
    "steps",
    "epochs",
    "device",
    "threads",
    "workers",
    "memory",
    "save_seconds",
    "log_steps",
    "log",
    "gradient_norms",
    "compile",
    "shard",
    "count_all",
)
"""Options that may differ when a run is resumed: they set how long, where and what is logged, not what is trained."""


def request_of(config: RunConfig) -> dict[str, Any]:
    """The options as given, without the free ones."""
    request = config.model_dump(mode="json", exclude_none=True)
    request["training"] = {key: value for key, value in request["training"].items() if key not in FREE}
    return request


def check_same_request(folder: RunFolder, config: RunConfig) -> None:
    """Refuse other options than those with which the run was begun.

    They are in `training/request.json`. Without it, the options given are compared with those in config.toml.
    """
    if not folder.exists():
        return
    before, now = folder.read_request(), request_of(config)
    if before is None:
        before, now = _compared_with_config(folder, config)
    if before != now:
        raise ConfigError(
            f"{folder.path} was made with other options ({_first_difference(before, now)}); rerun the command it "
            "was made with to resume, or choose another --out"
        )


def _compared_with_config(folder: RunFolder, config: RunConfig) -> tuple[dict[str, Any], dict[str, Any]]:
    """The options of config.toml that are also given, and those given."""
    saved = folder.read_config().model_dump(mode="json", exclude_none=True)
    given = config.model_dump(mode="json", exclude_none=True, exclude_unset=True, exclude={"training": set(FREE)})
    return _restricted(saved, given), given


def _restricted(values: dict[str, Any], to: dict[str, Any]) -> dict[str, Any]:
    """The values whose names are also in `to`, at every depth."""
    shared = {name: (values[name], to[name]) for name in to if name in values}
    return {
        name: _restricted(value, other) if isinstance(value, dict) and isinstance(other, dict) else value
        for name, (value, other) in shared.items()
    }


def check_same_data(folder: RunFolder, corpus: Corpus) -> None:
    """Refuse another training or validation text than that with which the run was begun."""
    if not folder.exists():
        return
    before, now = folder.read_signature(), corpus.signature
    for name, text in (("data", "training"), ("valid", "validation")):
        if name in now and now[name] not in (before.get(name), before.get(name + BEFORE)):
            raise DataError(
                f"the {text} text has changed since {folder.path} was begun; restore the old text to resume, or choose "
                "another --out"
            )


def check_resumable(folder: RunFolder, note: Callable[[str], None]) -> None:
    """Refuse to train from the start over the weights of a run whose checkpoint is gone."""
    if not folder.has_model() or folder.has_checkpoint():
        return
    if folder.read_result() or folder.read_request() is None:
        raise RunError(
            f"{folder.path} has weights but no checkpoint in its folder training, so its training cannot continue; "
            f"choose another --out, and --init {folder.path} to start from these weights"
        )
    note(f"{folder.path} was stopped before its first checkpoint: training from the start")


def _first_difference(before: dict[str, Any], now: dict[str, Any], path: str = "") -> str:
    for key in [*before, *(key for key in now if key not in before)]:
        old, new = before.get(key), now.get(key)
        if isinstance(old, dict) and isinstance(new, dict) and old != new:
            return _first_difference(old, new, f"{path}{key}.")
        if old != new:
            return f"{path}{key} was {_shown(old)}, now {_shown(new)}"
    return ""


def _shown(value: Any) -> str:
    return "the default" if value is None else repr(value)
