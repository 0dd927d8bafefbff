"""Quality against time: a score of each run against the time of its training and, where measured, of its decoding."""

from __future__ import annotations

from collections.abc import Sequence

from chainrule.reports.blocks.block import Block
from chainrule.reports.blocks.chart import Chart
from chainrule.reports.blocks.table import SECONDS, Column, Table, decimals
from chainrule.reports.charts.tradeoff import TradeoffPoint, tradeoff
from chainrule.reports.metrics import METRICS, ReportMetric
from chainrule.reports.section import Section
from chainrule.reports.system import System

DECODING = "milliseconds per token"
"""The fact of a system that states how fast it generates, where that was measured."""


def time_section(systems: Sequence[System], metric_name: str) -> Section | None:
    """Charts with the Pareto front; None: there are no two systems to compare."""
    metric = METRICS[metric_name]
    blocks: list[Block] = []
    if training := _chart(systems, metric, "training time", "seconds of training"):
        blocks.append(training)
    if decoding := _chart(systems, metric, DECODING, "milliseconds per generated token"):
        blocks.append(decoding)
    if not blocks:
        return None
    about = (
        "The dashed line is the Pareto front: no run is both faster and better than one on it. Times are those of the "
        "machines on which the runs were trained; compare them only if these are alike."
    )
    return Section("time", "Quality against time", about, blocks)


def _chart(systems: Sequence[System], metric: ReportMetric, fact: str, x_title: str) -> Chart | None:
    points = []
    for one in systems:
        score, time = one.score(metric.name), one.facts.get(fact)
        if score is not None and score.value == score.value and time:
            points.append(TradeoffPoint(one.name, "", time, score.value))
    if len(points) < 2:
        return None
    better = "lower is better" if metric.lower_is_better else "higher is better"
    spec = tradeoff(
        points, x_title=x_title, y_title=f"{metric.label} ({better})", lower_is_better=metric.lower_is_better
    )
    show = SECONDS if fact == "training time" else decimals(3)
    columns = [Column("run"), Column(x_title, show), Column(metric.label, decimals(metric.digits))]
    rows = [[point.series, point.x, point.y] for point in points]
    return Chart(f"{metric.label} against {x_title}", spec, Table(columns, rows, folded=True))
