"""A figure by bucket, one line per series: bits by position or frequency, BLEU by length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from chainrule.reports.charts.library import Spec, alt
from chainrule.reports.charts.style import data, fade, finish, pick, series


class BucketPoint(NamedTuple):
    """The figure of a series in one bucket, and the number of items in it."""

    series: str
    bucket: str
    y: float
    items: int


def buckets(points: Sequence[BucketPoint], *, x_title: str, y_title: str, zero: bool = True) -> Spec:
    """The lines over the buckets, in the order given."""
    selection, order = pick(), list(dict.fromkeys(point.bucket for point in points))
    base = alt.Chart(data(point._asdict() for point in points)).encode(
        x=alt.X("bucket:O", title=x_title, sort=order, axis=alt.Axis(labelAngle=0)),
        y=alt.Y("y:Q", title=y_title, scale=alt.Scale(zero=zero)),
        color=series(point.series for point in points),
        opacity=fade(selection),
        tooltip=[
            alt.Tooltip("series:N", title="series"),
            alt.Tooltip("bucket:O", title=x_title),
            alt.Tooltip("y:Q", title=y_title, format=".4~f"),
            alt.Tooltip("items:Q", title="items", format=","),
        ],
    )
    line = base.mark_line(strokeWidth=2).add_params(selection)
    return finish(line + base.mark_point(filled=True, size=45), height=260)
