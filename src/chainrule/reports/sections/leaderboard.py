"""The leaderboard: scores with intervals, and paired tests of every two systems on the same data."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from chainrule.reports.blocks.block import Block, Paragraph
from chainrule.reports.blocks.chart import Chart
from chainrule.reports.blocks.table import COUNT, SECONDS, Column, Table, bounds, decimals, plain, signed
from chainrule.reports.charts.intervals import IntervalPoint, intervals
from chainrule.reports.metrics import METRICS, ReportMetric, compare_pair, ranked
from chainrule.reports.section import Section
from chainrule.reports.system import System

ALL_PAIRS = 6
"""Up to this many systems every pair is tested; of more, each is tested against the best."""

FACTS = {"parameters": COUNT, "training time": SECONDS}
"""Facts of systems that the leaderboard shows, and their formats."""


def leaderboard(systems: Sequence[System], metrics: Sequence[str], further: Sequence[Column] = ()) -> Section:
    """Best first by the first metric. `further` are columns of facts by name."""
    shown = [METRICS[name] for name in metrics]
    order = ranked(list(systems), shown[0])
    facts = [*further, *(Column(name, show) for name, show in FACTS.items())]
    columns = [Column("run"), Column("model")]
    for metric in shown:
        columns += [Column(metric.label, decimals(metric.digits)), Column("95% interval", bounds(metric.digits))]
    rows = [
        [
            one.name,
            one.model,
            *(value for metric in shown for value in _values(one, metric)),
            *(one.facts.get(column.name) for column in facts),
        ]
        for one in order
    ]
    table = Table([*columns, *facts], rows)
    blocks: list[Block] = [table]
    if len(order) > 1:
        blocks += [_chart(order, shown[0], table), *(_tests(order, metric) for metric in shown)]
    return Section(
        "leaderboard",
        "Leaderboard",
        "Best first. Intervals and tests are bootstraps over the items of the test data (lines, pairs or texts): 1,000 "
        "resamples, seed 12345. The interval states how much a score depends on the choice of these items.",
        blocks,
    )


def _values(system: System, metric: ReportMetric) -> tuple[float | None, tuple[float, float] | None]:
    score = system.score(metric.name)
    return (None, None) if score is None else (score.value, score.interval)


def _chart(systems: Sequence[System], metric: ReportMetric, table: Table) -> Chart:
    points = []
    for one in systems:
        value, interval = _values(one, metric)
        if value is not None and value == value:
            points.append(IntervalPoint(one.name, value, *(interval or (value, value))))
    better = "lower" if metric.lower_is_better else "higher"
    columns = [Column("run"), Column(metric.label, decimals(metric.digits)), Column("from", decimals(metric.digits))]
    figures = Table([*columns, Column("to", decimals(metric.digits))], points, folded=True)
    return Chart(
        f"{metric.label} with 95% intervals", intervals(points, x_title=f"{metric.label} ({better} is better)"), figures
    )


def _tests(systems: Sequence[System], metric: ReportMetric) -> Block:
    pairs = list(combinations(systems, 2)) if len(systems) <= ALL_PAIRS else [(systems[0], one) for one in systems[1:]]
    rows = []
    for first, second in pairs:
        a, b = first.score(metric.name), second.score(metric.name)
        tested = compare_pair(metric, a, b) if a and b and first.data == second.data else None
        if tested is not None:
            verdict = "significant" if tested.p_value < 0.05 else "not significant"
            rows.append([first.name, second.name, tested.difference, tested.interval, tested.p_value, verdict])
    if not rows:
        return Paragraph(f"No paired test of {metric.label}: no two runs were measured item by item on the same data.")
    columns = [
        Column("run"),
        Column("against"),
        Column("difference", signed(metric.digits), "second minus first"),
        Column("95% interval", bounds(metric.digits)),
        Column("p", decimals(3), "probability of a difference at least as large if the systems do not differ"),
        Column("at 5%", plain),
    ]
    better = "positive: the first run is better" if metric.lower_is_better else "positive: the second run is better"
    return Table(columns, rows, f"Paired tests of {metric.label}: difference, second minus first ({better})")
