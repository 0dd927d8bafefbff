"""`train`: from options to a trained run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chainrule.config import RunConfig
from chainrule.data.in_memory import Columns, Data, corpus_paths, joined_paths
from chainrule.experiments.mix import train_mixture
from chainrule.runs.base import Run
from chainrule.runs.load import load
from chainrule.tasks.task import task_of
from chainrule.training.fit import fit
from chainrule.training.fitting.fitting import TrainingListener
from chainrule.training.request import default_folder, make_config


def train(
    *data: Data,
    model: str | None = None,
    valid: Data = (),
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
    label_field: str | None = None,
    pair_field: str | None = None,
    source_field: str | None = None,
    target_field: str | None = None,
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
        "data": {
            "field": field,
            "label_field": label_field,
            "pair_field": pair_field,
            "source_field": source_field,
            "target_field": target_field,
        },
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
    columns = _columns(make_config(config, named, settings or {}))
    named["data"] |= {"train": joined_paths(data, columns), "valid": corpus_paths(valid, columns)}
    whole = make_config(config, named, settings or {})
    folder = Path(out) if out else default_folder(whole)
    if "parts" in whole.model.options:  # a recipe for a mixture
        return train_mixture(whole, folder, listener or TrainingListener())
    return fit_run(whole, folder, listener)


def _columns(config: RunConfig) -> Columns:
    """The columns that a training reads of data in memory."""
    return task_of(config).columns(config.data)


def fit_run(config: RunConfig, out: str | Path, listener: TrainingListener | None = None) -> Run:
    """Train what a configuration describes -> its run, which keeps the model and the data in memory."""
    fitted = fit(config, out, listener)
    run = load(fitted.folder.path)
    run.keep(fitted.model, fitted.corpus)
    return run
