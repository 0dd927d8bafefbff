"""Learning curves: the validation loss of every model of a comparison after each validation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from chainrule.reports.charts.curves import CurvePoint, curves, level
from chainrule.reports.charts.library import to_svg
from chainrule.runs.load import load

if TYPE_CHECKING:
    from chainrule.experiments.compare import Row


def picture(rows: Sequence[Row], title: str = "Learning curves") -> str:
    """Return the curves as SVG, best model first; a model without steps, for example an n-gram, is a level line."""
    found = {row.model: curve(row.run) for row in rows}
    points = [CurvePoint(name, step, bits) for name, own in found.items() for step, bits in own if math.isfinite(bits)]
    for row in rows:
        if not found[row.model] and math.isfinite(bits := validation_bits(row.run)):
            points += level(row.model, bits, [point for point in points if point.series != row.model])
    order = {row.model: place for place, row in enumerate(rows)}
    spec = curves(
        sorted(points, key=lambda point: order[point.series]),
        x_title="optimiser steps",
        y_title="validation loss in bits per token (lower is better)",
        title=title,
        log_x=all(point.x > 0 for point in points),
    )
    return to_svg(spec)


def curve(run: str) -> list[tuple[int, float]]:
    """Return step and validation loss, in bits per token, of every validation of a run."""
    log = load(run).folder.read_log()
    return [(line["step"], line["valid_loss"] / math.log(2)) for line in log if line.get("valid_loss") is not None]


def validation_bits(run: str) -> float:
    """Return the loss of a finished run on its validation data, in bits per token."""
    finished: Any = load(run)  # of a task that has a perplexity
    return math.log2(finished.evaluate_held_out().perplexity)
