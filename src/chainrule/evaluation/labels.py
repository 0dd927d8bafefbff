"""Evaluation of labels: accuracy, precision, recall, F1 and confusions.

For each label, precision is the share of its predictions that are correct, recall the share of its occurrences that
are predicted, and F1 = 2·P·R / (P + R), or 0 if there are none. Macro F1 is the mean over the labels that occur or are
predicted; micro F1 is F1 of all decisions together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from chainrule.base.arrays import Array
from chainrule.base.devices import device_of
from chainrule.base.modes import evaluating
from chainrule.base.processes import ALONE, Processes
from chainrule.base.progress import Progress
from chainrule.base.tables import show_fields, show_table
from chainrule.data.batches import to_device
from chainrule.data.labels import Examples, LabelBatches
from chainrule.data.rows import Indices
from chainrule.evaluation.measurement import Measurement
from chainrule.models.classifier import Classifier, LabelModel

ROWS = 64
"""Texts that are read together."""

MAX_MATRIX = 12
"""Confusions of at most this many labels are shown as a matrix; of more labels, this many are listed."""

UNREAD = -1
"""In place of a label: the model did not read the word or text."""

LabelArray = NDArray[np.int64]


class Predictions(NamedTuple):
    """The labels that a model predicts for some examples."""

    nats: float  # sum of -log p of the true labels
    items: int  # texts or words that were labelled
    predicted: LabelArray  # shaped like the targets; UNREAD where no label was predicted


class LabelledItems(NamedTuple):
    """Labelled data with what a model predicts for it."""

    examples: Any  # LabelledTexts or TaggedWords
    indices_P: Indices  # the examples that were labelled
    predictions: Predictions
    evaluation: Any  # a ClassEvaluation or a TagEvaluation


def predict(
    model: LabelModel,
    examples: Examples,
    indices_P: Indices | None = None,
    progress: Progress | None = None,
    processes: Processes = ALONE,
) -> Predictions:
    """Let a model label some examples (default: all), and sum up -log p of the true labels.

    The processes share the batches.
    """
    indices_P = np.arange(len(examples)) if indices_P is None else indices_P
    predicted, nats, items, done = np.full_like(examples.targets(), UNREAD), 0.0, 0, 0
    device = device_of(model)
    with evaluating(model):
        for group in processes.own(list(LabelBatches(examples, indices_P, ROWS, shuffled=False).groups())):
            batch = to_device(examples.batch(group), device)
            outputs = model(batch)
            nats += float(model.negative_log_probs(outputs, batch).double().sum())
            items += len(group) if batch.weights_BT is None else int(batch.weights_BT.sum())
            examples.scatter(predicted, group, model.predict(outputs, batch).cpu().numpy())
            done += len(group)
            if progress:
                progress(done, len(indices_P))
    nats, total = processes.sum([nats, float(items)])
    return Predictions(nats, int(total), processes.maximum(predicted))


def label_probabilities(model: Classifier, examples: Examples, indices_P: Indices, labels: int) -> Array:
    """p of each label of each of some texts, in their order -> PC, float64."""
    places_P = np.full(len(examples), -1)
    places_P[indices_P] = np.arange(len(indices_P))
    probabilities_PC = np.zeros((len(indices_P), labels))
    device = device_of(model)
    with evaluating(model):
        for group in LabelBatches(examples, indices_P, ROWS, shuffled=False).groups():
            outputs = model(to_device(examples.batch(group), device))
            probabilities_PC[places_P[group]] = model.probabilities(outputs).double().cpu().numpy()
    return probabilities_PC


# Scores


@dataclass(frozen=True)
class LabelScore:
    """Scores of one label, or of one kind of span."""

    precision: float
    recall: float
    f1: float
    examples: int  # that have it


def score_counts(correct: float, predicted: float, actual: float) -> LabelScore:
    """Return the scores that follow from the numbers of correct predictions, predictions and occurrences."""
    precision, recall = correct / predicted if predicted else 0.0, correct / actual if actual else 0.0
    f1 = 2 * correct / (predicted + actual) if predicted + actual else 0.0
    return LabelScore(precision, recall, f1, int(actual))


def confusion_matrix(targets_N: LabelArray, predicted_N: LabelArray, labels: int) -> LabelArray:
    """Return how often each true label (row) was predicted as each label (column), CC."""
    return np.bincount(targets_N * labels + predicted_N, minlength=labels * labels).reshape(labels, labels)


class ClassScores(NamedTuple):
    """Scores of all labels together, and of each."""

    accuracy: float
    macro_f1: float
    micro_f1: float
    each: list[LabelScore]


def score_labels(targets: LabelArray, predicted: LabelArray, labels: int) -> ClassScores:
    """Score texts with one label each (P and P), or with any number of labels (PC and PC, 0 or 1)."""
    if targets.ndim == 1:
        targets, predicted = (np.eye(labels, dtype=np.int64)[side] for side in (targets, predicted))
    correct_C, predicted_C, actual_C = (targets * predicted).sum(0), predicted.sum(0), targets.sum(0)
    counts = zip(correct_C.tolist(), predicted_C.tolist(), actual_C.tolist(), strict=True)
    each = [score_counts(*of_label) for of_label in counts]
    counted = [one.f1 for one, times in zip(each, predicted_C, strict=True) if times or one.examples]
    micro = score_counts(float(correct_C.sum()), float(predicted_C.sum()), float(actual_C.sum())).f1
    accuracy = float((targets == predicted).all(1).mean())
    return ClassScores(accuracy, float(np.mean(counted)) if counted else 0.0, micro, each)


# Results


@dataclass(frozen=True)
class ClassEvaluation(Measurement):
    """Results of a classifier on labelled texts."""

    examples: int
    accuracy: float  # share of texts whose labels are all correct
    macro_f1: float
    micro_f1: float
    loss: float  # nats per text
    labels: dict[str, LabelScore]
    confusion: list[list[int]] | None  # rows: the true label, columns: the predicted one; None with several labels
    signature: str
    protocol: str

    @property
    def f1(self) -> float:
        """Macro F1."""
        return self.macro_f1

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per label."""
        return [{"label": name, **asdict(one)} for name, one in self.labels.items()]

    def show(self) -> str:
        """Return the figures, a row per label and the confusions as text."""
        names = ("examples", "accuracy", "macro_f1", "micro_f1", "loss")
        parts = [show_fields({name: getattr(self, name) for name in names}), show_scores(self.labels, "label")]
        if self.confusion is not None:
            parts.append(show_confusion(list(self.labels), self.confusion))
        return "\n\n".join([*parts, f"signature  {self.signature}"])


