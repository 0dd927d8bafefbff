"""Quality against decoding time: a table and a plot of all contenders in all their decoding modes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from chainrule.reports.charts.library import to_svg
from chainrule.reports.charts.tradeoff import TradeoffPoint, tradeoff

if TYPE_CHECKING:
    from chainrule.experiments.speed_quality import Point


def table(points: Sequence[Point]) -> list[tuple[str, ...]]:
    """Return the headings and one row of text per point."""
    translates = any(point.quality.bleu is not None for point in points)
    batches = sorted({batch for point in points for batch in point.milliseconds})
    unit = "ms/line" if translates else "ms/100 tokens"
    quality = ("BLEU", "BLEU lower-cased") if translates else ()
    headings = ("model", "way", "parameters", *quality, "bits/byte", "passes")
    rows = [(*headings, *(f"{unit}, batch {batch}" for batch in batches))]
    for point in points:
        measured = point.quality
        bleu = (f"{measured.bleu:.2f}", f"{measured.bleu_lowercase:.2f}") if translates else ()
        times = (f"{point.milliseconds[batch]:.2f}" if batch in point.milliseconds else "" for batch in batches)
        passes = "" if measured.passes is None else f"{measured.passes:.2f}"
        cells = (point.name, point.way, f"{point.parameters:,}", *bleu, f"{measured.bits_per_byte:.3f}", passes)
        rows.append((*cells, *times))
    return rows


def markdown(points: Sequence[Point]) -> str:
    """Return the table as Markdown."""
    first, *rest = table(points)
    lines = [first, ("---", "---", *("---:" for _ in first[2:])), *rest]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def picture(points: Sequence[Point], title: str = "") -> str:
    """Return the chart as SVG, with the Pareto front of each batch size."""
    translates = points[0].quality.bleu_lowercase is not None
    batches = sorted({batch for point in points for batch in point.milliseconds})
    dots = [
        TradeoffPoint(
            point.name,
            point.way,
            point.milliseconds[batch],
            float(point.quality.bleu_lowercase or 0) if translates else point.quality.bits_per_byte,
            group=f"batch {batch}",
        )
        for batch in batches
        for point in points
        if batch in point.milliseconds
    ]
    spec = tradeoff(
        dots,
        title=title,
        x_title="milliseconds per line" if translates else "milliseconds per 100 tokens",
        y_title="lower-cased BLEU (higher is better)" if translates else "bits per byte (lower is better)",
        lower_is_better=not translates,
    )
    return to_svg(spec)
