"""The demonstration, made small."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from chainrule.experiments import demo
from chainrule.experiments.compare import Contender
from chainrule.models.ngram import NgramConfig
from chainrule.text.samples.texts import SAMPLES, english_text
from chainrule.training.fitting.fitting import TrainingListener


def test_the_text_that_comes_with_python_is_large_enough_and_split_without_loss(tmp_path: Path) -> None:
    text = english_text()
    assert len(text.encode()) > 400_000
    paths = demo.write_splits(tmp_path)
    parts = [paths[name].read_text(encoding="utf-8") for name in ("train", "valid", "test")]
    assert "".join(parts) == text
    lines = [part.count("\n") for part in parts]
    assert lines[0] / sum(lines) == pytest.approx(0.8, abs=0.01)
    assert lines[1] / sum(lines) == pytest.approx(0.1, abs=0.01)


def test_it_shows_what_counting_alone_can_do_beside_the_networks() -> None:
    models = {contender.name: contender for contender in demo.MODELS}
    assert [name for name, one in models.items() if one.model == "ngram"] == [
        "unigram",
        "add-one trigram",
        "modified Kneser-Ney 5-gram",
    ]
    defaults = NgramConfig()
    assert (defaults.order, defaults.smoothing, defaults.delta) == (5, "modified-kneser-ney", 1.0)
    assert models["modified Kneser-Ney 5-gram"].options == {}
    assert models["add-one trigram"].options == {"order": 3, "smoothing": "additive"}
    folders = [contender.folder for contender in demo.MODELS]
    assert len({*folders}) == len(folders)


def test_it_trains_measures_and_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trigram = Contender("add-one trigram", "ngram", options={"order": 3, "smoothing": "additive"})
    monkeypatch.setattr(demo, "MODELS", (trigram, "rnn"))
    text = "\n".join(english_text().splitlines()[:900]) + "\n"
    monkeypatch.setitem(SAMPLES, "english", lambda: text)
    notes: list[str] = []
    rows, sample = demo.run_demo(tmp_path, TrainingListener(note=notes.append), seconds=0.5)
    mixture = "mixture of the best two kinds"
    assert {row.model for row in rows} == {"add-one trigram", "rnn", mixture}
    assert rows[0].model == mixture
    assert rows[0].bits_per_byte <= rows[1].bits_per_byte <= rows[2].bits_per_byte < 8
    assert all(row.train_tokens_per_second > 0 and row.generate_tokens_per_second > 0 for row in rows)
    assert sample.startswith("The ")
    assert len(sample) > 20
    assert sum(note.endswith("bits per byte") for note in notes) == 3
    again, same = demo.run_demo(tmp_path, TrainingListener(note=notes.append), seconds=0.5)
    assert same == sample
    assert [row.bits_per_byte for row in again] == [row.bits_per_byte for row in rows]
    assert sum("is already finished" in note for note in notes) == 3


def test_two_translators_are_trained_and_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = {"train": 300, "valid": 20, "test": 20}
    monkeypatch.setattr(demo, "write_phrase_pairs", partial(demo.write_phrase_pairs, counts=few))
    notes: list[str] = []
    rows, translated = demo.run_translation_demo(tmp_path, TrainingListener(note=notes.append), seconds=0.5)
    assert {row.model for row in rows} == {"seq2seq-attention", "seq2seq-transformer"}
    assert all(0 < row.bits_per_byte < 8 and row.generate_tokens_per_second > 0 for row in rows)
    assert all(row.exact_match is not None and row.bleu is not None for row in rows)
    assert [line for line, _ in translated] == list(demo.EXAMPLE_LINES)
    assert sum(note.endswith("exact match") for note in notes) == 2
