"""`report`: from runs and test data to one report."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from chainrule.data.in_memory import Data
from chainrule.errors import ConfigError
from chainrule.registry import MODELS
from chainrule.reports.document import Report
from chainrule.reports.parts.labels import measure_classifiers, measure_taggers
from chainrule.reports.parts.language_models import measure_language_models
from chainrule.reports.parts.masked import measure_masked
from chainrule.reports.parts.part import Options, Part
from chainrule.reports.parts.translators import measure_translators
from chainrule.reports.sections.provenance import provenance
from chainrule.runs.base import Run
from chainrule.runs.load import load

PARTS: dict[str, Callable[[Mapping[str, Run], Options], Part]] = {
    "lm": measure_language_models,
    "translation": measure_translators,
    "labels": measure_classifiers,
    "tags": measure_taggers,
    "masked": measure_masked,
}
"""How the runs of each task are measured."""


def report(
    *runs: str | Path | Run,
    data: Data = (),
    title: str | None = None,
    field: str | None = None,
    speed: bool = False,
    command: str | None = None,
    note: Callable[[str], None] = lambda text: None,
    **search: Any,
) -> Report:
    """Measure runs of one task and describe them in one report; `report.save("report.html")` writes it.

    Args:
        *runs: Folders of runs, or loaded runs.
        data: The test data, as in `evaluate`. Empty: the validation data of each training.
        title: Heading of the report. None: the names of the runs.
        field: Name of the column or JSON field with the texts. None: that of the training.
        speed: Whether to time decoding; two reports then differ in these figures.
        command: The command that the report names as its origin. None: that of this call.
        note: Called with messages about the progress.
        **search: Options of the search for translations, as in `translate`.

    Returns:
        The report, with `save`, `html()`, `markdown()`, `json()` and `to_dict()`.
    """
    named = name_runs([run if isinstance(run, Run) else load(run) for run in runs])
    task = _task_of(named)
    part = PARTS[task](named, Options(data, field, speed, search, note))
    command = command or command_of(named, data, search, speed)
    return Report(
        title=title or " and ".join([", ".join(list(named)[:-1]), list(named)[-1]] if len(named) > 1 else named),
        summary=_summary(part),
        command=command,
        systems=part.systems,
        sections=[*part.sections, provenance(command, part.systems, named, part.data)],
    )


def name_runs(runs: Sequence[Run]) -> dict[str, Run]:
    """Short names: those of the folders, or the paths where two folders have the same name."""
    if not runs:
        raise ConfigError("no run was given; name the folder of at least one run")
    short = [run.folder.given.name for run in runs]
    unique = len(set(short)) == len(short)
    names = short if unique else [str(run.folder.given) for run in runs]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ConfigError(f"{twice} is given twice; name each run once")
    return dict(zip(names, runs, strict=True))


def _task_of(runs: Mapping[str, Run]) -> str:
    """The task that all runs have."""
    tasks = {run.name: MODELS.get(run.config.model.name).task for run in runs.values()}
    for name, task in tasks.items():
        if task not in PARTS:
            raise ConfigError(f"{name} is not measured on data, so there is nothing to report; leave it out")
    if len(set(tasks.values())) > 1:
        shown = ", ".join(f"{name}: {task}" for name, task in tasks.items())
        raise ConfigError(f"the runs have different tasks ({shown}); write one report for each task")
    return next(iter(tasks.values()))


def command_of(runs: Mapping[str, Run], data: Data, search: Mapping[str, Any], speed: bool) -> str:
    """The command that makes the same report; data in memory is named as such."""
    words = ["chainrule", "report", *(str(run.folder.given) for run in runs.values())]
    paths = [data] if isinstance(data, str | Path) else list(data) if isinstance(data, Sequence) else ["DATA"]
    for path in paths:
        words += ["--data", str(path) if isinstance(path, str | Path) else "DATA"]
    for name, value in search.items():
        words += [f"--{name.replace('_', '-')}", str(value)]
    return shlex.join([*words, *(["--speed"] if speed else [])])


def _summary(part: Part) -> str:
    count = len(part.systems)
    data = ", ".join(part.data) or "the validation data of the runs"
    best = part.systems[0]
    return f"{count} {'run' if count == 1 else 'runs'} measured on {data}; best: {best.name} ({best.model})."
