"""A score of each system with its interval, best first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from chainrule.reports.charts.library import Spec, alt
from chainrule.reports.charts.style import COLOURS, data, finish

ROW = 26
"""Pixels per system."""


class IntervalPoint(NamedTuple):
    """The score of a system, and the bounds of its interval; equal to the score where there is none."""

    series: str
    value: float
    low: float
    high: float


def intervals(points: Sequence[IntervalPoint], *, x_title: str) -> Spec:
    """A point with a rule for each system, in the order given."""
    base = alt.Chart(data(point._asdict() for point in points)).encode(
        y=alt.Y("series:N", title=None, sort=[point.series for point in points], axis=alt.Axis(labelLimit=260)),
        tooltip=[
            alt.Tooltip("series:N", title="series"),
            alt.Tooltip("value:Q", title=x_title, format=".4f"),
            alt.Tooltip("low:Q", title="from", format=".4f"),
            alt.Tooltip("high:Q", title="to", format=".4f"),
        ],
    )
    x = alt.X("low:Q", title=x_title, scale=alt.Scale(zero=False))
    rule = base.mark_rule(strokeWidth=2, color=COLOURS[0]).encode(x=x, x2="high:Q")
    dot = base.mark_point(filled=True, size=70, color=COLOURS[0], opacity=1).encode(x=alt.X("value:Q", title=x_title))
    # Names may be wider in a browser than in the font with which the chart is laid out.
    return {**finish(rule + dot, height=ROW * len(points)), "padding": {"left": 30, "right": 5, "top": 5, "bottom": 5}}
