"""Scores of labels and spans against counting loops and a second reader of spans."""

from __future__ import annotations

import itertools
import random
import re

import numpy as np
import pytest

from chainrule.data.labels import LabelledTexts
from chainrule.data.rows import Rows
from chainrule.data.tags import TaggedWords
from chainrule.evaluation.labels import (
    Predictions,
    confusion_matrix,
    evaluate_labels,
    score_labels,
    show_confusion,
)
from chainrule.evaluation.tags import evaluate_tags, find_spans, marks_spans, score_spans, score_tags
from chainrule.text.formats.labels import Labels

EOS = 1


def naive_f1(pairs: list[tuple[set[int], set[int]]], label: int) -> tuple[float, float, float]:
    correct = sum(label in true and label in guess for true, guess in pairs)
    predicted = sum(label in guess for _, guess in pairs)
    actual = sum(label in true for true, _ in pairs)
    precision, recall = correct / predicted if predicted else 0.0, correct / actual if actual else 0.0
    return precision, recall, 2 * precision * recall / (precision + recall) if precision + recall else 0.0


def test_one_label_by_a_loop() -> None:
    rng = np.random.default_rng(1)
    targets, chosen = (
        rng.integers(0, 4, 60),
        rng.integers(0, 5, 60),
    )  # label 4 is never true, label 5 neither
    scores = score_labels(targets, chosen, 6)
    pairs = [({a}, {b}) for a, b in zip(targets.tolist(), chosen.tolist(), strict=True)]
    wanted = [naive_f1(pairs, label) for label in range(6)]
    assert [(one.precision, one.recall, one.f1) for one in scores.each] == [pytest.approx(one) for one in wanted]
    assert scores.accuracy == pytest.approx(sum(a == b for a, b in pairs) / 60)
    assert scores.micro_f1 == pytest.approx(scores.accuracy)  # equal with one label per text
    assert scores.macro_f1 == pytest.approx(sum(f1 for *_, f1 in wanted[:5]) / 5)


def test_confusion_by_a_loop() -> None:
    rng = np.random.default_rng(2)
    targets, chosen = rng.integers(0, 3, 50), rng.integers(0, 3, 50)
    wanted = [[0] * 3 for _ in range(3)]
    for true, guess in zip(targets.tolist(), chosen.tolist(), strict=True):
        wanted[true][guess] += 1
    assert confusion_matrix(targets, chosen, 3).tolist() == wanted


def test_several_labels_by_a_loop() -> None:
    rng = np.random.default_rng(3)
    targets, chosen = rng.integers(0, 2, (40, 3)), rng.integers(0, 2, (40, 3))
    scores = score_labels(targets, chosen, 3)
    pairs = [
        ({i for i in range(3) if a[i]}, {i for i in range(3) if b[i]})
        for a, b in zip(targets.tolist(), chosen.tolist(), strict=True)
    ]
    for label in range(3):
        one = scores.each[label]
        assert (one.precision, one.recall, one.f1) == pytest.approx(naive_f1(pairs, label))
    assert scores.accuracy == sum(a == b for a, b in pairs) / 40
    correct = sum(len(a & b) for a, b in pairs)
    assert scores.micro_f1 == pytest.approx(2 * correct / sum(len(a) + len(b) for a, b in pairs))


def report(targets: list[int], chosen: list[int]) -> str:
    labels = Labels(("cat", "dog"), np.asarray(targets, np.int32), np.arange(1, len(targets) + 1))
    texts = LabelledTexts(Rows(np.full(len(targets), EOS), EOS), None, labels)
    predictions = Predictions(3.0, len(targets), np.asarray(chosen))
    return evaluate_labels(predictions, texts, np.arange(len(targets)), "data:x").show()


def test_results_are_shown_as_text() -> None:
    assert report([0, 0, 1, 1], [0, 1, 1, 1]) == (
        "examples  4\naccuracy  0.7500\nmacro f1  0.7333\nmicro f1  0.7500\nloss      0.7500\n\n"
        "label  precision  recall      f1  examples\n"
        "cat       1.0000  0.5000  0.6667         2\n"
        "dog       0.6667  1.0000  0.8000         2\n\n"
        "true \\ predicted  cat  dog\n"
        "cat                 1    1\n"
        "dog                 0    2\n\n"
        "signature  data:x"
    )


def test_many_labels_are_shown_as_a_list() -> None:
    counts = [[10 if i == j else 7 if (i, j) == (2, 3) else 0 for j in range(13)] for i in range(13)]
    assert show_confusion([f"l{i}" for i in range(13)], counts) == "true  predicted  times\nl2           l3      7"


