"""Quality against time or size: points, the Pareto front, and labels only for what is on the front.

Everything else has its name in the legend, in its tooltip, and in the table that belongs to the chart.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from chainrule.reports.charts.library import Spec, alt
from chainrule.reports.charts.style import data, fade, finish, pick, series

WIDTH, HEIGHT, LETTER = 680, 420, 6.0
"""Pixels of the chart, and of a letter of a label on average."""

Box = tuple[float, float, float, float]
"""Left, top, right and bottom in pixels."""


class Side(NamedTuple):
    """Where a label is, seen from its point, in pixels."""

    align: str
    baseline: str
    dx: int
    dy: int

    def box(self, x: float, y: float, width: float) -> Box:
        """The place of a label of a width at a point."""
        left = x + self.dx - (width if self.align == "right" else 0)
        top = y + self.dy - (13 if self.baseline == "bottom" else 0)
        return left, top, left + width, top + 13


SIDES = {
    "right": Side("left", "bottom", 7, -4),
    "left": Side("right", "bottom", -7, -4),
    "below_right": Side("left", "top", 7, 4),
    "below_left": Side("right", "top", -7, 4),
}
"""In the order in which they are tried."""


class TradeoffPoint(NamedTuple):
    """A point of a series; the points of one `group` (a batch size) are compared with one another."""

    series: str
    label: str
    x: float  # above 0
    y: float
    group: str = ""


def tradeoff(
    points: Sequence[TradeoffPoint], *, x_title: str, y_title: str, lower_is_better: bool, title: str = ""
) -> Spec:
    """The points with the Pareto front of each group: less x is better, and more or less y."""
    front = [point for group in _groups(points) for point in pareto(group, lower_is_better=lower_is_better)]
    sides = _place_labels(front, points)
    rows = [{**point._asdict(), "name": _name(point), **_texts(point, sides.get(point))} for point in points]
    selection = pick()
    x = alt.X("x:Q", title=x_title, scale=alt.Scale(type="log", nice=False, padding=30))
    y = alt.Y("y:Q", title=y_title, scale=alt.Scale(zero=False, nice=False, padding=20))
    base = alt.Chart(data(rows)).encode(x=x, y=y, opacity=fade(selection, 0.9))
    several = len({point.group for point in points}) > 1
    shape = {"shape": alt.Shape("group:N", legend=alt.Legend(title=None, orient="top"))} if several else {}
    dots = base.mark_point(filled=True, size=80).encode(
        color=series(point.series for point in points),
        tooltip=[
            alt.Tooltip("name:N", title="model"),
            *([alt.Tooltip("group:N", title="group")] if several else []),
            alt.Tooltip("x:Q", title=x_title, format=".4~g"),
            alt.Tooltip("y:Q", title=y_title, format=".4~f"),
        ],
        **shape,
    )
    line = alt.Chart(data(point._asdict() for point in front)).mark_line(
        interpolate="step-after", strokeDash=[4, 3], color="#777", strokeWidth=1.2
    )
    fronts = line.encode(x=x, y=y, detail="group:N")
    labels = [
        base.mark_text(align=side.align, baseline=side.baseline, dx=side.dx, dy=side.dy, fontSize=11).encode(
            text=f"{name}:N"
        )
        for name, side in SIDES.items()
    ]
    return finish(alt.layer(fronts, dots.add_params(selection), *labels), title, width=WIDTH, height=HEIGHT)


def pareto(points: Sequence[TradeoffPoint], *, lower_is_better: bool) -> list[TradeoffPoint]:
    """The points that no other beats in both x and y, by ascending x."""
    front: list[TradeoffPoint] = []
    sign = 1 if lower_is_better else -1
    for point in sorted(points, key=lambda one: (one.x, sign * one.y)):
        if not front or sign * point.y < sign * front[-1].y:
            front.append(point)
    return front


def _groups(points: Sequence[TradeoffPoint]) -> list[list[TradeoffPoint]]:
    return [[one for one in points if one.group == group] for group in dict.fromkeys(one.group for one in points)]


def _name(point: TradeoffPoint) -> str:
    return f"{point.series}, {point.label}" if point.label else point.series


def _place_labels(front: Sequence[TradeoffPoint], points: Sequence[TradeoffPoint]) -> dict[TradeoffPoint, str]:
    """The points of the front that have a label, and its side: no label covers another, a point or a front.

    Positions are estimated in pixels; the chart shows the series by colour, so a label is only what is special.
    """
    place = _pixels(points)
    taken = [(x - 5, y - 5, x + 5, y + 5) for x, y in place.values()]
    taken += [box for group in _groups(front) for box in _steps([place[point] for point in group])]
    placed: dict[TradeoffPoint, str] = {}
    for point in front:
        for name, side in SIDES.items():
            box = side.box(*place[point], LETTER * len(_label(point)))
            inside = box[0] > 0 and box[1] > 0 and box[2] < WIDTH + 90 and box[3] < HEIGHT
            if inside and not any(_overlap(box, other) for other in taken):
                taken.append(box)
                placed[point] = name
                break
    return placed


def _pixels(points: Sequence[TradeoffPoint]) -> dict[TradeoffPoint, tuple[float, float]]:
    """Where each point is drawn."""
    logs, values = [math.log10(point.x) for point in points], [point.y for point in points]
    wide, high = (max(logs) - min(logs)) or 1.0, (max(values) - min(values)) or 1.0
    return {
        point: (30 + (WIDTH - 60) * (log - min(logs)) / wide, 20 + (HEIGHT - 40) * (max(values) - point.y) / high)
        for point, log in zip(points, logs, strict=True)
    }


def _steps(places: Sequence[tuple[float, float]]) -> Iterator[Box]:
    """The lines of a front: from each point level to the next, then up or down to it."""
    for (x, y), (next_x, next_y) in pairwise(places):
        yield x, y - 1, next_x, y + 1
        yield next_x - 1, min(y, next_y), next_x + 1, max(y, next_y)


def _texts(point: TradeoffPoint, side: str | None) -> dict[str, str]:
    """The label on its side of the point, and nothing on the others."""
    return {name: _label(point) if name == side else "" for name in SIDES}


def _label(point: TradeoffPoint) -> str:
    return point.label or point.series


def _overlap(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
