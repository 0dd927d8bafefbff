"""Where the bits go: by training frequency of the word, by its position in the line, and by its length."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from chainrule.base.arrays import Array
from chainrule.reports.blocks.block import Block, Paragraph
from chainrule.reports.blocks.chart import Chart
from chainrule.reports.blocks.table import Column, Table, decimals, percent
from chainrule.reports.charts.buckets import BucketPoint, buckets
from chainrule.reports.section import Section
from chainrule.reports.text_scores import TestText, TextScores

FREQUENCIES = (0, 1, 2, 5, 10, 100, 1000, 10_000)
POSITIONS = (1, 2, 3, 4, 5, 9, 17, 33)
LENGTHS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 13)
"""The least value of each bucket; the last has no upper bound."""

LINE_END = "line end"


def bucket_names(starts: Sequence[int]) -> list[str]:
    """(1, 2, 5) -> 1, 2-4, 5+."""
    ends = [following - 1 for following in starts[1:]]
    named = [f"{begin:,}" if begin == end else f"{begin:,}–{end:,}" for begin, end in zip(starts, ends, strict=False)]
    return [*named, f"{starts[-1]:,}+"]


def bucket_of(values_N: Array, starts: Sequence[int]) -> Array:
    """The number of the bucket of each value -> N."""
    return np.searchsorted(np.array(starts), values_N, "right") - 1


def bits_section(scores: Sequence[TextScores], counts: dict[str, int] | None) -> Section:
    """Bits per word of each run. `counts`: how often words occur in the training text; None: it cannot be read."""
    text = scores[0].text
    blocks: list[Block] = []
    if counts is None:
        blocks.append(Paragraph("The training text cannot be read, so that there is no chart by training frequency."))
    else:
        seen_N = np.array([counts.get(word, 0) for word in text.words])
        title = "occurrences of the word in the training text"
        blocks.append(_chart(scores, seen_N, FREQUENCIES, "Bits per word by training frequency", title))
    position = "position of the word in its line"
    blocks.append(_chart(scores, text.word_positions, POSITIONS, "Bits per word by position", position))
    lengths_N = np.array([len(word) for word in text.words])
    blocks.append(_chart(scores, lengths_N, LENGTHS, "Bits per word by length", "characters of the word"))
    return Section(
        "bits",
        "Where the bits go",
        "A word is a word, number, ideograph, other sign or line end; the white space before it belongs to it, and so "
        "do all tokens that begin in it. So the charts compare runs with different tokenisers, and the bits of all "
        f"buckets add up to those of the tokens. {_part(text)}",
        blocks,
    )


def _part(text: TestText) -> str:
    if text.detailed == len(text.whole):
        return ""
    return f"These charts are of the first {text.detailed:,} of {len(text.whole):,} characters."


def _chart(scores: Sequence[TextScores], values_N: Array, starts: Sequence[int], title: str, x_title: str) -> Chart:
    text = scores[0].text
    ends_N = np.array([word == "\n" for word in text.words], bool)
    names = [*bucket_names(starts), LINE_END]
    places_N = np.where(ends_N, len(starts), bucket_of(values_N, starts))
    count_Z = np.bincount(places_N, minlength=len(names))
    points, rows = [], []
    for one in scores:
        bits_Z = np.bincount(places_N, one.word_bits, len(names))
        for name, count, bits in zip(names, count_Z.tolist(), bits_Z.tolist(), strict=True):
            if count:
                points.append(BucketPoint(one.name, name, bits / count, count))
                rows.append([one.name, name, count, bits / count, bits / bits_Z.sum()])
    columns = [Column("run"), Column(x_title), Column("words"), Column("bits per word", decimals(2))]
    figures = Table([*columns, Column("share of bits", percent)], rows, folded=True)
    return Chart(title, buckets(points, x_title=x_title, y_title="bits per word"), figures)
