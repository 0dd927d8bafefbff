"""Labels: scores of each label or kind of span, and confusions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from chainrule.evaluation.labels import LabelScore
from chainrule.reports.blocks.block import Block
from chainrule.reports.blocks.chart import Chart
from chainrule.reports.blocks.matrix import Matrix
from chainrule.reports.blocks.table import Column, Table, decimals
from chainrule.reports.charts.buckets import BucketPoint, buckets
from chainrule.reports.section import Section

DRAWN = 12
"""Labels that a chart or a matrix has room for."""

CONFUSIONS = 15
"""Confusions that are listed where there is no room for a matrix."""


def label_scores(found: Mapping[str, Mapping[str, LabelScore]], what: str) -> Section:
    """Precision, recall and F1 of each label of each run."""
    rows: list[list[Any]] = [
        [name, label, one.precision, one.recall, one.f1, one.examples]
        for name, scores in found.items()
        for label, one in scores.items()
    ]
    figures = [Column(name, decimals(4)) for name in ("precision", "recall", "F1")]
    table = Table([Column("run"), Column(what), *figures, Column("examples")], rows)
    blocks: list[Block] = []
    labels = list(dict.fromkeys(row[1] for row in rows))
    if 1 < len(labels) <= DRAWN:
        points = [BucketPoint(row[0], row[1], row[4], row[5]) for row in rows]
        folded = Table(
            [Column("run"), Column(what), Column("F1", decimals(4)), Column("examples")], points, folded=True
        )
        blocks.append(Chart(f"F1 by {what}", buckets(points, x_title=what, y_title="F1"), folded))
    return Section("labels", f"Scores by {what}", "", [*blocks, table])


def confusions(found: Mapping[str, Sequence[Sequence[int]]], labels: Sequence[str]) -> Section:
    """How often each true label is predicted as each other one."""
    about = "Rows are the true labels, columns the predicted ones; the shade is the share of the row."
    if len(labels) <= DRAWN:
        return Section("confusions", "Confusions", about, [_matrix(name, one, labels) for name, one in found.items()])
    return Section(
        "confusions", "Confusions", "The most frequent ones.", [_list(name, one, labels) for name, one in found.items()]
    )


def _matrix(name: str, counts: Sequence[Sequence[int]], labels: Sequence[str]) -> Matrix:
    counts_CC = np.array(counts)
    shades = counts_CC / np.maximum(counts_CC.sum(axis=1, keepdims=True), 1)
    return Matrix(name, labels, labels, counts_CC.tolist(), shades.tolist(), corner="true \\ predicted")


def _list(name: str, counts: Sequence[Sequence[int]], labels: Sequence[str]) -> Table:
    wrong: list[list[Any]] = [
        [labels[true], labels[other], count]
        for true, row in enumerate(counts)
        for other, count in enumerate(row)
        if true != other and count
    ]
    wrong.sort(key=lambda row: -row[2])
    return Table([Column("true"), Column("predicted"), Column("times")], wrong[:CONFUSIONS], name)
