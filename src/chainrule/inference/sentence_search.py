"""The lines of a text that are nearest to a query, by the cosine of their vectors.

Lines are read, embedded and compared in windows; only the best of each query are kept as strings.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappush, heappushpop
from typing import NamedTuple

import numpy as np

from chainrule.base.arrays import Array
from chainrule.base.results import Results
from chainrule.data.grouping import in_windows
from chainrule.errors import ConfigError
from chainrule.evaluation.vectors import unit_vectors
from chainrule.inference.embed import LINES, Pooling, embed_lines
from chainrule.inference.subject import TextModel


class Match(NamedTuple):
    """A line, its number (the first is 1), and the cosine of its vector with the query."""

    text: str
    cosine: float
    line: int


def search_lines(
    subject: TextModel,
    queries_QD: Array,
    lines: Iterable[str],
    *,
    top: int = 10,
    pooling: Pooling = "mean",
    layer: int | None = None,
) -> list[Results[Match]]:
    """The `top` lines nearest to each query, best first; of equal ones the first. Empty lines are skipped."""
    if top < 1:
        raise ConfigError(f"top is {top}, but at least 1 is needed")
    units_QD = unit_vectors(queries_QD)
    best: list[list[tuple[float, int, str]]] = [[] for _ in units_QD]
    numbered = ((number, line) for number, line in enumerate(lines, start=1) if line.strip())
    for window in in_windows(numbered, LINES):
        texts = [line for _, line in window]
        vectors_ND = np.stack(list(embed_lines(subject, texts, pooling=pooling, normalise=True, layer=layer)))
        for heap, cosines_N in zip(best, units_QD @ vectors_ND.T, strict=True):
            for (number, line), cosine in zip(window, cosines_N.tolist(), strict=True):
                _keep(heap, (cosine, -number, line), top)
    ranked = (sorted(heap, reverse=True) for heap in best)
    return [Results(Match(line, cosine, -number) for cosine, number, line in heap) for heap in ranked]


def _keep(heap: list[tuple[float, int, str]], found: tuple[float, int, str], top: int) -> None:
    """Add a line to the best ones, or replace the worst of them."""
    if len(heap) < top:
        heappush(heap, found)
    elif found > heap[0]:
        heappushpop(heap, found)
