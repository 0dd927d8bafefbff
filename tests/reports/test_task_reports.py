"""Reports of translators, classifiers and taggers: figures as `eval` prints them, tables by a second route."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chainrule as cr
from chainrule.evaluation.metrics import Bleu
from chainrule.reports.document import Report
from chainrule.reports.sections.translations import matched_ngrams

WORDS = dict(
    zip(["one", "two", "red", "dog", "cat", "house"], ["eins", "zwei", "rot", "Hund", "Katze", "Haus"], strict=True)
)
TOPICS = {
    "animals": "dog cat bird fish horse",
    "plants": "tree rose grass oak fern",
    "rooms": "kitchen hall bath attic",
}


def section(report: Report, name: str) -> dict[str, Any]:
    return next(one for one in report.to_dict()["sections"] if one["name"] == name)


# Translators


@pytest.fixture(scope="module")
def translators(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Report]:
    folder, chance = tmp_path_factory.mktemp("translators"), random.Random(1)
    for name, count in (("train", 300), ("valid", 20), ("test", 40)):
        lines = [[chance.choice(list(WORDS)) for _ in range(chance.randint(1, 12))] for _ in range(count)]
        (folder / f"{name}.en").write_text("".join(" ".join(line) + "\n" for line in lines))
        (folder / f"{name}.de").write_text("".join(" ".join(WORDS[word] for word in line) + "\n" for line in lines))
    small = {"model": {"embedding": 16, "hidden": 24}}
    for model, steps in (("seq2seq-attention", 60), ("seq2seq-rnn", 20)):
        cr.train(
            folder / "train.en",
            folder / "train.de",
            model=model,
            valid=[folder / "valid.en", folder / "valid.de"],
            tokenizer="word",
            steps=steps,
            out=folder / model,
            settings=small,
            progress=False,
        )
    runs = [folder / "seq2seq-rnn", folder / "seq2seq-attention"]
    return folder, cr.report(*runs, data=[folder / "test.en", folder / "test.de"], num_beams=2)


def test_translators_have_the_figures_of_eval(translators: tuple[Path, Report]) -> None:
    folder, report = translators
    for system in report.systems:
        run: Any = cr.load(system.run)
        measured = run.evaluate([folder / "test.en", folder / "test.de"], num_beams=2)
        bleu, chrf = system.scores
        assert (bleu.value, chrf.value) == (measured.bleu, measured.chrf)
        assert (bleu.interval, chrf.interval) == (measured.bleu_interval, measured.chrf_interval)
        assert system.facts["bits/byte"] == measured.bits_per_byte
        assert system.facts["exact"] == measured.exact_match
        assert system.protocol == measured.protocol
    outputs = [
        cr.load(system.run).outputs_of([folder / "test.en", folder / "test.de"], num_beams=2)  # type: ignore[attr-defined]
        for system in report.systems
    ]
    tested = cr.load(report.systems[0].run).compare_with(  # type: ignore[attr-defined]
        [folder / "test.en", folder / "test.de"], tuple(outputs)
    )
    row = section(report, "leaderboard")["blocks"][2]["rows"][0]
    assert row[2:5] == [tested.difference, list(tested.interval), tested.p_value]


def test_bleu_by_length_is_that_of_the_sentences_of_this_length(translators: tuple[Path, Report]) -> None:
    folder, report = translators
    best: Any = cr.load(report.systems[0].run)
    pairs = [folder / "test.en", folder / "test.de"]
    outputs, references = best.outputs_of(pairs, num_beams=2), pairs[1].read_text().splitlines()
    rows = [row for row in section(report, "length")["blocks"][0]["rows"] if row[0] == report.systems[0].name]
    assert sum(row[2] for row in rows) == 40
    for _, bucket, count, score, ratio in rows:
        low, high = map(int, bucket.split("–"))
        chosen = [index for index, line in enumerate(references) if low <= len(line.split()) <= high]
        assert len(chosen) == count
        some, their = [outputs[index] for index in chosen], [references[index] for index in chosen]
        assert score == pytest.approx(Bleu().official.corpus_score(some, [their]).score)
        assert ratio == pytest.approx(sum(len(one.split()) for one in some) / sum(len(one.split()) for one in their))


def test_matched_ngrams_by_hand() -> None:
    found = matched_ngrams(["a a b", "x"], ["a b a b", "y"], Bleu())
    assert found == Counter({("a",): 2, ("b",): 1, ("a", "b"): 1})


def test_translators_have_examples_attention_and_calibration(translators: tuple[Path, Report]) -> None:
    _, report = translators
    names = [one.name for one in report.sections]
    for name in ("length", "ngrams", "worst", "calibration"):
        assert name in names
    if report.systems[0].model == "seq2seq-attention":
        matrix = section(report, "attention")["blocks"][0]
        assert [sum(row) for row in matrix["values"]] == pytest.approx([1.0] * len(matrix["row_names"]), abs=1e-4)
    for row in section(report, "ngrams")["blocks"][0]["rows"]:
        assert row[4] == row[2] - row[3] > 0
    for name, tokens, accuracy, *_ in section(report, "calibration")["blocks"][0]["rows"]:
        run: Any = cr.load(next(one.run for one in report.systems if one.name == name))
        measured = run.evaluate([translators[0] / "test.en", translators[0] / "test.de"], num_beams=1)
        assert (tokens, accuracy) == (measured.tokens, pytest.approx(measured.token_accuracy))


# Labels


@pytest.fixture(scope="module")
def topics(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Report]:
    folder, chance = tmp_path_factory.mktemp("topics"), random.Random(2)
    for name, count in (("train", 120), ("test", 45)):
        rows = []
        for _ in range(count):
            label, words = chance.choice(list(TOPICS.items()))
            rows.append(f"{label}\t{' '.join(chance.choices([*words.split(), 'the', 'a', 'dog'], k=5))}\n")
        (folder / f"{name}.tsv").write_text("".join(rows))
    for name, steps in (("good", 40), ("bad", 1)):
        options: dict[str, Any] = {"settings": {"model": {"embedding": 16, "hidden": 16}}, "progress": False}
        cr.train(folder / "train.tsv", model="classifier", steps=steps, out=folder / name, **options)
    return folder, cr.report(folder / "bad", folder / "good", data=folder / "test.tsv")


def test_classifiers_have_the_figures_of_eval(topics: tuple[Path, Report]) -> None:
    folder, report = topics
    assert [system.name for system in report.systems] == ["good", "bad"]
    for place, system in enumerate(report.systems):
        measured = cr.load(system.run).evaluate(folder / "test.tsv")  # type: ignore[attr-defined]
        (score,) = system.scores
        assert score.value == measured.accuracy
        assert score.table_PF is not None
        assert score.table_PF.sum(axis=0).tolist() == [pytest.approx(45 * measured.accuracy), 45]
        assert system.facts["macro F1"] == measured.macro_f1
        matrix = section(report, "confusions")["blocks"][place]
        assert matrix["values"] == measured.confusion
        rows = [row for row in section(report, "labels")["blocks"][1]["rows"] if row[0] == system.name]
        assert [row[4] for row in rows] == [one.f1 for one in measured.labels.values()]


def test_calibration_of_labels_is_that_of_classify(topics: tuple[Path, Report]) -> None:
    folder, report = topics
    run: Any = cr.load(folder / "good")
    lines = [line.split("\t") for line in (folder / "test.tsv").read_text().splitlines()]
    found = [best[0] for best in run.classify([text for _, text in lines])]
    gaps: dict[int, list[float]] = {}
    for one, (label, _) in zip(found, lines, strict=True):
        gaps.setdefault(min(9, int(one.probability * 10)), []).append((one.label == label) - one.probability)
    error = sum(abs(sum(own)) for own in gaps.values()) / len(lines)
    rows = {row[0]: row for row in section(report, "calibration")["blocks"][0]["rows"]}
    assert rows["good"][1:] == [45, pytest.approx(error, abs=1e-6)]


def test_taggers(tmp_path: Path) -> None:
    chance, tags = random.Random(3), {"Ada": "B-PER", "runs": "O", "in": "O", "Rome": "B-LOC", "sings": "O"}
    for name, count in (("train", 60), ("test", 20)):
        sentences = [[chance.choice(list(tags)) for _ in range(chance.randint(1, 6))] for _ in range(count)]
        text = "\n".join("".join(f"{word}\t{tags[word]}\n" for word in words) for words in sentences)
        (tmp_path / f"{name}.conll").write_text(text)
    small: dict[str, Any] = {"settings": {"model": {"embedding": 16, "hidden": 16}}, "progress": False}
    cr.train(tmp_path / "train.conll", model="tagger", steps=15, out=tmp_path / "names", **small)
    report = cr.report(tmp_path / "names", data=tmp_path / "test.conll")
    measured = cr.load(tmp_path / "names").evaluate(tmp_path / "test.conll")  # type: ignore[attr-defined]
    (score,) = report.systems[0].scores
    assert score.value == measured.accuracy
    assert score.table_PF is not None
    correct, words = score.table_PF.sum(axis=0)
    assert (correct / words, words) == (pytest.approx(measured.accuracy), measured.words)
    matrix = np.array(section(report, "confusions")["blocks"][0]["values"])
    assert (matrix.sum(), matrix.trace()) == (measured.words, correct)
    assert [row[4] for row in section(report, "labels")["blocks"][-1]["rows"]] == [
        one.f1 for one in measured.kinds.values()
    ]
    held_out = cr.report(tmp_path / "names")
    assert held_out.systems[0].scores[0].value == cr.load(tmp_path / "names").evaluate_held_out().accuracy  # type: ignore[attr-defined]
