"""`train`: from options to a trained run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from inspect import signature
from pathlib import Path
from typing import Any

from chainrule.config import RunConfig
from chainrule.data.in_memory import Columns, Data, corpus_paths, joined_paths
from chainrule.errors import ConfigError
from chainrule.experiments.mix import train_mixture
from chainrule.interop.formats import find_format
from chainrule.registry import MODELS
from chainrule.runs.base import Run
from chainrule.runs.load import load
from chainrule.tasks.task import task_of
from chainrule.training.display import display_for
from chainrule.training.fit import Check, fit
from chainrule.training.fitting.fitting import TrainingListener
from chainrule.training.request import BUDGET, default_folder, make_config, resumed_config


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
    export_to: str | None = None,
    log: str | Sequence[str] = (),
    settings: Mapping[str, Any] | None = None,
    progress: bool = True,
    listener: TrainingListener | None = None,
    **model_options: Any,
) -> Run:
    """Train a model on data; the same call again resumes, and so does `out` alone.

    Args:
        *data: The corpus: paths, or texts, rows, columns or a frame in memory.
        model: Name of the model. None: "lstm".
        valid: The validation data, as `data`. Empty: the end of the corpus is held out.
        tokenizer: Kind of tokeniser, or the path of its file. None: chosen from the text.
        vocab_size: Largest number of tokens. None: chosen from the text.
        output: Name of the output layer. None: "softmax".
        objective: Name of the objective. None: that of the model.
        init: A run whose weights and tokeniser are the start.
        init_embedding: A run or file whose word vectors are the initial embedding.
        config: A TOML file with options, or its contents.
        minutes: Budget in minutes.
        steps: Budget in training steps.
        epochs: Budget in passes over the data.
        seed: Random seed. None: 1.
        device: "cpu", "cuda" or "auto". None: "auto".
        memory: n-grams: bound of the memory for counting, for example "1G".
        max_tokens: Pairs: largest size of a batch in tokens.
        field: Name of the column or JSON field with the texts. None: "text".
        label_field: Name of the column or JSON field with the labels. None: "label".
        pair_field: Name of the column or JSON field with the second text of a pair. None: "text_pair".
        source_field: Name of the column or JSON field with the sources. None: "source".
        target_field: Name of the column or JSON field with the targets. None: "target".
        out: Folder of the run. None: runs/MODEL-TEXT.
        export_to: Name of a format. Options that it cannot represent are refused before training.
        log: Trackers that receive the lines of metrics.jsonl too: "tensorboard", "trackio", "wandb", "mlflow".
        settings: Further options, nested as in config.toml; they win over the others.
        progress: Whether progress is shown on a terminal or in a notebook; elsewhere nothing is.
        listener: Receives messages (`note`), the bytes tokenised (`tokenized`) and training steps (`update`) instead.
        **model_options: Options of the model, for example order=3.

    Returns:
        The run, whose class depends on the task of the model.
    """
    _check_spelling(model, model_options)
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
            "log": [log] if isinstance(log, str) else list(log),
        },
    }
    if not data and config is None and not (settings or {}).get("data", {}).get("train"):
        config = resumed_config(out)
        if minutes or steps or epochs:  # another budget replaces the old one
            config["training"] = {key: value for key, value in config["training"].items() if key not in BUDGET}
    columns = _columns(make_config(config, named, settings or {}))
    named["data"] |= {"train": joined_paths(data, columns), "valid": corpus_paths(valid, columns)}
    whole = make_config(config, named, settings or {})
    folder = Path(out) if out else default_folder(whole)
    check = None if export_to is None else find_format(export_to).check
    if check is not None:
        check(whole)
    with display_for(listener, progress) as shown:
        if "parts" in whole.model.options:  # a recipe for a mixture
            return train_mixture(whole, folder, shown)
        return fit_run(whole, folder, shown, check)


def _check_spelling(model: str | None, options: Mapping[str, Any]) -> None:
    """Refuse a misspelt parameter of `train`, which would be taken for an option of the model."""
    known = MODELS.get(model).make.Config.model_fields if model in MODELS.peek_names() else {}
    parameters = [name for name in signature(train).parameters if name not in ("data", "model_options")]
    for name in options:
        close = [] if name in known else get_close_matches(name, parameters, n=1, cutoff=0.8)
        if close:
            raise ConfigError(f"unknown parameter '{name}': did you mean '{close[0]}'?")


def _columns(config: RunConfig) -> Columns:
    """The columns that a training reads of data in memory."""
    return task_of(config).columns(config.data)


def fit_run(
    config: RunConfig, out: str | Path, listener: TrainingListener | None = None, check: Check | None = None
) -> Run:
    """Train what a configuration describes -> its run, which keeps the model and the data in memory.

    `check` is called before the first step with the options that are known by then.
    """
    fitted = fit(config, out, listener, check)
    run = load(fitted.folder.path)
    run.keep(fitted.model, fitted.corpus)
    return run
