"""Bits of each token, one row per model: the darker a token, the more it surprised the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from chainrule.inference.heat_map import COLOUR, STRONGEST
from chainrule.reports.charts.library import Spec, alt
from chainrule.reports.charts.style import data, finish

CELL, ROW = 50, 40
"""Pixels of a token."""

TOTAL = "sum"


class TokenBitsRow(NamedTuple):
    """The tokens of a text and what each costs one model."""

    series: str
    tokens: list[str]
    bits: list[float]


def token_bits(rows: Sequence[TokenBitsRow], *, high: float = 8.0, title: str = "") -> Spec:
    """A table of cells in the colours of heat maps, and the sum of each row; `high` bits have the strongest colour."""
    cells = [
        {"series": row.series, "place": place, "token": token, "bits": bits}
        for row in rows
        for place, (token, bits) in enumerate(zip(row.tokens, row.bits, strict=True))
    ]
    length = len(rows[0].tokens)
    sums = [{"series": row.series, "place": length, "bits": sum(row.bits)} for row in rows]
    names = [{"place": place, "token": token} for place, token in enumerate([*rows[0].tokens, TOTAL])]
    x = alt.X("place:O", axis=None, scale=alt.Scale(padding=0, domain=list(range(length + 1))))
    y = alt.Y("series:N", title=None, sort=[row.series for row in rows], axis=alt.Axis(domain=False, ticks=False))
    ends = [f"rgba({COLOUR}, 0)", f"rgba({COLOUR}, {STRONGEST})"]
    colour = alt.Color("bits:Q", scale=alt.Scale(domain=[0, high], range=ends, clamp=True), legend=None)
    tooltip = [alt.Tooltip("series:N"), alt.Tooltip("token:N"), alt.Tooltip("bits:Q", format=".2f")]
    base = alt.Chart(data(cells)).encode(x=x, y=y, tooltip=tooltip)
    figure = {"text": alt.Text("bits:Q", format=".1f")}
    chart = (
        base.mark_rect(stroke="white").encode(color=colour)
        + base.mark_text(fontSize=13).encode(**figure)
        + alt.Chart(data(sums)).mark_text(fontSize=13, fontWeight="bold").encode(x=x, y=y, **figure)
        + alt.Chart(data(names)).mark_text(fontSize=13, baseline="bottom").encode(x=x, y=alt.value(-6), text="token:N")
    )
    return finish(chart, title, width=CELL * (length + 1), height=ROW * len(rows))
