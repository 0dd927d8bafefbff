"""Tags measured: word by word, and by the spans that they mark.

A span is what tags such as B-LOC I-LOC mark together. Marks: B begins one, I goes on, O is outside; E (or L) ends one,
S (or U) is one by itself, M goes on like I. As the CoNLL evaluation reads them, a span also begins where another kind
begins, and with I after O, so IOB1, IOB2 and BIOES are all read. A told span counts if both its ends and its kind are
right (Tjong Kim Sang & De Meulder, "Introduction to the CoNLL-2003 Shared Task", 2003).

Legend: W words, P sentences.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from chainrule.data.labels import Numbers
from chainrule.data.tags import TaggedWords
from chainrule.evaluation.labels import (
    UNREAD,
    Array,
    LabelScore,
    Told,
    label_scores,
    score,
    show_figures,
    show_labels,
)

MARK = re.compile(r"O|[BIESLUM](?:-.+)?")
SAME = {"L": "E", "U": "S", "M": "I"}


class Span(NamedTuple):
    """Words number `begin` up to, but without, `end`."""

    kind: str
    begin: int
    end: int


def marks_spans(names: Iterable[str]) -> bool:
    """Whether tags mark spans, by their names."""
    names = set(names)
    return all(MARK.fullmatch(name) for name in names) and bool(names - {"O"})


def spans_of(tags: Sequence[str]) -> list[Span]:
    """The spans that the tags of one sentence mark."""
    found: list[Span] = []
    begin, before, kind_before = -1, "O", ""
    for place, tag in enumerate([*tags, "O"]):
        mark, _, kind = tag.partition("-")
        mark = SAME.get(mark, mark)
        if begin >= 0 and (mark in ("B", "S", "O") or before in ("E", "S") or kind != kind_before):
            found.append(Span(kind_before, begin, place))
            begin = -1
        if begin < 0 and mark != "O":
            begin = place
        before, kind_before = mark, kind
    return found


def span_scores(pairs: Iterable[tuple[Sequence[str], Sequence[str]]]) -> tuple[LabelScore, dict[str, LabelScore]]:
    """Of sentences' true and told tags: the score of all spans, and of each kind."""
    right, told, there = Counter[str](), Counter[str](), Counter[str]()
    for true_tags, told_tags in pairs:
        true_spans, told_spans = set(spans_of(true_tags)), set(spans_of(told_tags))
        there.update(span.kind for span in true_spans)
        told.update(span.kind for span in told_spans)
        right.update(span.kind for span in true_spans & told_spans)
    each = {kind: score(right[kind], told[kind], there[kind]) for kind in sorted(there | told)}
    return score(right.total(), told.total(), there.total()), each


@dataclass(frozen=True)
class TagEvaluation:
    """A tagger measured on tagged sentences."""

    sentences: int
    words: int
    accuracy: float  # share of words with the right tag
    precision: float  # of spans, or the mean over tags where these mark none
    recall: float
    f1: float
    loss: float  # nats a word
    kinds: dict[str, LabelScore]  # of spans, or tags
    signature: str
    protocol: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def show(self) -> str:
        """The figures as lines for people."""
        names = ("sentences", "words", "accuracy", "precision", "recall", "f1", "loss")
        figures = show_figures({name: getattr(self, name) for name in names})
        return f"{figures}\n\n{show_labels(self.kinds, 'kind')}\n\nsignature  {self.signature}"


class TagFigures(NamedTuple):
    """What validation tells."""

    accuracy: float
    whole: LabelScore
    kinds: dict[str, LabelScore]
    sentences: int


def tag_figures(told: Told, words: TaggedWords) -> TagFigures:
    """Of all sentences whose words were all tagged."""
    names, read_P = words.labels.names, _read(told.chosen, words.labels.ends_P)
    begins_P = np.concatenate([[0], words.labels.ends_P[:-1]])[read_P]
    ends_P = words.labels.ends_P[read_P]
    read_W, targets_W = told.chosen != UNREAD, words.targets()
    true_W, told_W = targets_W[read_W], told.chosen[read_W]
    accuracy = float((true_W == told_W).mean())
    if marks_spans(names):
        whole, kinds = span_scores(
            ([names[tag] for tag in targets_W[begin:end]], [names[tag] for tag in told.chosen[begin:end]])
            for begin, end in zip(begins_P.tolist(), ends_P.tolist(), strict=True)
        )
        return TagFigures(accuracy, whole, kinds, len(ends_P))
    each = dict(zip(names, label_scores(true_W, told_W, len(names)).each, strict=True))
    return TagFigures(accuracy, _mean(true_W, told_W, list(each.values())), each, len(ends_P))


def _read(chosen_W: Array, ends_P: Numbers) -> Numbers:
    """The numbers of the sentences of which every word was tagged."""
    unread = np.concatenate([[0], np.cumsum(chosen_W == UNREAD)])
    return np.flatnonzero(unread[ends_P] == unread[np.concatenate([[0], ends_P[:-1]])])


def _mean(true_W: Array, told_W: Array, each: list[LabelScore]) -> LabelScore:
    """The mean over the tags that come or are told."""
    counted = [each[number] for number in np.union1d(true_W, told_W).tolist()]
    precision, recall, f1 = np.mean([(one.precision, one.recall, one.f1) for one in counted], axis=0).tolist()
    return LabelScore(precision, recall, f1, len(true_W))


def tag_evaluation(told: Told, words: TaggedWords, signature: str) -> TagEvaluation:
    """The report of what a tagger told of all words."""
    figures = tag_figures(told, words)
    by = "spans, both ends and the kind right" if marks_spans(words.labels.names) else "tags, the mean over them"
    return TagEvaluation(
        sentences=figures.sentences,
        words=told.asked,
        accuracy=figures.accuracy,
        precision=figures.whole.precision,
        recall=figures.whole.recall,
        f1=figures.whole.f1,
        loss=told.nats / told.asked,
        kinds=figures.kinds,
        signature=signature,
        protocol=f"{told.asked} words of {figures.sentences} sentences; precision, recall and F1 are of {by}.",
    )
