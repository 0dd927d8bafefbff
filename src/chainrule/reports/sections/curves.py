"""Learning curves by step, token and second, from the metrics that trainings log."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from chainrule.errors import ChainruleError
from chainrule.reports.blocks.block import Block
from chainrule.reports.blocks.chart import Chart
from chainrule.reports.blocks.table import Column, Table, decimals
from chainrule.reports.charts.curves import CurvePoint, curves, level
from chainrule.reports.section import Section
from chainrule.runs.base import Run
from chainrule.runs.language_model import LanguageModelRun

AXES = {"step": "optimiser steps", "tokens": "training tokens", "seconds": "seconds of training"}
"""What the curves are drawn over, and the titles of these axes."""

ABOUT = {"byte": " of its text, the spelling of unknown words included", "token": " of its tokeniser"}
"""What the unit of the loss means."""

FURTHER = {"bleu": "BLEU", "accuracy": "accuracy", "f1": "F1"}
"""Metrics of validations that have a chart of their own where they were measured, and their titles."""


@dataclass(frozen=True)
class Validation:
    """One validation of a training."""

    step: float
    tokens: float
    seconds: float
    figures: dict[str, float]  # `loss` in bits per token, and others

    def at(self, axis: str) -> float:
        """Where it is on an axis."""
        return {"step": self.step, "tokens": self.tokens, "seconds": self.seconds}[axis]


def validations(log: Sequence[dict[str, Any]]) -> list[Validation]:
    """The validations of a log; the number of tokens is interpolated between the training steps that are logged."""
    trained = [(0.0, 0.0), *((line["step"], line["tokens"]) for line in log if "tokens" in line)]
    steps, tokens = zip(*trained, strict=True)
    rate = tokens[-1] / steps[-1] if steps[-1] else 0.0
    found = []
    for line in log:
        if line.get("valid_loss") is not None:
            step = line["step"]
            read = float(np.interp(step, steps, tokens)) if step <= steps[-1] else rate * step
            figures = {
                name[6:]: value for name, value in line.items() if name.startswith("valid_") and value is not None
            }
            figures["loss"] /= math.log(2)
            found.append(Validation(step, read, line["seconds"], figures))
    return found


def learning_curves(runs: Mapping[str, Run]) -> Section | None:
    """Validation loss of each run, per byte where the validation data of all runs is text; None: there is no curve."""
    found = {name: validations(run.folder.read_log()) for name, run in runs.items()}
    if not any(found.values()):
        return None
    rates = {name: byte_rate(run) for name, run in runs.items() if found[name]}
    known = {name: rate for name, rate in rates.items() if rate is not None}
    unit = "byte" if len(known) == len(rates) else "token"
    points = {
        name: [_with_loss(one, known[name] if unit == "byte" else PER_TOKEN) for one in own]
        for name, own in found.items()
        if own
    }
    levels = {name: value for name, run in runs.items() if not found[name] and (value := _level(run, unit)) is not None}
    blocks: list[Block] = [_chart(points, levels, axis, list(runs), unit) for axis in AXES]
    blocks += [
        _further(found, name, title)
        for name, title in FURTHER.items()
        if any(name in one.figures for own in found.values() for one in own)
    ]
    return Section(
        "curves",
        "Learning curves",
        f"Loss on the validation data of each training, in bits per {unit}{ABOUT[unit]}. Runs without steps are "
        "level lines. Source: metrics.jsonl of the runs.",
        blocks,
    )


class ByteRate(NamedTuple):
    """What turns bits per token of a validation text into bits per byte."""

    tokens: float  # per byte
    residue: float  # bits per byte for what the tokens do not encode, such as the spelling of unknown words


PER_TOKEN = ByteRate(1.0, 0.0)
"""Leaves bits per token as they are."""


def byte_rate(run: Run) -> ByteRate | None:
    """The rate of a run's validation text; None: it cannot be read, or the data is no text."""
    if not isinstance(run, LanguageModelRun):
        return None
    try:
        store = run.open_held_out()
        return ByteRate(len(store) / store.bytes, store.residue_bits / store.bytes)
    except (ChainruleError, OSError):  # the text is gone, or on another machine
        return None


def _with_loss(one: Validation, rate: ByteRate) -> Validation:
    return replace(one, figures={**one.figures, "loss": rate.tokens * one.figures["loss"] + rate.residue})


def _level(run: Run, unit: str) -> float | None:
    """The loss of a run without steps on its validation text; None: it is not known."""
    if not isinstance(run, LanguageModelRun):
        return None
    try:
        measured = run.evaluate_held_out()
    except (ChainruleError, OSError):  # the text is gone, or on another machine
        return None
    bits = measured.bits_per_byte if unit == "byte" else math.log2(max(measured.perplexity, 1.0))
    return bits if math.isfinite(bits) else None


def _chart(
    found: Mapping[str, list[Validation]], levels: Mapping[str, float], axis: str, order: Sequence[str], unit: str
) -> Chart:
    drawn = [CurvePoint(name, one.at(axis), one.figures["loss"]) for name, own in found.items() for one in own]
    points = [*drawn, *(point for name, bits in levels.items() for point in level(name, bits, drawn))]
    points = sorted(points, key=lambda point: order.index(point.series))
    y_title = f"validation loss in bits per {unit}"
    return Chart(
        f"Validation loss by {AXES[axis]}",
        curves(points, x_title=AXES[axis], y_title=y_title, log_x=all(point.x > 0 for point in points)),
        Table([Column("run"), Column(AXES[axis], decimals(1)), Column(y_title, decimals(4))], points, folded=True),
    )


def _further(found: dict[str, list[Validation]], name: str, title: str) -> Chart:
    points = list(_points_of(found, name))
    return Chart(
        f"Validation {title} by optimiser steps",
        curves(points, x_title=AXES["step"], y_title=title),
        Table([Column("run"), Column(AXES["step"], decimals(0)), Column(title, decimals(4))], points, folded=True),
    )


def _points_of(found: dict[str, list[Validation]], name: str) -> Iterator[CurvePoint]:
    for series, own in found.items():
        yield from (CurvePoint(series, one.step, one.figures[name]) for one in own if name in one.figures)
