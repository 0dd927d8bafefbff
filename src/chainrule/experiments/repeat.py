"""The command that repeats a training: its data and every option that was given, in the form of the command line."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from chainrule.checkpoint.folder import RunFolder
from chainrule.config import merge
from chainrule.training.request import BUDGET, make_config

FLAGS = {
    "model.name": "--model",
    "tokenizer.kind": "--tokenizer",
    "tokenizer.vocab_size": "--vocab-size",
    "output.name": "--output",
    "objective.name": "--objective",
    "init": "--init",
    "init_embedding": "--init-embedding",
    "seed": "--seed",
    "data.field": "--field",
    "training.minutes": "--minutes",
    "training.steps": "--steps",
    "training.epochs": "--epochs",
    "training.memory": "--memory",
    "training.max_tokens": "--max-tokens",
    "training.device": "--device",
}
"""Options with a flag of their own; the others are given by --set."""


def repeat_command(folder: RunFolder, out: str | Path | None = None) -> str | None:
    """The command that trains the run again from nothing; None: the run was not made by `train`.

    Args:
        folder: The folder of the run.
        out: Folder of the repeated run. None: RUN-again beside this one.
    """
    request = folder.read_request() or {}
    model, data = request.get("model"), request.get("data")
    if not (isinstance(model, Mapping) and isinstance(data, Mapping) and "name" in model and data.get("train")):
        return None
    budget = (folder.read_result() or {}).get("budget") or folder.read_config().training.model_dump(include=BUDGET)
    given = dict(_flatten(merge(request, {"training": {key: budget.get(key) for key in BUDGET}})))
    plain = {"model": {"name": model["name"]}, "data": {"train": data["train"]}}
    usual = dict(_flatten(make_config(plain, {}, {}).model_dump(mode="json")))
    words = ["chainrule", "train", *given.pop("data.train")]
    for path in given.pop("data.valid", None) or ():
        words += ["--valid", path]
    for name, value in given.items():
        if value is not None and (name == "model.name" or value != usual.get(name)):
            words += _option(name, value)
    return shlex.join([*words, "--out", str(out or f"{folder.given}-again")])


def _flatten(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """{"model": {"name": "lstm"}} -> ("model.name", "lstm")."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{before}{name}.")
        else:
            yield before + name, value


def _option(name: str, value: Any) -> list[str]:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return [FLAGS[name], text] if name in FLAGS else ["--set", f"{name}={text}"]
