"""What is held out for validation is not in the vocabulary, and its unknown words are counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chainrule as cr
from chainrule.checkpoint.folder import RunFolder
from chainrule.tasks.task import Listener, task_of
from chainrule.training.fitting.fitting import TrainingListener
from chainrule.training.request import make_config

ROWS = 400


def own_word(number: int) -> str:
    return f"word{number}x"


def opened(tmp_path: Path, data: list[Path], model: str, notes: list[str], **tokenizer: Any) -> Any:
    named = {"model": {"name": model}, "data": {"train": [str(path) for path in data]}, "tokenizer": tokenizer}
    config = make_config(None, named, {})
    return task_of(config).open(config, RunFolder(tmp_path / "run"), Listener(note=notes.append))


@pytest.fixture
def labelled(tmp_path: Path) -> Path:
    path = tmp_path / "u.tsv"
    path.write_text("".join(f"{'ab'[i % 2]}\t{own_word(i)} common\n" for i in range(ROWS)))
    return path


def test_a_classifier_does_not_know_the_words_of_held_out_texts(labelled: Path, tmp_path: Path) -> None:
    corpus = opened(tmp_path, [labelled], "classifier", notes := [], min_count=1)
    held_out = {own_word(index) for index in corpus.valid_P.tolist()}
    assert len(held_out) == 20
    assert set(corpus.tokenizer.parts) == {own_word(i) for i in range(ROWS)} - held_out | {"common"}
    assert (corpus.validation_data.oov, corpus.validation_data.tokens) == (20, 40)
    assert corpus.vocabulary.counts_V[corpus.tokenizer.unk] == 0
    assert corpus.vocabulary.counts_V[corpus.tokenizer.to_id("common")] == ROWS - 20
    assert notes == ["tokeniser: word, split at word boundaries (the default for labelled text)"]


def test_a_tagger_does_not_know_the_words_of_held_out_sentences(tmp_path: Path) -> None:
    path = tmp_path / "u.conll"
    path.write_text("".join(f"{own_word(i)} A\ncommon B\n\n" for i in range(ROWS)))
    corpus = opened(tmp_path, [path], "tagger", [], min_count=1)
    held_out = {own_word(index) for index in corpus.valid_P.tolist()}
    assert set(corpus.tokenizer.parts).isdisjoint(held_out)
    assert (corpus.validation_data.oov, corpus.validation_data.tokens) == (20, 40)


def test_pieces_of_a_long_sentence_are_held_out_together(tmp_path: Path) -> None:
    path = tmp_path / "long.conll"
    path.write_text("".join("".join(f"w{n % 3} A\n" for n in range(9)) + "x B\n\n" for _ in range(40)))
    named = {"model": {"name": "tagger", "encoder": "bert", "positions": 4}, "data": {"train": [str(path)]}}
    config = make_config(None, named, {})
    corpus: Any = task_of(config).open(config, RunFolder(tmp_path / "run"), Listener())
    sentence_P = corpus.train.examples.texts()
    assert len(sentence_P) > 40
    assert set(sentence_P[corpus.train_P]).isdisjoint(sentence_P[corpus.valid_P])


@pytest.mark.parametrize("joint", [True, False])
def test_a_translator_does_not_know_the_words_of_held_out_pairs(joint: bool, tmp_path: Path) -> None:
    sides = [tmp_path / "u.src", tmp_path / "u.tgt"]
    for side, mark in zip(sides, "st", strict=True):
        side.write_text("".join(f"{own_word(i)}{mark} common\n" for i in range(ROWS)))
    corpus = opened(tmp_path, sides, "seq2seq-rnn", [], kind="word", min_count=1, joint=joint)
    known = {*corpus.tokenizer.parts, *(corpus.source_tokenizer or corpus.tokenizer).parts}
    assert known == {f"{own_word(i)}{mark}" for i in range(ROWS - 20) for mark in "st"} | {"common"}
    assert (corpus.validation_data.oov, corpus.validation_data.tokens) == (40, 80)
    assert corpus.vocabulary.counts_V[corpus.tokenizer.unk] == 0


def test_subwords_are_fitted_without_the_held_out_pairs(tmp_path: Path) -> None:
    sides = [tmp_path / "u.src", tmp_path / "u.tgt"]
    for side in sides:
        side.write_text("the cat sat on the mat\n" * 380 + "zyzzyva quixotic zyzzyva\n" * 20)
    corpus = opened(tmp_path, sides, "seq2seq-rnn", [], kind="bpe", vocab_size=280)
    pieces = {corpus.tokenizer.piece(token) for token in range(corpus.tokenizer.vocab_size)}
    assert not any("z" in piece and "<0x" not in piece for piece in pieces)


def test_the_share_of_unknown_words_is_printed_and_in_the_result(labelled: Path, tmp_path: Path) -> None:
    notes: list[str] = []
    run = cr.train(
        labelled, model="classifier", steps=2, out=tmp_path / "run", listener=TrainingListener(note=notes.append)
    )
    assert "validation: 20 texts held out; 50.00% of 40 tokens are unknown words" in notes
    found = json.loads((run.folder.path / "result.json").read_text())["validation"]
    assert found == {"held_out": True, "items": 20, "unit": "text", "tokens": 40, "oov": 20, "oov_rate": 0.5}


def test_all_is_known_and_trained_on_where_validation_data_is_given(labelled: Path, tmp_path: Path) -> None:
    config = make_config(
        None,
        {"model": {"name": "classifier"}, "data": {"train": [str(labelled)], "valid": [str(labelled)]}},
        {"tokenizer": {"min_count": 1}},
    )
    corpus: Any = task_of(config).open(config, RunFolder(tmp_path / "run"), Listener())
    assert len(corpus.tokenizer.parts) == ROWS + 1
    assert corpus.validation_data.oov == 0
    assert np.array_equal(corpus.train_P, np.arange(ROWS))
