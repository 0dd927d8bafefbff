"""Translations: quality by length, n-grams that one system gets right more often, examples, attention."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from chainrule.base.arrays import Array
from chainrule.evaluation.metrics import Bleu, Chrf
from chainrule.inference.translate import Attention
from chainrule.reports.blocks.block import Block
from chainrule.reports.blocks.chart import Chart
from chainrule.reports.blocks.matrix import Matrix
from chainrule.reports.blocks.table import Column, Table, decimals, signed
from chainrule.reports.charts.buckets import BucketPoint, buckets
from chainrule.reports.section import Section
from chainrule.reports.sections.bits import bucket_names, bucket_of

LENGTHS = (1, 6, 11, 16, 21, 31, 51)
"""The least number of words of each bucket of references."""

ORDERS = 4
"""The longest n-grams that are compared."""

SHOWN = 10
"""N-grams for each of two systems."""

EXAMPLES = 5
"""Sentences for each of two systems, and worst ones."""


@dataclass(frozen=True)
class Translated:
    """The translations of one system, and the statistics of BLEU and chrF of each."""

    name: str
    outputs: Sequence[str]
    bleu_PF: Array
    chrf_PF: Array

    @property
    def sentence_scores(self) -> Array:
        """chrF of each sentence -> P."""
        return Chrf().scores(self.chrf_PF)


def length_section(systems: Sequence[Translated], metric: Bleu) -> Section:
    """BLEU and the ratio of lengths by the number of words of the reference."""
    lengths_P = systems[0].bleu_PF[:, 1]
    places_P = bucket_of(np.maximum(lengths_P, 1), LENGTHS)
    names, points, ratios, rows = bucket_names(LENGTHS), [], [], []
    for one in systems:
        for place in np.unique(places_P).tolist():
            sums_1F = one.bleu_PF[places_P == place].sum(axis=0)[None]
            count, score = int((places_P == place).sum()), float(metric.scores(sums_1F)[0])
            ratio = float(metric.figures(sums_1F)["length_ratio"][0])
            points.append(BucketPoint(one.name, names[place], score, count))
            ratios.append(BucketPoint(one.name, names[place], ratio, count))
            rows.append([one.name, names[place], count, score, ratio])
    title = "words of the reference"
    columns = [Column("run"), Column(title), Column("sentences"), Column("BLEU", decimals(2))]
    figures = Table([*columns, Column("length ratio", decimals(3))], rows, folded=True)
    ratio_figures = Table(
        [Column("run"), Column(title), Column("length ratio", decimals(3)), Column("sentences")], ratios, folded=True
    )
    return Section(
        "length",
        "Quality by length",
        "BLEU of the sentences by the number of words in their reference, and words of the translations per word of "
        "the references: below 1, translations are too short.",
        [
            Chart("BLEU by length", buckets(points, x_title=title, y_title="BLEU"), figures),
            Chart(
                "Length ratio by length",
                buckets(ratios, x_title=title, y_title="length ratio", zero=False),
                ratio_figures,
            ),
        ],
    )


def ngrams_section(best: Translated, other: Translated, references: Sequence[str], metric: Bleu) -> Section:
    """N-grams of the references that one of two systems gets right more often, and examples."""
    right = [matched_ngrams(one.outputs, references, metric) for one in (best, other)]
    gains = Counter(right[0])
    gains.subtract(right[1])
    order = sorted(gains, key=lambda ngram: (-gains[ngram], -len(ngram), ngram))
    known = Counter(ngram for text in references for ngram in _ngrams(metric.words(text)))
    columns = [
        Column("n-gram", code=True),
        Column("in references"),
        Column(best.name),
        Column(other.name),
        Column("difference", signed(0)),
    ]

    def table(chosen: Sequence[tuple[str, ...]], winner: str) -> Table:
        rows = [[" ".join(one), known[one], right[0][one], right[1][one], gains[one]] for one in chosen]
        return Table(columns, rows, f"N-grams that {winner} gets right more often: number of matches")

    better = [ngram for ngram in order[:SHOWN] if gains[ngram] > 0]
    worse = [ngram for ngram in order[::-1][:SHOWN] if gains[ngram] < 0]
    return Section(
        "ngrams",
        f"{best.name} against {other.name}",
        f"N-grams of up to {ORDERS} words that also occur in the reference, each counted at most as often as there. "
        "Below, the sentences whose chrF differs most.",
        [table(better, best.name), table(worse, other.name), *_examples(best, other, references)],
    )


def matched_ngrams(outputs: Sequence[str], references: Sequence[str], metric: Bleu) -> Counter[tuple[str, ...]]:
    """How often each n-gram of the references is in the outputs, at most as often as in its reference."""
    matched: Counter[tuple[str, ...]] = Counter()
    for output, reference in zip(outputs, references, strict=True):
        matched.update(Counter(_ngrams(metric.words(output))) & Counter(_ngrams(metric.words(reference))))
    return matched


def _ngrams(words: Sequence[str]) -> Iterator[tuple[str, ...]]:
    for order in range(1, ORDERS + 1):
        yield from zip(*(words[begin:] for begin in range(order)), strict=False)


def _examples(best: Translated, other: Translated, references: Sequence[str]) -> list[Block]:
    difference_P = best.sentence_scores - other.sentence_scores
    order = np.argsort(-difference_P, kind="stable").tolist()
    blocks: list[Block] = []
    for winner, chosen in ((best, order[:EXAMPLES]), (other, order[::-1][:EXAMPLES])):
        rows = [
            [place + 1, references[place], best.outputs[place], other.outputs[place], float(difference_P[place])]
            for place in chosen
            if difference_P[place] * (1 if winner is best else -1) > 0
        ]
        columns = [
            Column("pair"),
            Column("reference"),
            Column(best.name),
            Column(other.name),
            Column("chrF", signed(1)),
        ]
        if rows:
            blocks.append(Table(columns, rows, f"Sentences that {winner.name} translates better"))
    return blocks


def worst_translations(best: Translated, sources: Sequence[str], references: Sequence[str]) -> Section:
    """The translations with the lowest chrF."""
    scores_P = best.sentence_scores
    rows = [
        [place + 1, sources[place], references[place], best.outputs[place], float(scores_P[place])]
        for place in np.argsort(scores_P, kind="stable")[: 2 * EXAMPLES].tolist()
    ]
    columns = [Column("pair"), Column("source"), Column("reference"), Column(best.name), Column("chrF", decimals(1))]
    about = f"The sentences of {best.name} with the lowest chrF."
    return Section("worst", "Worst translations", about, [Table(columns, rows)])


def attention_section(name: str, found: Sequence[Attention]) -> Section:
    """Matrices of attention: which source tokens each target token reads."""
    blocks = [
        Matrix(
            " ".join(one.target[:-1]),
            one.target,
            one.source,
            one.weights,
            one.weights,
            corner="target \\ source",
            show=lambda weight: f"{100 * weight:.0f}" if weight >= 0.005 else "",
        )
        for one in found
    ]
    return Section(
        "attention", "Attention", f"Percent of the attention of {name} for each token that it writes.", blocks
    )
