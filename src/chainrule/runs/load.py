"""From a folder to the run class of its task."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from chainrule.checkpoint.build import check_precision
from chainrule.checkpoint.folder import RunFolder
from chainrule.errors import ConfigError
from chainrule.registry import MODELS, RUNS
from chainrule.runs.base import Run

R = TypeVar("R", bound=Run)


def load(
    path: str | Path,
    *,
    device: str = "auto",
    settings: Mapping[str, Any] | None = None,
    precision: str | None = None,
) -> Run:
    """The run in a folder, as the class of its task: a TranslatorRun, for example.

    Args:
        path: The folder.
        device: "cpu", "cuda" or "auto", which is the fastest there is.
        settings: Options that need no training, nested as in config.toml: {"model": {"gamma": 0.2}}.
        precision: Precision of the weights: "float32", or "int8": every matrix is rounded to 8 bits per weight, with
            one scale per row, and Transformers compute with 8-bit products. None: as they are stored, which is
            "float32" unless the run was exported with 8-bit weights.
    """
    model = RunFolder.open(path).read_config().model.name
    run: Run = RUNS.get(MODELS.get(model).task).make(path, device=device)
    if precision is not None:
        check_precision(precision, model, run.name)
        run.precision = precision
    for section, options in (settings or {}).items():
        if section != "model" or not isinstance(options, Mapping):
            raise ConfigError(
                f"--set {section} is for training; of a finished run some options of the model can be set, such as "
                "--set model.gamma=0.2"
            )
        run.adjust(**options)
    return run


def load_for(
    verb: str,
    kind: type[R],
    path: str | Path,
    *,
    device: str = "auto",
    settings: Mapping[str, Any] | None = None,
    precision: str | None = None,
) -> R:
    """The run in a folder, which must be of a kind that has `verb`."""
    run = load(path, device=device, settings=settings, precision=precision)
    if not isinstance(run, kind):
        raise run.missing(verb)
    return run
