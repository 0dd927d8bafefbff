"""Learning curves: the validation loss of every model of a comparison after each validation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from chainrule.report.plot import Dot, scatter
from chainrule.runs.load import load

if TYPE_CHECKING:
    from chainrule.experiments.compare import Row


def picture(rows: Sequence[Row], title: str = "Learning curves") -> str:
    """Return the curves as SVG, best model first; a model without steps, for example an n-gram, is a level line."""
    curves = {row.model: curve(row.run) for row in rows}
    steps = [step for points in curves.values() for step, _ in points] or [1]
    dots = []
    for row in rows:
        points = curves[row.model] or [(step, validation_bits(row.run)) for step in sorted({min(steps), max(steps)})]
        labels = [""] * (len(points) - 1) + [f"{points[-1][1]:.2f}"]
        named = zip(labels, points, strict=True)
        dots += [Dot(row.model, label, step, bits) for label, (step, bits) in named if math.isfinite(bits)]
    return scatter(
        dots, title=title, x_title="optimiser steps", y_title="validation loss in bits per token (lower is better)"
    )


def curve(run: str) -> list[tuple[int, float]]:
    """Return step and validation loss, in bits per token, of every validation of a run."""
    log = load(run).folder.read_log()
    return [(line["step"], line["valid_loss"] / math.log(2)) for line in log if line.get("valid_loss") is not None]


def validation_bits(run: str) -> float:
    """Return the loss of a finished run on its validation data, in bits per token."""
    finished: Any = load(run)  # of a task that has a perplexity
    return math.log2(finished.evaluate_held_out().perplexity)
