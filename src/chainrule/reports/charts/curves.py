"""Curves: a figure after each step, token or second, one line per series, zoomed by scrolling in a page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from chainrule.reports.charts.library import Spec, alt
from chainrule.reports.charts.style import data, fade, finish, pick, series

MOST = 400
"""Points per line; longer ones are thinned evenly."""


class CurvePoint(NamedTuple):
    """A point of a curve."""

    series: str
    x: float
    y: float


def curves(points: Sequence[CurvePoint], *, x_title: str, y_title: str, title: str = "", log_x: bool = False) -> Spec:
    """The curves; a series with one point is a level line, as that of a model without steps."""
    kept = thin(points)
    selection = pick()
    base = alt.Chart(data(point._asdict() for point in kept)).encode(
        x=alt.X(
            "x:Q",
            title=x_title,
            scale=alt.Scale(type="log" if log_x else "linear", nice=not log_x),
            axis=alt.Axis(format="~s" if max(point.x for point in kept) >= 1000 else "~g"),
        ),
        y=alt.Y("y:Q", title=y_title, scale=alt.Scale(zero=False)),
        color=series(point.series for point in kept),
        opacity=fade(selection),
        tooltip=[
            alt.Tooltip("series:N", title="series"),
            alt.Tooltip("x:Q", title=x_title, format=",.6~g"),
            alt.Tooltip("y:Q", title=y_title, format=".4f"),
        ],
    )
    line = base.mark_line(strokeWidth=2).add_params(selection, alt.selection_interval(bind="scales"))
    few = len(kept) <= 30 * len({point.series for point in kept})
    return finish(line + base.mark_point(filled=True, size=30) if few else line, title)


def thin(points: Sequence[CurvePoint], most: int = MOST) -> list[CurvePoint]:
    """At most `most` points of each series, its first and last among them."""
    kept: list[CurvePoint] = []
    for name in dict.fromkeys(point.series for point in points):
        own = [point for point in points if point.series == name]
        step = (len(own) - 1) / (most - 1) if len(own) > most else 1.0
        kept += [own[round(place * step)] for place in range(min(most, len(own)))]
    return kept


def level(name: str, y: float, others: Sequence[CurvePoint]) -> list[CurvePoint]:
    """A level line over the range of other curves, for a model without steps."""
    xs = [point.x for point in others] or [0.0, 1.0]
    return [CurvePoint(name, min(xs), y), CurvePoint(name, max(xs), y)]
