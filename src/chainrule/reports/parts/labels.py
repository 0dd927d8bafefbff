"""Classifiers and taggers: accuracy with intervals and tests, scores by label, confusions, calibration."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from chainrule.base.arrays import Array
from chainrule.evaluation.calibration import Reliability, reliability
from chainrule.evaluation.labels import (
    UNREAD,
    ClassEvaluation,
    LabelledItems,
    confusion_matrix,
    label_probabilities,
)
from chainrule.evaluation.tags import TagEvaluation
from chainrule.reports.blocks.table import Column, decimals
from chainrule.reports.metrics import METRICS, ranked
from chainrule.reports.parts.part import Options, Part, facts_of
from chainrule.reports.section import Section
from chainrule.reports.sections.calibration import label_calibration_section
from chainrule.reports.sections.curves import learning_curves
from chainrule.reports.sections.labels import confusions, label_scores
from chainrule.reports.sections.leaderboard import leaderboard
from chainrule.reports.sections.time import time_section
from chainrule.reports.system import System
from chainrule.runs.base import Run
from chainrule.runs.labels import LabelRun
from chainrule.text.readers import open_texts

METRIC = METRICS["accuracy"]


def measure_classifiers(runs: Mapping[str, Run], options: Options) -> Part:
    """Label the test texts with each classifier."""
    labelled, runs = _label(runs, options), dict(runs)
    systems = ranked([_system(name, run, labelled[name], options) for name, run in runs.items()], METRIC)
    ordered = {system.name: labelled[system.name] for system in systems}
    evaluations: dict[str, ClassEvaluation] = {name: one.evaluation for name, one in ordered.items()}
    further = [Column(name, decimals(4)) for name in ("macro F1", "micro F1", "loss")]
    counts = {name: one.confusion for name, one in evaluations.items() if one.confusion is not None}
    first = next(iter(evaluations.values()))
    reliabilities = {name: _calibrate(runs[name], one) for name, one in ordered.items() if name in counts}
    sections = [
        leaderboard(systems, ["accuracy"], further),
        learning_curves({name: runs[name] for name in ordered}),
        label_scores({name: one.labels for name, one in evaluations.items()}, "label"),
        confusions(counts, list(first.labels)) if counts else None,
        label_calibration_section(reliabilities) if reliabilities else None,
        time_section(systems, "accuracy"),
    ]
    return Part(systems, [one for one in sections if one is not None], _data(runs, options))


def measure_taggers(runs: Mapping[str, Run], options: Options) -> Part:
    """Tag the test sentences with each tagger."""
    labelled, runs = _label(runs, options), dict(runs)
    systems = ranked([_system(name, run, labelled[name], options) for name, run in runs.items()], METRIC)
    ordered = {system.name: labelled[system.name] for system in systems}
    evaluations: dict[str, TagEvaluation] = {name: one.evaluation for name, one in ordered.items()}
    further = [Column(name, decimals(4)) for name in ("F1", "precision", "recall", "loss")]
    first = next(iter(ordered.values())).examples.labels.names
    sections: list[Section | None] = [
        leaderboard(systems, ["accuracy"], further),
        learning_curves({name: runs[name] for name in ordered}),
        label_scores({name: one.kinds for name, one in evaluations.items()}, "kind"),
        confusions({name: _tag_confusions(one) for name, one in ordered.items()}, list(first)),
        time_section(systems, "accuracy"),
    ]
    return Part(systems, [one for one in sections if one is not None], _data(runs, options))


def _label(runs: Mapping[str, Run], options: Options) -> dict[str, LabelledItems]:
    found = {}
    for name, run in runs.items():
        options.note(f"measuring {name}")
        assert isinstance(run, LabelRun)
        found[name] = run.label(options.data or None, field=options.text_field)
    return found


def _system(name: str, run: Run, one: LabelledItems, options: Options) -> System:
    measured = one.evaluation
    return System(
        name=name,
        run=str(run.folder.given),
        model=run.config.model.name,
        task=type(measured).__name__,
        data=_key(run, options),
        scores=[METRIC.score(measured.accuracy, item_table(one), measured.signature)],
        protocol=measured.protocol,
        facts={**_figures(measured), "loss": measured.loss, **facts_of(run)},
    )


def _figures(measured: ClassEvaluation | TagEvaluation) -> dict[str, float]:
    if isinstance(measured, ClassEvaluation):
        return {"macro F1": measured.macro_f1, "micro F1": measured.micro_f1}
    return {"F1": measured.f1, "precision": measured.precision, "recall": measured.recall}


def item_table(one: LabelledItems) -> Array:
    """Correct labels and labels of each text, or of each sentence of a tagger -> PF."""
    examples, predicted = one.examples, one.predictions.predicted
    targets = examples.targets()
    if targets.ndim == 2 or isinstance(one.evaluation, ClassEvaluation):
        correct_P = targets[one.indices_P] == predicted[one.indices_P]
        correct_P = correct_P.all(axis=1) if correct_P.ndim == 2 else correct_P
        return np.stack([correct_P, np.ones(len(correct_P))], axis=1).astype(np.float64)
    read_N = predicted != UNREAD
    begins_P = np.concatenate([[0], examples.labels.ends_P[:-1]])
    sums = (
        np.add.reduceat(part_N.astype(np.float64), begins_P) for part_N in ((targets == predicted) & read_N, read_N)
    )
    table_PF = np.stack(list(sums), axis=1)
    return table_PF[table_PF[:, 1] > 0]


def _tag_confusions(one: LabelledItems) -> list[list[int]]:
    targets_N, predicted_N = one.examples.targets(), one.predictions.predicted
    read_N = predicted_N != UNREAD
    counts: list[list[int]] = confusion_matrix(
        targets_N[read_N], predicted_N[read_N], len(one.examples.labels.names)
    ).tolist()
    return counts


def _calibrate(run: Run, one: LabelledItems) -> Reliability:
    names = one.examples.labels.names
    probabilities_PC = label_probabilities(run.model, one.examples, one.indices_P, len(names))
    targets_P = one.examples.targets()[one.indices_P]
    return reliability(probabilities_PC.max(axis=1), probabilities_PC.argmax(axis=1) == targets_P)


def _key(run: Run, options: Options) -> str:
    """A fingerprint of the test data that does not depend on the tokeniser."""
    data = run.config.data
    files = run.files(options.data, options.text_field) if options.data else [*(data.valid or data.train)]
    part = "" if options.data or data.valid else f", held out {data.held_out:g}"
    return open_texts(files, field=options.text_field or data.field, exact=True).fingerprint() + part


def _data(runs: Mapping[str, Run], options: Options) -> dict[str, str]:
    found = {}
    for run in runs.values():
        data = run.config.data
        files = run.files(options.data, options.text_field) if options.data else [*(data.valid or data.train)]
        found[", ".join(map(str, files))] = _key(run, options)
    return found
