"""`tune`: fit, on validation data, the options of a finished run that need no training, and save them in the run.

    model options      declared live in the model's file with their search: γ, thresholds; by loss or BLEU
    decoding options   beam width and length penalty of translators; by BLEU
    weights            of a mixture; by EM
    temperature        of a mixture, given its weights; by Newton's method

Options with a list of choices are tried in all combinations if these are few, else one option after the other; those
with a range follow by golden-section search. Each trial is one evaluation on the validation data.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Literal

import torch

from chainrule.base.minimize import best_of, golden_section, grid
from chainrule.base.tables import show_fields
from chainrule.checkpoint.build import adjust, live_values
from chainrule.config import NamedSection
from chainrule.data.in_memory import Data
from chainrule.errors import ConfigError, unknown_name
from chainrule.evaluation.measurement import Measurement
from chainrule.experiments.mix import refit_temperature, refit_weights, save_weights
from chainrule.models.options import LiveOption, live_options
from chainrule.runs.base import EvaluatedRun, Run, ValidationMeasures
from chainrule.runs.load import load

WEIGHTS = "weights"
MAX_COMBINATIONS = 16
MAX_TOKENS, MAX_PAIRS = 200_000, 500
"""Validation tokens of a language model, and pairs of a translator, on which options are tried."""

Metric = Literal["loss", "bleu"]
Values = dict[str, Any]


@dataclass(frozen=True)
class Tuning(Measurement):
    """What `tune` found: each option and each metric before and after."""

    run: str
    data: str
    options: dict[str, Values]  # {"model.gamma": {"before": 0.1, "after": 0.31}}
    metrics: dict[str, Values]  # {"loss": {"before": 1.52, "after": 1.49}}
    evaluations: int
    seconds: float
    saved: bool
    tried: list[Values]  # every trial: the options tried, and the metric
    signature: str

    def show(self) -> str:
        """Return the options and metrics before and after as text for people."""
        changes = {**self.options, **self.metrics}
        shown = {name: f"{_short(each['before'])} -> {_short(each['after'])}" for name, each in changes.items()}
        rest = {"run": self.run, "data": self.data, **shown, "evaluations": self.evaluations, "seconds": self.seconds}
        return show_fields({**rest, "saved": "yes" if self.saved else "no"})


def _short(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(_short(each) for each in value) + "]"
    return f"{value:.4f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def tune(
    run: str | Path | Run,
    *,
    valid: Data | None = None,
    options: Sequence[str] | None = None,
    by: Metric = "loss",
    limit: int | None = None,
    dry_run: bool = False,
    note: Callable[[str], None] = lambda text: None,
) -> Tuning:
    """Fit the live options of a finished run on validation data and save them in the run.

    Args:
        run: A run, or its folder.
        valid: Validation data, as for `train`. None: the validation data of the training.
        options: Names of the options to tune, for example "model.gamma". None: all.
        by: What selects the model options of a translator: "loss" of the references, or "bleu" of its translations.
            Decoding options are always selected by BLEU.
        limit: Number of validation tokens, or pairs, to use. None: 200,000 tokens or 500 pairs.
        dry_run: Whether only to report, without changing the run.
        note: Called with a line of text for every trial.
    """
    loaded = run if isinstance(run, Run) else load(run)
    if not isinstance(loaded, EvaluatedRun):
        raise loaded.missing("tune")
    began, found = time.monotonic(), _choose(loaded, options)
    limit = limit or (MAX_PAIRS if loaded.unit == "lines" else MAX_TOKENS)
    tuner = _Tuner(loaded, loaded.validation_measures(valid, limit), note)
    before = tuner.values()
    tuner.tune_options("model", found["model"], by)
    tuner.tune_options("decoding", found["decoding"], "bleu")
    tuner.tune_mixture({one.name for some in found.values() for one in some}, valid, limit)
    fields = tuner.result({f"{section}.{one.name}" for section, some in found.items() for one in some}, before)
    result = Tuning(**{**fields, "seconds": round(time.monotonic() - began, 2), "saved": not dry_run})
    tuner.restore(before) if dry_run else _save(loaded, tuner, result, valid)
    return result


def _choose(run: EvaluatedRun, names: Sequence[str] | None) -> dict[str, list[LiveOption]]:
    """The options to tune by section; an unknown name, or nothing to tune, is an error."""
    known = {
        "model": [one for one in live_options(type(run.model.config)) if one.searchable],
        "decoding": list(run.decoding_options),
        WEIGHTS: [LiveOption("mixture")] if run.model.has_parts else [],
    }
    known["model"] = [one for one in known["model"] if _may_apply(one, run.model.config, known["model"])]
    every = {f"{section}.{one.name}": (section, one) for section, some in known.items() for one in some}
    if not every:
        raise ConfigError(f"{run.name} has no options to tune: all of its options are fixed by its training")
    for name in names or ():
        if name not in every:
            raise unknown_name("option to tune", name, every)
    kept = [every[name] for name in every if names is None or name in names]
    return {section: [one for where, one in kept if where == section] for section in known}


def _may_apply(option: LiveOption, config: Any, others: list[LiveOption]) -> bool:
    """Whether the option has an effect now, or for some value of the other options."""
    values = config.model_dump()
    free = {one.name: one.choices for one in others if one.choices}
    conditions = (option.where or {}).items()
    return all(name not in values or values[name] in ok or set(free.get(name, ())) & set(ok) for name, ok in conditions)


class _Tuner:
    """Tries options of one run."""

    def __init__(self, run: EvaluatedRun, measures: ValidationMeasures, note: Callable[[str], None]) -> None:
        self.run, self.data, self.note = run, measures, note
        self.tried: list[Values] = []
        self.figures: dict[str, Values] = {}

    # Options

    def values(self) -> dict[str, Values]:
        """The values of all live options and decoding defaults by section."""
        own = self.run.config.decoding.model_dump()
        names = [one.name for one in self.run.decoding_options]
        return {
            "model": live_values(self.run.model),
            "decoding": {
                name: getattr(self.run.decoding_defaults, name) if own[name] is None else own[name] for name in names
            },
        }

    def assign(self, section: str, values: Values) -> None:
        if section == "model":
            adjust(self.run.model, values)
        else:
            decoding = self.run.config.decoding.model_copy(update=values)
            self.run.config = self.run.config.model_copy(update={"decoding": decoding})

    def restore(self, before: dict[str, Values]) -> None:
        """Set all options, and the weights of a mixture, to earlier values."""
        for section, values in before.items():
            if values:
                self.assign(section, values)
        if self.weights is not None:
            self.run.model.weights.copy_(torch.tensor(self.weights["before"]))

    def measure(self, metric: str) -> float:
        """The metric of the run as it is set, negated if larger is better."""
        figure = self.data.measures[metric]()
        return -figure if metric == "bleu" else figure

    def tune_options(self, section: str, options: list[LiveOption], metric: str) -> None:
        """Find the best values of some options and set them."""
        options = [one for one in options if not one.fitted]
        if not options:
            return
        if metric not in self.data.measures:
            raise ConfigError(f"{self.run.name} is not measured by {metric}; leave --by out")
        self._note_figure(metric, "before", self.measure(metric))
        for chosen in _groups([one for one in options if one.choices]):
            self._try_choices(section, metric, chosen)
        for option in options:
            if option.low is not None and option.applies(self._current(section)):
                self._try_range(section, metric, option)
        self._note_figure(metric, "after", self.measure(metric))

    def _try_choices(self, section: str, metric: str, options: list[LiveOption]) -> None:
        names = [option.name for option in options]

        def trial(values: tuple[Any, ...]) -> float:
            return self._trial(section, metric, dict(zip(names, values, strict=True)))

        current = tuple(self._current(section)[name] for name in names)
        best = best_of(grid(trial, self._combinations(section, options)), current)
        self.assign(section, dict(zip(names, best, strict=True)))

    def _try_range(self, section: str, metric: str, option: LiveOption) -> None:
        assert option.low is not None
        assert option.high is not None
        current = self._current(section)[option.name]

        def trial(value: float) -> float:
            return self._trial(section, metric, {option.name: value})

        tried = [(current, trial(current)), *golden_section(trial, option.low, option.high)]
        self.assign(section, {option.name: best_of(tried, current)})

    def _trial(self, section: str, metric: str, values: Values) -> float:
        self.assign(section, values)
        figure = self.measure(metric)
        named = {f"{section}.{name}": value for name, value in values.items()}
        self.tried.append({**named, metric: abs(figure)})
        self.note(", ".join(f"{name} {_short(value)}" for name, value in self.tried[-1].items()))
        return figure

    def _combinations(self, section: str, options: list[LiveOption]) -> list[tuple[Any, ...]]:
        """All combinations of the choices and the current values, without those that differ in nothing of effect."""
        current = self._current(section)
        choices = [dict.fromkeys([current[option.name], *option.choices]) for option in options]
        return list(dict.fromkeys(_effective(options, combination, current) for combination in product(*choices)))

    def _current(self, section: str) -> Values:
        whole = self.run.model.config.model_dump() if section == "model" else {}
        return whole | self.values()[section]

    # Mixtures

    def tune_mixture(self, names: set[str], valid: Data | None, limit: int) -> None:
        """Fit the weights of a mixture by EM, then its temperature."""
        if not names & {"mixture", "temperature"}:
            return
        before, values = self.measure("loss"), self.values()
        self._note_figure("loss", "before", before)
        if "mixture" in names:
            own, fitted = refit_weights(self.run, valid, limit)
            self.tried.append({"weights.mixture": fitted})
            self.weights = {"before": own, "after": fitted}
        if "temperature" in names:
            refit_temperature(self.run, valid, limit)
            self.tried.append({"model.temperature": self.run.model.config.temperature})
        after = self.measure("loss")
        if after > before:  # EM ignores the temperature, so its weights may be worse with that of the run
            self.restore(values)
            self.weights, after = self.weights and dict.fromkeys(self.weights, self.weights["before"]), before
        self._note_figure("loss", "after", after)

    # Results

    weights: Values | None = None

    def _note_figure(self, metric: str, when: str, figure: float) -> None:
        figures = self.figures.setdefault(metric, {})
        if when == "after" or when not in figures:
            figures[when] = abs(figure)

    def result(self, names: set[str], before: dict[str, Values]) -> Values:
        """The fields of a `Tuning`, without time and whether it was saved."""
        after = self.values()
        changes = {
            f"{section}.{name}": {"before": value, "after": after[section][name]}
            for section, values in before.items()
            for name, value in values.items()
            if f"{section}.{name}" in names
        }
        if self.weights is not None:
            changes["weights.mixture"] = self.weights
        return {
            "run": str(self.run.folder.given),
            "data": self.data.data,
            "options": changes,
            "metrics": self.figures,
            "evaluations": len(self.tried) + 2 * len(self.figures),
            "tried": self.tried,
            "signature": self.data.signature,
        }


def _groups(options: list[LiveOption]) -> Iterator[list[LiveOption]]:
    """All options together if their combinations are few, else one by one."""
    combinations = 1
    for option in options:
        combinations *= len(option.choices)
    yield from [options] if options and combinations <= MAX_COMBINATIONS else [[option] for option in options]


def _effective(options: list[LiveOption], values: tuple[Any, ...], current: Values) -> tuple[Any, ...]:
    """The values, with the current one for each option that has no effect given the others."""
    config = {**current, **{option.name: value for option, value in zip(options, values, strict=True)}}
    pairs = zip(options, values, strict=True)
    return tuple(value if option.applies(config) else current[option.name] for option, value in pairs)


def _save(run: EvaluatedRun, tuner: _Tuner, result: Tuning, valid: Data | None) -> None:
    """Write the options to config.toml, the weights of a mixture to its file, and a record to tuning.json."""
    if tuner.weights is not None:
        save_weights(run)
    values = tuner.values()
    model = NamedSection(name=run.config.model.name, **{**run.config.model.options, **values["model"]})
    run.config = run.config.model_copy(update={"model": model})
    run.folder.change_config(run.config)
    run.folder.add_tuning({**result.to_dict(), "valid": None if valid is None else run.files(valid)})
