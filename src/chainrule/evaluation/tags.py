"""Evaluation of tags: word by word, and by the spans that they mark.

A span is a group of words marked by tags, for example B-LOC I-LOC. B begins a span, I and M continue it, E or L ends
it, S or U is a span of one word, and O is outside. As in the CoNLL evaluation, a span also begins where the kind
changes, and with I after O, so IOB1, IOB2 and BIOES are all read. A predicted span is correct if both its ends and its
kind are (Tjong Kim Sang & De Meulder, "Introduction to the CoNLL-2003 Shared Task", 2003).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from chainrule.base.tables import show_fields
from chainrule.data.rows import Indices
from chainrule.data.tags import TaggedWords
from chainrule.evaluation.labels import (
    UNREAD,
    LabelArray,
    LabelScore,
    Predictions,
    score_counts,
    score_labels,
    show_scores,
)
from chainrule.evaluation.measurement import Measurement

TAG = re.compile(r"O|[BIESLUM](?:-.+)?")
SAME_MARKS = {"L": "E", "U": "S", "M": "I"}


class Span(NamedTuple):
    """The words from index `begin` to `end`, which is excluded."""

    kind: str
    begin: int
    end: int


def marks_spans(names: Iterable[str]) -> bool:
    """Return whether the names of the tags are those of span marks."""
    names = set(names)
    return all(TAG.fullmatch(name) for name in names) and bool(names - {"O"})


def find_spans(tags: Sequence[str]) -> list[Span]:
    """Return the spans that the tags of one sentence mark."""
    spans: list[Span] = []
    begin, mark_before, kind_before = -1, "O", ""
    for position, tag in enumerate([*tags, "O"]):
        mark, _, kind = tag.partition("-")
        mark = SAME_MARKS.get(mark, mark)
        if begin >= 0 and (mark in ("B", "S", "O") or mark_before in ("E", "S") or kind != kind_before):
            spans.append(Span(kind_before, begin, position))
            begin = -1
        if begin < 0 and mark != "O":
            begin = position
        mark_before, kind_before = mark, kind
    return spans


def score_spans(pairs: Iterable[tuple[Sequence[str], Sequence[str]]]) -> tuple[LabelScore, dict[str, LabelScore]]:
    """Return the score of all spans and of each kind, given the true and the predicted tags of sentences."""
    correct, predicted, actual = Counter[str](), Counter[str](), Counter[str]()
    for true_tags, predicted_tags in pairs:
        true_spans, predicted_spans = set(find_spans(true_tags)), set(find_spans(predicted_tags))
        actual.update(span.kind for span in true_spans)
        predicted.update(span.kind for span in predicted_spans)
        correct.update(span.kind for span in true_spans & predicted_spans)
    each = {kind: score_counts(correct[kind], predicted[kind], actual[kind]) for kind in sorted(actual | predicted)}
    return score_counts(correct.total(), predicted.total(), actual.total()), each


@dataclass(frozen=True)
class TagEvaluation(Measurement):
    """Results of a tagger on tagged sentences."""

    sentences: int
    words: int
    accuracy: float  # share of words with the correct tag
    precision: float  # of spans; mean over tags if these mark no spans
    recall: float
    f1: float
    loss: float  # nats per word
    kinds: dict[str, LabelScore]  # of spans, or tags
    signature: str
    protocol: str

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per kind of span, or per tag."""
        return [{"kind": name, **asdict(one)} for name, one in self.kinds.items()]

    def show(self) -> str:
        """Return the figures and a row per kind as text."""
        names = ("sentences", "words", "accuracy", "precision", "recall", "f1", "loss")
        figures = show_fields({name: getattr(self, name) for name in names})
        return f"{figures}\n\n{show_scores(self.kinds, 'kind')}\n\nsignature  {self.signature}"


class TagScores(NamedTuple):
    """Scores of all words, of all spans or tags together, and of each kind."""

    accuracy: float
    overall: LabelScore
    kinds: dict[str, LabelScore]
    sentences: int


def score_tags(predictions: Predictions, words: TaggedWords) -> TagScores:
    """Score all words that were tagged; spans only of the sentences whose words were all tagged."""
    names, predicted_N, targets_N = words.labels.names, predictions.predicted, words.targets()
    whole = _whole_sentences(predicted_N, words.labels.ends_P)
    begins = np.concatenate([[0], words.labels.ends_P[:-1]])[whole]
    ends = words.labels.ends_P[whole]
    read_N = predicted_N != UNREAD
    true_M, tagged_M = targets_N[read_N], predicted_N[read_N]
    accuracy = float((true_M == tagged_M).mean())
    if marks_spans(names):
        overall, kinds = score_spans(
            ([names[tag] for tag in targets_N[begin:end]], [names[tag] for tag in predicted_N[begin:end]])
            for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)
        )
        return TagScores(accuracy, overall, kinds, len(ends))
    each = dict(zip(names, score_labels(true_M, tagged_M, len(names)).each, strict=True))
    return TagScores(accuracy, _macro_average(true_M, tagged_M, list(each.values())), each, len(ends))


def _whole_sentences(predicted_N: LabelArray, ends_P: Indices) -> Indices:
    """The indices of the sentences whose words were all tagged."""
    unread = np.concatenate([[0], np.cumsum(predicted_N == UNREAD)])
    return np.flatnonzero(unread[ends_P] == unread[np.concatenate([[0], ends_P[:-1]])])


def _macro_average(true_M: LabelArray, tagged_M: LabelArray, each: list[LabelScore]) -> LabelScore:
    """The mean over the tags that occur or are predicted."""
    counted = [each[tag] for tag in np.union1d(true_M, tagged_M).tolist()]
    precision, recall, f1 = np.mean([(one.precision, one.recall, one.f1) for one in counted], axis=0).tolist()
    return LabelScore(precision, recall, f1, len(true_M))


def evaluate_tags(predictions: Predictions, words: TaggedWords, signature: str) -> TagEvaluation:
    """Return the results of a tagger on the words that it tagged."""
    scores = score_tags(predictions, words)
    basis = "spans, with both ends and the kind correct" if marks_spans(words.labels.names) else "tags, averaged"
    return TagEvaluation(
        sentences=scores.sentences,
        words=predictions.items,
        accuracy=scores.accuracy,
        precision=scores.overall.precision,
        recall=scores.overall.recall,
        f1=scores.overall.f1,
        loss=predictions.nats / predictions.items,
        kinds=scores.kinds,
        signature=signature,
        protocol=(
            f"{predictions.items} words of {scores.sentences} sentences; precision, recall and F1 are of {basis}."
        ),
    )
