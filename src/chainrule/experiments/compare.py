"""Comparing models on one text with one budget: a leaderboard.

Each model is an ordinary run in its own folder, so an interrupted comparison can be resumed, and a finished model is
not trained again.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chainrule.base.results import Results
from chainrule.base.targets import check_folder
from chainrule.checkpoint.folder import holds_runs
from chainrule.config import DataConfig, merge, parse_settings, read_toml
from chainrule.data.in_memory import Data, corpus_paths, joined_paths
from chainrule.errors import ConfigError, RunError
from chainrule.evaluation.measurement import Measurement
from chainrule.experiments.mix import mix as mix_runs
from chainrule.experiments.shared_options import held_out_options, options_for
from chainrule.experiments.train import train
from chainrule.registry import MODELS
from chainrule.runs.base import Run
from chainrule.runs.language_model import LanguageModelRun
from chainrule.runs.load import load
from chainrule.tasks.task import model_task
from chainrule.training.fitting.fitting import BUDGET, TrainingListener
from chainrule.training.request import text_name


@dataclass(frozen=True)
class Contender:
    """A model to compare, with its own options."""

    name: str
    model: str
    output: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)

    @property
    def folder(self) -> str:
        """The name of its folder."""
        return folder_name(self.name)


def folder_name(name: str) -> str:
    """The name of a contender, with each sequence of special characters replaced by a hyphen."""
    return re.sub(r"[^\w.+=-]+", "-", name).strip("-")


def parse_contenders(text: str) -> list[Contender]:
    """`lstm, lstm:adaptive, ngram(order=3, smoothing=additive)` -> one contender each."""
    names = [name.strip() for name in re.split(r",(?![^()]*\))", text) if name.strip()]
    if not names or not all(re.fullmatch(r"[^()]+(\([^()]*\))?", name) for name in names):
        raise ConfigError(
            f"--models is '{text}'; expected model names separated by commas, such as lstm,gru:adaptive,ngram(order=3)"
        )
    return [parse_contender(name) for name in names]


def parse_contender(name: str) -> Contender:
    """MODEL or MODEL:OUTPUT, optionally with options of the model in parentheses."""
    head, _, rest = name.partition("(")
    model, _, output = head.strip().partition(":")
    settings = [part.strip() for part in re.split(r",(?![^\[]*\])", rest.rstrip(")")) if part.strip()]
    if wrong := [part for part in settings if "=" not in part]:
        raise ConfigError(f"'{name}' has '{wrong[0]}' in parentheses; expected key=value, as in ngram(order=3)")
    return Contender(name, model, output or None, parse_settings(settings))


@dataclass(frozen=True)
class Row(Measurement):
    """One row of a leaderboard."""

    model: str
    parameters: int
    train_seconds: float
    peak_memory: int  # bytes
    tokens: int
    perplexity: float
    bits_per_byte: float
    train_tokens_per_second: float
    generate_tokens_per_second: float
    signature: str
    protocol: str
    run: str
    bleu: float | None = None  # translators only, as is the next
    exact_match: float | None = None
    precision: str = "float32"


def compare(
    *data: Data,
    models: str | Sequence[str | Contender],
    test: Data = (),
    mix: bool = False,
    int8: bool = False,
    config: str | Path | None = None,
    out: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    listener: TrainingListener | None = None,
    done: Callable[[Row], None] = lambda row: None,
    **options: Any,
) -> Results[Row]:
    """Train each model with the same options and measure it on `test` (default: the validation text), best first.

    Args:
        *data: The corpus, as in `train`.
        models: Names of models, in a list or separated by commas: MODEL or MODEL:OUTPUT, with options of its own in
            parentheses, as in `ngram(order=3)`.
        test: The data on which they are measured. Empty: the validation data.
        mix: Whether to add a mixture of the best n-gram model and the best network.
        int8: Whether to measure each network with 8-bit weights too, as a row of its own.
        config: A TOML file with options.
        out: Folder of the runs. None: runs/compare-TEXT.
        settings: Further options, nested as in config.toml; they win over the others.
        listener: Receives messages and progress, as in `train`.
        done: Called with the row of each model when it is measured.
        **options: Further options of `train`; each model gets those that have an effect on it.

    Returns:
        One row per model, best first, as a list with `to_pandas()`.
    """
    listener = listener or TrainingListener()
    contenders = _contenders(models)
    columns = model_task(contenders[0].model).columns(DataConfig(field=options.get("field") or "text"))
    files, measured = joined_paths(data, columns), corpus_paths(test, columns)
    options["valid"] = corpus_paths(options.get("valid", ()), columns)
    folder = Path(out) if out else Path("runs") / f"compare-{text_name(files[0])}"
    measured = measured or options["valid"]
    texts = [*files, *measured, *options["valid"]]
    check_folder(folder, lambda: holds_runs(folder) or _has_only(folder, texts))
    file = read_toml(config) if config else {}
    rows = []
    for contender in contenders:
        listener.note(f"{contender.name}:")
        run = _train(contender, files, file, folder / contender.folder, settings or {}, listener, options)
        rows.append(measure(contender.name, run, measured))
        done(rows[-1])
        if int8 and run.model.arrays is None:
            rounded = load(folder / contender.folder, precision="int8")
            rows.append(measure(f"{contender.name}, int8", rounded, measured))
            done(rows[-1])
    if mix and (pair := _best_pair([load(row.run) for row in rows if row.precision == "float32"])):
        rows.append(measure("mixture of the best two kinds", _mix(pair, folder, listener), measured))
        done(rows[-1])
    return Results(sorted(rows, key=lambda row: (math.isnan(row.bits_per_byte), row.bits_per_byte)))


def _train(
    contender: Contender,
    files: Sequence[str | Path],
    file: Mapping[str, Any],
    out: Path,
    settings: Mapping[str, Any],
    listener: TrainingListener,
    options: Mapping[str, Any],
) -> Run:
    """Train a contender with the options, of the file and of the call, that have an effect on it."""
    budget = {name: options[name] for name in BUDGET if name in options}
    budget = options_for(contender.model, {"training": budget})["training"]
    return train(
        *files,
        model=contender.model,
        output=contender.output,
        config=options_for(contender.model, file),
        out=out,
        settings=merge(
            merge(held_out_options(contender.model), options_for(contender.model, settings)),
            {"model": contender.options, "training": contender.training},
        ),
        listener=listener,
        **{name: value for name, value in options.items() if name not in BUDGET},
        **budget,
    )


def _has_only(folder: Path, files: Sequence[str | Path]) -> bool:
    """Whether a folder contains nothing but some of these files or folders."""
    inside = [Path(file).relative_to(folder) for file in files if folder in Path(file).parents]
    return set(folder.iterdir()) <= {folder / path.parts[0] for path in inside}


def _contenders(models: str | Sequence[str | Contender]) -> list[Contender]:
    if isinstance(models, str):
        contenders = parse_contenders(models)
    else:
        contenders = [parse_contender(model) if isinstance(model, str) else model for model in models]
    for contender in contenders:
        check_comparable(contender.model)
    return contenders


def check_comparable(model: str) -> None:
    """Refuse a model that has no bits per byte, because it gives a text no probability."""
    if not model_task(model).scores_text:
        raise ConfigError(f"{model} gives a text no probability, so it has no bits per byte to compare; leave it out")


def _best_pair(runs: Sequence[Run]) -> list[LanguageModelRun] | None:
    """The best n-gram model and the best network; None if there is only one kind.

    They are selected on the validation text, even if the models are measured on a test text.
    """
    best: dict[bool, tuple[float, LanguageModelRun]] = {}
    for run in runs:
        if not isinstance(run, LanguageModelRun):
            continue
        bits = run.evaluate_held_out().bits_per_byte
        is_counted = MODELS.get(run.config.model.name).fitting == "counting"
        if bits < best.get(is_counted, (math.inf, run))[0]:  # False for NaN, the bits of unnormalised scores
            best[is_counted] = (bits, run)
    return [best[is_counted][1] for is_counted in (True, False)] if len(best) == 2 else None


def _mix(runs: list[LanguageModelRun], folder: Path, listener: TrainingListener) -> LanguageModelRun:
    """The mixture of two runs, with weights fitted on the validation text of their training.

    The name of its folder depends on the weights of the network: a network that was trained further is mixed again.
    """
    name = "-and-".join(run.folder.given.name for run in runs)
    return mix_runs(runs, out=folder / f"mixture-of-{name}-{runs[1].fingerprint.hex()[:8]}", note=listener.note)


def measure(name: str, run: Any, test: Sequence[str]) -> Row:
    """Measure a finished run -> its row of the leaderboard."""
    if not run.result:
        raise RunError(f"{run.folder.path} was stopped before it was finished; rerun the same command to resume")
    measured = run.evaluate(test) if test else run.evaluate_held_out()
    figures = measured.to_dict()
    if run.precision == "float32":
        names = {"data": [Path(path).name for path in test]} if test else {}
        run.folder.write_figures({**figures, **names}, "test.json" if test else "valid.json")
    return Row(
        model=name,
        parameters=run.parameters,
        train_seconds=run.result["seconds"],
        peak_memory=run.result["peak_memory"],
        tokens=measured.tokens,
        perplexity=measured.perplexity,
        bits_per_byte=measured.bits_per_byte,
        train_tokens_per_second=run.result["tokens_per_second"],
        generate_tokens_per_second=run.generation_speed(),
        signature=measured.signature,
        protocol=measured.protocol,
        run=str(run.folder.given),
        bleu=figures.get("bleu"),
        exact_match=figures.get("exact_match"),
        precision=run.precision,
    )
