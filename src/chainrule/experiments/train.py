"""`train`: from options to a trained run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chainrule.config import RunConfig
from chainrule.experiments.mix import train_mixture
from chainrule.runs.base import Paths, Run, path_strings
from chainrule.runs.load import load
from chainrule.training.fit import fit
from chainrule.training.fitting.fitting import TrainingListener
from chainrule.training.request import default_folder, make_config


def train(
    *data: str | Path,
    model: str | None = None,
    valid: Paths = (),
    tokenizer: str | None = None,
    vocab_size: int | None = None,
    output: str | None = None,
    objective: str | None = None,
    init: str | Path | None = None,
    init_embedding: str | Path | None = None,
    config: str | Path | Mapping[str, Any] | None = None,
    minutes: float | None = None,
    steps: int | None = None,
    epochs: float | None = None,
    seed: int | None = None,
    device: str | None = None,
    memory: str | None = None,
    max_tokens: int | None = None,
    field: str | None = None,
    out: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    listener: TrainingListener | None = None,
    **model_options: Any,
) -> Run:
    """Train a model on data; the same call again resumes.

    `config` is a TOML file or its contents. `settings` are nested as in config.toml; `model_options` belong to its
    section `model`, for example order=3.
    """
    named: dict[str, Any] = {
        "seed": seed,
        "init": None if init is None else str(init),
        "init_embedding": None if init_embedding is None else str(init_embedding),
        "data": {"train": [str(path) for path in data], "valid": path_strings(valid), "field": field},
        "tokenizer": {"kind": tokenizer, "vocab_size": vocab_size},
        "model": {"name": model, **model_options},
        "output": {"name": output},
        "objective": {"name": objective},
        "training": {
            "minutes": minutes,
            "steps": steps,
            "epochs": epochs,
            "device": device,
            "memory": memory,
            "max_tokens": max_tokens,
        },
    }
    whole = make_config(config, named, settings or {})
    folder = Path(out) if out else default_folder(whole)
    if "parts" in whole.model.options:  # a recipe for a mixture
        return train_mixture(whole, folder, listener or TrainingListener())
    return fit_run(whole, folder, listener)


def fit_run(config: RunConfig, out: str | Path, listener: TrainingListener | None = None) -> Run:
    """Train what a configuration describes -> its run, which keeps the model and the data in memory."""
    fitted = fit(config, out, listener)
    run = load(fitted.folder.path)
    run.keep(fitted.model, fitted.corpus)
    return run
