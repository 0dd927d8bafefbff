"""Labels measured: how often they are right, and which are taken for which.

For each label, precision is the share of the told ones that are right, recall the share of the right ones that are
told, F1 = 2·P·R / (P + R), 0 where nothing is told or nothing is right. Macro F1 is the mean over the labels that come
or are told, micro F1 that of all decisions together.

Legend: P texts, N decisions, L labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from chainrule.base.devices import device_of
from chainrule.base.modes import evaluating
from chainrule.base.progress import Progress
from chainrule.data.batches import to_device
from chainrule.data.labels import Examples, LabelBatches, Numbers

ROWS = 64
"""Texts that are read together."""

MOST_SHOWN = 12
"""So many labels have their confusions shown as a table, more as a list."""

UNREAD = -1

Array = NDArray[np.int64]


class Told(NamedTuple):
    """What a model tells of some examples: arrays like the targets, UNREAD where it was not asked."""

    nats: float
    asked: int  # texts, or words
    chosen: Array


def tell(model: Any, examples: Examples, numbers_P: Numbers | None = None, progress: Progress | None = None) -> Told:
    """Let a model label some examples, all by default, and sum up its -log p of the right labels."""
    numbers_P = np.arange(len(examples)) if numbers_P is None else numbers_P
    chosen, nats, count, done = np.full_like(examples.targets(), UNREAD), 0.0, 0, 0
    device = device_of(model)
    with evaluating(model):
        for group in LabelBatches(examples, numbers_P, ROWS, shuffled=False).groups():
            batch = to_device(examples.batch(group), device)
            outputs = model(batch)
            nats += float(model.nats(outputs, batch).double().sum())
            count += len(group) if batch.weights_BT is None else int(batch.weights_BT.sum())
            examples.put(chosen, group, model.choose(outputs, batch).cpu().numpy())
            done += len(group)
            if progress:
                progress(done, len(numbers_P))
    return Told(nats, count, chosen)


# Figures


@dataclass(frozen=True)
class LabelScore:
    """One label, or all of a kind of span."""

    precision: float
    recall: float
    f1: float
    examples: int  # that have it


def score(right: float, told: float, there: float) -> LabelScore:
    """Of counts: right ones, told ones, ones that are there."""
    precision, recall = right / told if told else 0.0, right / there if there else 0.0
    f1 = 2 * right / (told + there) if told + there else 0.0
    return LabelScore(precision, recall, f1, int(there))


def confusion_matrix(targets_N: Array, chosen_N: Array, labels: int) -> Array:
    """How often each label (row) was told as each (column), LL."""
    return np.bincount(targets_N * labels + chosen_N, minlength=labels * labels).reshape(labels, labels)


class Scores(NamedTuple):
    """Of all labels, one by one and together."""

    accuracy: float
    macro_f1: float
    micro_f1: float
    each: list[LabelScore]


def label_scores(targets: Array, chosen: Array, labels: int) -> Scores:
    """Of texts with one label each (P and P), or with any number of them (PL and PL, 0 or 1)."""
    if targets.ndim == 1:
        targets, chosen = (np.eye(labels, dtype=np.int64)[side] for side in (targets, chosen))
    right_L, told_L, there_L = (targets * chosen).sum(0), chosen.sum(0), targets.sum(0)
    each = [score(*counts) for counts in zip(right_L.tolist(), told_L.tolist(), there_L.tolist(), strict=True)]
    counted = [one.f1 for one, told in zip(each, told_L, strict=True) if told or one.examples]
    micro = score(float(right_L.sum()), float(told_L.sum()), float(there_L.sum())).f1
    accuracy = float((targets == chosen).all(1).mean())
    return Scores(accuracy, float(np.mean(counted)) if counted else 0.0, micro, each)


# Reports


@dataclass(frozen=True)
class ClassEvaluation:
    """A classifier measured on labelled texts."""

    examples: int
    accuracy: float  # share of texts of which all labels are right
    macro_f1: float
    micro_f1: float
    loss: float  # nats a text
    labels: dict[str, LabelScore]
    confusion: list[list[int]] | None  # rows: the true label, columns: the told one; None where there are several
    signature: str
    protocol: str

    @property
    def f1(self) -> float:
        return self.macro_f1

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def show(self) -> str:
        """The figures as lines for people."""
        names = ("examples", "accuracy", "macro_f1", "micro_f1", "loss")
        parts = [show_figures({name: getattr(self, name) for name in names}), show_labels(self.labels, "label")]
        if self.confusion is not None:
            parts.append(show_confusion(list(self.labels), self.confusion))
        return "\n\n".join([*parts, f"signature  {self.signature}"])


def class_evaluation(told: Told, examples: Examples, numbers_P: Numbers, signature: str) -> ClassEvaluation:
    """The report of what a classifier told of some texts."""
    names, targets, chosen = examples.labels.names, examples.targets()[numbers_P], told.chosen[numbers_P]
    scores = label_scores(targets, chosen, len(names))
    single = not examples.labels.multiple
    decided = "the most probable label is told" if single else "every label with p > 0.5 is told"
    return ClassEvaluation(
        examples=told.asked,
        accuracy=scores.accuracy,
        macro_f1=scores.macro_f1,
        micro_f1=scores.micro_f1,
        loss=told.nats / told.asked,
        labels=dict(zip(names, scores.each, strict=True)),
        confusion=confusion_matrix(targets, chosen, len(names)).tolist() if single else None,
        signature=signature,
        protocol=f"{told.asked} texts; {decided}; macro F1 is the mean over the labels that come or are told.",
    )


def show_figures(values: dict[str, float]) -> str:
    """`name  value` lines."""
    width = max(map(len, values))
    shown = {name: f"{value:,}" if isinstance(value, int) else f"{value:.4f}" for name, value in values.items()}
    return "\n".join(f"{name.replace('_', ' '):<{width}}  {value}" for name, value in shown.items())


def show_labels(scores: dict[str, LabelScore], head: str) -> str:
    """A row a label."""
    rows = [[head, "precision", "recall", "f1", "examples"]]
    for name, one in scores.items():
        rows.append([name, f"{one.precision:.4f}", f"{one.recall:.4f}", f"{one.f1:.4f}", f"{one.examples:,}"])
    return show_table(rows)


def show_confusion(names: Sequence[str], counts: Sequence[Sequence[int]]) -> str:
    """The matrix where labels are few, else what is confused most often."""
    if len(names) <= MOST_SHOWN:
        rows = [["true \\ told", *names]]
        rows += [[name, *map(str, row)] for name, row in zip(names, counts, strict=True)]
        return show_table(rows)
    wrong = [
        (count, names[i], names[j]) for i, row in enumerate(counts) for j, count in enumerate(row) if i != j and count
    ]
    most = sorted(wrong, key=lambda one: -one[0])[:MOST_SHOWN]
    return show_table([["true", "told", "times"], *([true, told, f"{count:,}"] for count, true, told in most)])


def show_table(rows: Sequence[Sequence[str]]) -> str:
    """Columns of equal width, the first to the left and the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if number == 0 else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )
