"""What all charts share: colours, fonts and sizes, and the last step from a chart to its specification."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from chainrule.reports.charts.library import Spec, alt

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000", "#8c564b", "#7f7f7f", "#bcbd22")
"""Distinguishable with colour blindness (Okabe & Ito, 2008), then some more."""

WIDTH, HEIGHT = 620, 300

CONFIG = {
    "font": "system-ui, Helvetica, Arial, sans-serif",
    "view": {"stroke": None},
    "axis": {
        "labelFontSize": 12,
        "titleFontSize": 13,
        "titleFontWeight": "normal",
        "gridColor": "#e5e5e5",
        "tickCount": 7,
    },
    # Browsers may have wider fonts than the one the chart was laid out with.
    "axisX": {"labelOverlap": "greedy", "labelSeparation": 12},
    "legend": {"labelFontSize": 12, "titleFontSize": 12, "labelLimit": 320, "symbolLimit": 60},
    "title": {"fontSize": 14, "anchor": "start"},
    "range": {"category": list(COLOURS)},
}


def data(rows: Iterable[Mapping[str, Any]]) -> Any:
    """Rows as the data of a chart; values that are not finite, which JSON lacks, are left out."""
    return alt.Data(
        values=[
            {name: value for name, value in row.items() if not isinstance(value, float) or math.isfinite(value)}
            for row in rows
        ]
    )


def series(names: Iterable[str], field: str = "series") -> Any:
    """The colour of each series, in the order given; there is no legend for one series."""
    order = list(dict.fromkeys(names))
    legend = alt.Legend(title=None, orient="bottom", columns=2 if len(order) > 3 else len(order))
    return alt.Color(
        f"{field}:N",
        sort=order,
        scale=alt.Scale(domain=order, range=[COLOURS[place % len(COLOURS)] for place in range(len(order))]),
        legend=legend if len(order) > 1 else None,
    )


def pick(field: str = "series") -> Any:
    """A selection of series by clicks on the legend."""
    return alt.selection_point(fields=[field], bind="legend")


def fade(selection: Any, opacity: float = 1.0) -> Any:
    """The opacity of what is not selected."""
    return alt.condition(selection, alt.value(opacity), alt.value(0.08))


def finish(chart: Any, title: str = "", width: int = WIDTH, height: int = HEIGHT) -> Spec:
    """The specification of a chart with the common style."""
    sized = chart.properties(width=width, height=height, **({"title": title} if title else {}))
    spec: Spec = sized.configure(**CONFIG, background="white").to_dict()
    return spec