def test_results_keep_exact_values_and_a_protocol() -> None:
    labels = Labels(("cat", "dog"), np.asarray([0, 1], np.int32), np.arange(1, 3))
    texts = LabelledTexts(Rows(np.full(2, EOS), EOS), None, labels)
    measured = evaluate_labels(Predictions(3.0, 2, np.asarray([0, 0])), texts, np.arange(2), "data:x")
    assert measured.to_dict() == {
        "examples": 2,
        "accuracy": 0.5,
        "macro_f1": 1 / 3,
        "micro_f1": 0.5,
        "loss": 1.5,
        "labels": {
            "cat": {"precision": 0.5, "recall": 1.0, "f1": 2 / 3, "examples": 1},
            "dog": {"precision": 0.0, "recall": 0.0, "f1": 0.0, "examples": 1},
        },
        "confusion": [[1, 0], [1, 0]],
        "signature": "data:x",
        "protocol": (
            "2 texts; the most probable label is predicted; macro F1 is the mean over the labels that occur or are "
            "predicted."
        ),
    }


# Spans


def spans_by_pattern(tags: list[str]) -> set[tuple[str, int, int]]:
    """A second reader: every tag as one letter, spans as matches of a regular expression, kind by kind."""
    found = set()
    for kind in {tag[2:] for tag in tags if tag != "O"}:
        line = "".join(tag[0] if tag[2:] == kind and tag != "O" else "O" for tag in tags)
        found |= {(kind, *match.span()) for match in re.finditer("S|[BI]I*E?|E", line)}
    return found


@pytest.mark.parametrize("marks", ["BIO", "BIESO"])
def test_spans_by_a_pattern(marks: str) -> None:
    """Every sentence of four tags of two kinds: valid IOB2 and BIOES, IOB1, and invalid ones."""
    tags = [mark if mark == "O" else f"{mark}-{kind}" for mark in marks for kind in "XY"]
    for sentence in itertools.product(sorted(set(tags)), repeat=4):
        assert {tuple(span) for span in find_spans(sentence)} == spans_by_pattern(list(sentence)), sentence


@pytest.mark.parametrize(
    ("tags", "spans"),
    [
        ("B-A I-A B-A O", [("A", 0, 2), ("A", 2, 3)]),
        ("I-A I-A I-B O", [("A", 0, 2), ("B", 2, 3)]),  # IOB1
        ("I-A B-A I-A", [("A", 0, 1), ("A", 1, 3)]),  # IOB1: B separates neighbours
        ("S-A B-A E-A E-A", [("A", 0, 1), ("A", 1, 3), ("A", 3, 4)]),
        ("U-A B-A M-A L-A", [("A", 0, 1), ("A", 1, 4)]),
        ("B M E S", [("", 0, 3), ("", 3, 4)]),
        ("O O", []),
    ],
)
def test_spans_as_the_conll_evaluation_reads_them(tags: str, spans: list[tuple[str, int, int]]) -> None:
    assert [tuple(span) for span in find_spans(tags.split())] == spans


def test_which_tags_mark_spans() -> None:
    assert marks_spans(["O", "B-LOC", "I-LOC"])
    assert marks_spans(["B", "M", "E", "S"])
    assert not marks_spans(["NN", "VB"])
    assert not marks_spans(["O"])


def test_span_scores_by_a_loop() -> None:
    draw = random.Random(4)
    names = ["O", "B-X", "I-X", "B-Y", "I-Y"]
    sentences = [[[draw.choice(names) for _ in range(8)] for _ in range(2)] for _ in range(60)]
    overall, kinds = score_spans((true, guess) for true, guess in sentences)
    actual = [(n, *span) for n, (true, _) in enumerate(sentences) for span in spans_by_pattern(true)]
    predicted = [(n, *span) for n, (_, guess) in enumerate(sentences) for span in spans_by_pattern(guess)]
    correct = sum(span in actual for span in predicted)
    assert overall.precision == correct / len(predicted)
    assert overall.recall == correct / len(actual)
    of_x = [span for span in predicted if span[1] == "X"]
    assert kinds["X"].precision == sum(span in actual for span in of_x) / len(of_x)
    assert kinds["X"].examples == sum(span[1] == "X" for span in actual)


def tagged(names: tuple[str, ...], tags: list[int], ends: list[int]) -> TaggedWords:
    rows = Rows(np.asarray([2, EOS] * len(tags)), EOS)
    return TaggedWords(rows, Labels(names, np.asarray(tags, np.int32), np.asarray(ends)), 0)


def test_tags_that_mark_no_spans_are_measured_one_by_one() -> None:
    words = tagged(("DT", "NN", "VB"), [0, 1, 2, 1], [3, 4])
    figures = score_tags(Predictions(1.0, 4, np.asarray([0, 1, 1, 1])), words)
    assert figures.accuracy == 0.75
    assert figures.overall.f1 == pytest.approx((1 + 0.8 + 0) / 3)


def test_only_sentences_that_were_read_are_scored() -> None:
    words = tagged(("B-A", "I-A", "O"), [0, 1, 2, 0, 0], [3, 4, 5])
    measured = evaluate_tags(Predictions(2.0, 4, np.asarray([0, 1, 2, 0, -1])), words, "s")
    assert (measured.sentences, measured.words, measured.accuracy, measured.f1) == (2, 4, 1.0, 1.0)
    assert measured.kinds["A"].examples == 2
    assert measured.show().splitlines()[5] == "f1         1.0000"
