"""Scatter plots as SVG: x on a logarithmic scale, y on a linear one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple
from xml.sax.saxutils import escape

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 960, 560, 64, 250, 44, 56
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000", "#8c564b", "#7f7f7f", "#bcbd22")
"""Distinguishable with colour blindness (Okabe & Ito, 2008), then some more."""

Projection = Callable[[float, float], tuple[float, float]]
"""Maps the values of a point to its coordinates in the picture."""


class Dot(NamedTuple):
    """A point of a series; each series has one colour and one entry in the legend."""

    series: str
    label: str
    x: float  # above 0
    y: float
    hollow: bool = False


def scatter(dots: Sequence[Dot], *, title: str, x_title: str, y_title: str) -> str:
    """Return an SVG document of the points. Lines join the filled and the hollow points of each series, in order."""
    x_low, x_high = _log_range([dot.x for dot in dots])
    y_low, y_high, y_step = _range([dot.y for dot in dots])

    def project(x: float, y: float) -> tuple[float, float]:
        right = (math.log10(x) - x_low) / (x_high - x_low)
        up = (y - y_low) / (y_high - y_low)
        return LEFT + right * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM)

    parts = [*_frame(title, x_title, y_title), *_x_ticks(x_low, x_high, project)]
    parts += _y_ticks(y_low, y_high, y_step, project)
    for number, series in enumerate(dict.fromkeys(dot.series for dot in dots)):
        colour, top = COLOURS[number % len(COLOURS)], TOP + 10 + 20 * number
        own = [dot for dot in dots if dot.series == series]
        for hollow in (False, True):
            parts += _draw_line([(dot, *project(dot.x, dot.y)) for dot in own if dot.hollow == hollow], colour)
        parts.append(f'<circle cx="{WIDTH - RIGHT + 22}" cy="{top}" r="4.5" fill="{colour}"/>')
        parts.append(f'<text x="{WIDTH - RIGHT + 34}" y="{top + 4}" font-size="12">{escape(series)}</text>')
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif">'
    return "\n".join([head, *parts, "</svg>\n"])


def _draw_line(points: list[tuple[Dot, float, float]], colour: str) -> list[str]:
    """Dots with their labels, and the line that joins them."""
    line = " ".join(f"{x:.1f},{y:.1f}" for _, x, y in points)
    drawn = [f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-opacity="0.35"/>']
    for dot, x, y in points:
        inside = "white" if dot.hollow else colour
        drawn.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" fill="{inside}" stroke="{colour}">'
            f"<title>{_tooltip(dot)}</title></circle>"
        )
        drawn.append(f'<text x="{x + 7:.1f}" y="{y + 3.5:.1f}" font-size="10">{escape(dot.label)}</text>')
    return drawn


def _tooltip(dot: Dot) -> str:
    return escape(f"{dot.series} {dot.label}".strip() + f": {dot.x:.3g}, {dot.y:.3g}")


def _log_range(values: Sequence[float]) -> tuple[float, float]:
    """Bounds of the logarithms of the values, with a margin."""
    low, high = math.log10(min(values)), math.log10(max(values))
    margin = max(0.05 * (high - low), 0.1)
    return low - margin, high + margin


def _range(values: Sequence[float]) -> tuple[float, float, float]:
    """Round bounds around values, and the step between ticks."""
    spread = (max(values) - min(values)) or 1.0
    unit = 10 ** math.floor(math.log10(spread / 5))
    step = next(unit * factor for factor in (1, 2, 5, 10) if spread / (unit * factor) <= 8)
    return math.floor(min(values) / step) * step, math.ceil(max(values) / step + 0.2) * step, step


def _frame(title: str, x_title: str, y_title: str) -> list[str]:
    middle, bottom = (LEFT + WIDTH - RIGHT) / 2, HEIGHT - BOTTOM
    return [
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<path d="M{LEFT},{TOP} V{bottom} H{WIDTH - RIGHT}" fill="none" stroke="#444"/>',
        f'<text x="{LEFT}" y="24" font-size="15" font-weight="bold">{escape(title)}</text>',
        f'<text x="{middle}" y="{HEIGHT - 14}" font-size="12" text-anchor="middle">{escape(x_title)}</text>',
        f'<text transform="translate(18 {HEIGHT / 2}) rotate(-90)" font-size="12" text-anchor="middle">'
        f"{escape(y_title)}</text>",
    ]


def _x_ticks(low: float, high: float, project: Projection) -> list[str]:
    ticks = [
        factor * 10.0**power
        for power in range(math.floor(low), math.ceil(high) + 1)
        for factor in (1, 2, 5)
        if low <= math.log10(factor * 10.0**power) <= high
    ]
    drawn = []
    for tick in ticks:
        x, _ = project(tick, 0.0)
        drawn.append(f'<path d="M{x:.1f},{HEIGHT - BOTTOM} v5" stroke="#444"/>')
        drawn.append(
            f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 19}" font-size="11" text-anchor="middle">{tick:g}</text>'
        )
    return drawn


def _y_ticks(low: float, high: float, step: float, project: Projection) -> list[str]:
    drawn = []
    for number in range(round((high - low) / step) + 1):
        value = low + number * step
        _, y = project(1.0, value)
        drawn.append(f'<path d="M{LEFT},{y:.1f} H{WIDTH - RIGHT}" stroke="#ddd"/>')
        drawn.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" font-size="11" text-anchor="end">{value:.6g}</text>')
    return drawn
