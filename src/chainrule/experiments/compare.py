"""Several models on one text at one budget, in one table.

Each model is an ordinary run in a folder of its own, so a comparison that was broken off goes on, and a finished model
is never trained again.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from chainrule.config import merge, parse_settings
from chainrule.errors import ConfigError, RunError
from chainrule.experiments.mix import mix as mix_runs
from chainrule.experiments.train import train
from chainrule.registry import MODELS
from chainrule.runs.base import Paths, Run
from chainrule.runs.language_model import LanguageModelRun
from chainrule.runs.load import load
from chainrule.tasks.task import model_task
from chainrule.training.fitting.fitting import TrainingListener
from chainrule.training.request import text_name


@dataclass(frozen=True)
class Contender:
    """A model that takes part, with what is special about it."""

    name: str
    model: str
    output: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)

    @property
    def folder(self) -> str:
        """The name as that of a folder."""
        return folder_name(self.name)


def folder_name(name: str) -> str:
    """A contender's name with other signs as hyphens."""
    return re.sub(r"[^\w.+=-]+", "-", name).strip("-")


def parse_contenders(text: str) -> list[Contender]:
    """`lstm, lstm:adaptive, ngram(order=3, smoothing=additive)` -> one contender each."""
    names = [name.strip() for name in re.split(r",(?![^()]*\))", text) if name.strip()]
    if not names or not all(re.fullmatch(r"[^()]+(\([^()]*\))?", name) for name in names):
        raise ConfigError(
            f"--models got '{text}'; it takes names with commas between, such as lstm,gru:adaptive,ngram(order=3)"
        )
    return [parse_contender(name) for name in names]


def parse_contender(name: str) -> Contender:
    """MODEL, MODEL:OUTPUT, either with options of the model in brackets."""
    head, _, rest = name.partition("(")
    model, _, output = head.strip().partition(":")
    settings = [part.strip() for part in re.split(r",(?![^\[]*\])", rest.rstrip(")")) if part.strip()]
    if wrong := [part for part in settings if "=" not in part]:
        raise ConfigError(f"'{name}' has '{wrong[0]}' in brackets; options are key=value, such as ngram(order=3)")
    return Contender(name, model, output or None, parse_settings(settings))


@dataclass(frozen=True)
class Row:
    """One line of a leaderboard."""

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
    bleu: float | None = None  # these two of translators
    exact_match: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """All of it as JSON values; JSON has no infinity and no NaN, so these become None."""
        return {name: _json(value) for name, value in asdict(self).items()}


def _json(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def compare(
    *data: str | Path,
    models: str | Sequence[str | Contender],
    test: Paths = (),
    mix: bool = False,
    out: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    listener: TrainingListener | None = None,
    done: Callable[[Row], None] = lambda row: None,
    **options: Any,
) -> list[Row]:
    """Train each model with the same options and measure it on `test` (else on the validation text), best first.

    `options` are those of `train`. A model is MODEL or MODEL:OUTPUT, with its own options in brackets, as in
    `ngram(order=3)`. `mix` adds the mixture of the best counted model and the best network.
    """
    listener = listener or TrainingListener()
    folder = Path(out) if out else Path("runs") / f"compare-{text_name(data[0])}"
    test = test or options.get("valid", ())
    rows = []
    for contender in _contenders(models):
        listener.note(f"{contender.name}:")
        run = train(
            *data,
            model=contender.model,
            output=contender.output,
            out=folder / contender.folder,
            settings=merge(settings or {}, {"model": contender.options, "training": contender.training}),
            listener=listener,
            **options,
        )
        rows.append(measure(contender.name, run, test))
        done(rows[-1])
    if mix and (pair := _best_pair([load(row.run) for row in rows])):
        rows.append(measure("mixture of the best two kinds", _mix(pair, folder, listener), test))
        done(rows[-1])
    return sorted(rows, key=lambda row: (math.isnan(row.bits_per_byte), row.bits_per_byte))


def _contenders(models: str | Sequence[str | Contender]) -> list[Contender]:
    if isinstance(models, str):
        contenders = parse_contenders(models)
    else:
        contenders = [parse_contender(model) if isinstance(model, str) else model for model in models]
    for contender in contenders:
        check_comparable(contender.model)
    return contenders


def check_comparable(model: str) -> None:
    """Only what gives a text a probability has bits per byte."""
    if not model_task(model).scores_text:
        raise ConfigError(f"{model} gives a text no probability, so it has no bits per byte to compare; leave it out")


def _best_pair(runs: Sequence[Run]) -> list[LanguageModelRun] | None:
    """The best counted model and the best network; None if one kind is missing.

    They are chosen on the validation text, whatever they are measured on: a test text chooses nothing.
    """
    best: dict[bool, tuple[float, LanguageModelRun]] = {}
    for run in runs:
        if not isinstance(run, LanguageModelRun):
            continue
        bits, kind = run.evaluate_held_out().bits_per_byte, MODELS.get(run.config.model.name).make.fitting == "counting"
        if bits < best.get(kind, (math.inf, run))[0]:  # never so for scores, whose bits are no number
            best[kind] = (bits, run)
    return [best[kind][1] for kind in (True, False)] if len(best) == 2 else None


def _mix(runs: list[LanguageModelRun], folder: Path, listener: TrainingListener) -> LanguageModelRun:
    """Their mixture, its weights fitted on the validation text of their training.

    A network that was trained on is another one, and so is its mixture: the name tells them apart.
    """
    name = "-and-".join(run.folder.path.name for run in runs)
    return mix_runs(runs, out=folder / f"mixture-of-{name}-{runs[1].fingerprint.hex()[:8]}", note=listener.note)


def measure(name: str, run: Any, test: Paths) -> Row:
    """A finished run's line of the leaderboard."""
    if not run.result:
        raise RunError(f"{run.folder.path} was stopped before it was finished; run the same command again to go on")
    measured = run.evaluate(test) if test else run.evaluate_held_out()
    figures = measured.to_dict()
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
        run=str(run.folder.path),
        bleu=figures.get("bleu"),
        exact_match=figures.get("exact_match"),
    )
