"""A reliability diagram: how often predictions of a probability are correct. On the diagonal, a model is calibrated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from chainrule.reports.charts.library import Spec, alt
from chainrule.reports.charts.style import data, fade, finish, pick, series

SIDE = 340


class ReliabilityPoint(NamedTuple):
    """A bin of predictions of one series."""

    series: str
    confidence: float
    frequency: float
    items: int


def reliability_diagram(points: Sequence[ReliabilityPoint], *, x_title: str, y_title: str) -> Spec:
    """Frequency against probability, both from 0 to 1; the area of a point grows with its predictions."""
    selection, unit = pick(), alt.Scale(domain=[0, 1])
    diagonal = alt.Chart(alt.Data(values=[{"p": 0}, {"p": 1}])).mark_line(color="#777", strokeDash=[4, 3], aria=False)
    base = alt.Chart(data(point._asdict() for point in points)).encode(
        x=alt.X("confidence:Q", title=x_title, scale=unit),
        y=alt.Y("frequency:Q", title=y_title, scale=unit),
        color=series(point.series for point in points),
        opacity=fade(selection, 0.9),
        tooltip=[
            alt.Tooltip("series:N", title="series"),
            alt.Tooltip("confidence:Q", title=x_title, format=".3f"),
            alt.Tooltip("frequency:Q", title=y_title, format=".3f"),
            alt.Tooltip("items:Q", title="predictions", format=","),
        ],
    )
    sizes = alt.Size("items:Q", legend=None, scale=alt.Scale(type="sqrt", range=[20, 220]))
    dots = base.mark_point(filled=True).encode(size=sizes)
    lines = base.mark_line(strokeWidth=1.5).add_params(selection)
    return finish(diagonal.encode(x="p:Q", y="p:Q") + lines + dots, width=SIDE + 60, height=SIDE)