def evaluate_labels(
    predictions: Predictions, examples: Examples, indices_P: Indices, signature: str
) -> ClassEvaluation:
    """Return the results of a classifier on the examples with these numbers."""
    names, targets, predicted = examples.labels.names, examples.targets()[indices_P], predictions.predicted[indices_P]
    scores = score_labels(targets, predicted, len(names))
    single = not examples.labels.multiple
    decision = "the most probable label is predicted" if single else "every label with p > 0.5 is predicted"
    return ClassEvaluation(
        examples=predictions.items,
        accuracy=scores.accuracy,
        macro_f1=scores.macro_f1,
        micro_f1=scores.micro_f1,
        loss=predictions.nats / predictions.items,
        labels=dict(zip(names, scores.each, strict=True)),
        confusion=confusion_matrix(targets, predicted, len(names)).tolist() if single else None,
        signature=signature,
        protocol=(
            f"{predictions.items} texts; {decision}; macro F1 is the mean over the labels that occur or are predicted."
        ),
    )


def show_scores(scores: dict[str, LabelScore], heading: str) -> str:
    """Return a table with one row per label; `heading` is that of the names."""
    rows = [[heading, "precision", "recall", "f1", "examples"]]
    for name, one in scores.items():
        rows.append([name, f"{one.precision:.4f}", f"{one.recall:.4f}", f"{one.f1:.4f}", f"{one.examples:,}"])
    return show_table(rows)


def show_confusion(names: Sequence[str], counts: Sequence[Sequence[int]]) -> str:
    """Return the confusion matrix, or the most frequent confusions if there are many labels."""
    if len(names) <= MAX_MATRIX:
        rows = [["true \\ predicted", *names]]
        rows += [[name, *map(str, row)] for name, row in zip(names, counts, strict=True)]
        return show_table(rows)
    wrong = [
        (count, names[i], names[j]) for i, row in enumerate(counts) for j, count in enumerate(row) if i != j and count
    ]
    most = sorted(wrong, key=lambda one: -one[0])[:MAX_MATRIX]
    return show_table([["true", "predicted", "times"], *([true, other, f"{count:,}"] for count, true, other in most)])
