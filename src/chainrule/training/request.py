"""The configuration of a training from a file, named options and settings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chainrule.checkpoint.folder import RunFolder
from chainrule.config import RunConfig, merge, parse, read_toml, shorten
from chainrule.errors import ConfigError
from chainrule.registry import MODELS
from chainrule.tasks.task import form_for_data

BUDGET = {"minutes", "steps", "epochs"}


def make_config(
    file: str | Path | Mapping[str, Any] | None, named: Mapping[str, Any], settings: Mapping[str, Any]
) -> RunConfig:
    """A run's configuration: a file or its contents, then named options, then settings; later ones win."""
    given = file if isinstance(file, Mapping) else read_toml(file) if file else {}
    values = merge(given, _without_empty(named))
    values = merge(values, settings)
    _check_kinds(values)
    if name := values.get("model", {}).get("name"):
        values = merge(values, {"model": {"name": form_for_data(name, values.get("data", {}).get("train", ()))}})
    if values.get("init"):
        names = (values.get(section, {}).get(key) for section, key in (("model", "name"), ("tokenizer", "kind")))
        values = merge(_from_run(Path(values["init"]), *names), values)
    values["model"] = {"name": "lstm", **values.get("model", {})}
    _check_places(settings, values["model"]["name"])
    objective = MODELS.get(values["model"]["name"]).objective or "likelihood"
    for section, default in (("output", "softmax"), ("objective", objective)):
        values[section] = {"name": default, **values.get(section, {})}
    return parse(RunConfig, values)


def _check_kinds(values: Mapping[str, Any]) -> None:
    """Refuse a plain value in the place of a section, and names that are no text."""
    for section in ("data", "tokenizer", "model", "output", "objective", "training"):
        options = values.get(section, {})
        if not isinstance(options, Mapping):
            raise ConfigError(
                f"{section} = {shorten(repr(options))}: expected a section; set one of its options, for example "
                "--set model.hidden=200"
            )
        if not isinstance(name := options.get("name", ""), str):
            raise ConfigError(f"{section}.name = {shorten(repr(name))}: expected a name")
    for option in ("init", "init_embedding"):
        if not isinstance(path := values.get(option) or "", str):
            raise ConfigError(f"{option} = {shorten(repr(path))}: expected the path of a run")


def resumed_config(out: str | Path | None) -> dict[str, Any]:
    """The options of the run in a folder, as they were given, with its budget: the same call without any option."""
    folder = RunFolder(out) if out is not None else None
    request = folder.read_request() if folder is not None and folder.exists() else None
    if folder is None or request is None:
        raise ConfigError("no data was given; name files to train on, or resume a run with --out RUN alone")
    budget = (folder.read_result() or {}).get("budget") or folder.read_config().training.model_dump(include=BUDGET)
    return merge(request, {"training": _without_empty(budget)})


def _check_places(settings: Mapping[str, Any], model: str) -> None:
    """Refuse an option without its section, and suggest the one that it belongs to."""
    for name in settings:
        if name not in RunConfig.model_fields and (place := place_of(name, model)):
            raise ConfigError(f"unknown option '{name}': did you mean --set {place}={_plain(settings[name])}?")


def place_of(name: str, model: str) -> str | None:
    """The option of a section that has a name, model.hidden for hidden; None if there is none."""
    sections = {"model": MODELS.get(model).make.Config.model_fields}
    for section in ("training", "data", "tokenizer"):
        sections[section] = type(getattr(RunConfig(), section)).model_fields
    return next((f"{section}.{name}" for section, fields in sections.items() if name in fields), None)


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _from_run(path: Path, model: str | None, tokenizer: str | None) -> dict[str, Any]:
    """What a run takes over from the run it starts from: tokeniser, model and output layer."""
    start = RunFolder.open(path).read_config()
    if model is not None and model != start.model.name:
        raise ConfigError(
            f"--init {path} holds the model {start.model.name}, but --model is {model}; leave --model out, or --init"
        )
    if tokenizer is not None and tokenizer != start.tokenizer.kind:
        raise ConfigError(
            f"--init {path} has the tokeniser {start.tokenizer.kind}, to which its weights belong, but --tokenizer is "
            f"{tokenizer}; leave --tokenizer out, or --init"
        )
    taken = start.model_dump(mode="json", exclude_none=True, include={"tokenizer", "model", "output"})
    return {"data": {"prefix": start.data.prefix} if start.data.prefix else {}, **taken}


def default_folder(config: RunConfig) -> Path:
    """runs/MODEL-TEXT."""
    return Path("runs") / f"{config.model.name}-{text_name(config.data.train[0] if config.data.train else 'text')}"


def text_name(source: str | Path) -> str:
    """A short name for a text, fit for a folder: dir/book.txt.gz -> book."""
    return "stdin" if str(source) == "-" else Path(str(source)).name.partition(".")[0].replace(":", "-")


def _without_empty(values: Mapping[str, Any]) -> dict[str, Any]:
    """The given options, at every depth."""
    kept = {key: _without_empty(value) if isinstance(value, Mapping) else value for key, value in values.items()}
    return {key: value for key, value in kept.items() if value not in (None, {}, [])}
