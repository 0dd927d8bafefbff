"""Calibration: reliability diagrams and expected calibration errors."""

from __future__ import annotations

from collections.abc import Mapping

from chainrule.evaluation.calibration import BINS, Reliability, TokenCalibration
from chainrule.reports.blocks.chart import Chart
from chainrule.reports.blocks.table import Column, Table, decimals, percent
from chainrule.reports.charts.reliability import ReliabilityPoint, reliability_diagram
from chainrule.reports.section import Section

COLUMNS = [
    Column("run"),
    Column("mean probability", decimals(4)),
    Column("share that is correct", decimals(4)),
    Column("predictions"),
]


TEXT = "The beginning of the test text, read from its first token."
PAIRS = "The references of the first pairs, each token given the source and the tokens before it."
"""What the distributions of language models and of translators are compared with."""


def token_calibration_section(found: Mapping[str, TokenCalibration], measured_on: str = TEXT) -> Section:
    """The calibration of language models and translators."""
    rows = [[name, one.tokens, one.accuracy, one.best.error, one.every.error] for name, one in found.items()]
    columns = [
        Column("run"),
        Column("tokens"),
        Column("accuracy", percent, "share of tokens that are the most probable one"),
        Column("calibration error", decimals(4), "of the most probable token"),
        Column("of the whole distribution", decimals(4), "probability mass per token that is in the wrong bins"),
    ]
    best = {name: one.best for name, one in found.items()}
    return Section(
        "calibration",
        "Calibration",
        "Is the most probable token right as often as its probability says? On the diagonal, yes; below it, the run is "
        f"overconfident. {BINS} bins of equal width; the calibration error is the mean distance from the diagonal. "
        f"{measured_on} Tokens are those of each run's tokeniser.",
        [
            Table(columns, rows),
            _diagram(best, "Reliability of the most probable token", "share that is the next token"),
        ],
    )


def label_calibration_section(found: Mapping[str, Reliability]) -> Section:
    """The calibration of classifiers."""
    columns = [Column("run"), Column("texts"), Column("calibration error", decimals(4))]
    rows = [[name, one.positions, one.error] for name, one in found.items()]
    return Section(
        "calibration",
        "Calibration",
        "Is the predicted label right as often as its probability says? On the diagonal, yes; below it, the run is "
        f"overconfident. {BINS} bins of equal width; the calibration error is the mean distance from the diagonal.",
        [Table(columns, rows), _diagram(found, "Reliability of the predicted label", "share that is correct")],
    )


def _diagram(found: Mapping[str, Reliability], title: str, y_title: str) -> Chart:
    points = [
        ReliabilityPoint(name, one.confidence, one.frequency, one.count)
        for name, own in found.items()
        for one in own.bins
    ]
    return Chart(
        title, reliability_diagram(points, x_title="probability", y_title=y_title), Table(COLUMNS, points, folded=True)
    )
