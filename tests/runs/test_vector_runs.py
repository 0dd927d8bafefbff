"""Runs of word2vec: trained, resumed, reported, and their error messages."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chainrule as cr
from chainrule.checkpoint.folder import RunFolder
from chainrule.config import RunConfig, TokenizerConfig
from chainrule.errors import ChainruleError, ConfigError, DataError
from chainrule.runs.vectors import VectorRun
from chainrule.tasks.task import model_task
from chainrule.tasks.text_corpus import TextCorpus, open_text_corpus
from chainrule.training.fit import fit
from chainrule.training.fitting.fitting import TrainingListener, fitting_of
from chainrule.training.fitting.sweeps import Word2VecTraining

SMALL = {"vector_size": 8, "window": 2, "sample": 0.0, "workers": 1, "alpha": 0.05}
COUPLES = [("salt", "pepper"), ("king", "queen"), ("cup", "saucer"), ("sun", "moon")]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Lines in which two words are interchangeable, and a word that occurs once."""
    rng = np.random.default_rng(0)
    lines = [" ".join(rng.choice(COUPLES[number], 8)) for number in rng.integers(0, 4, 4000)]
    lines[100] += " hapax"
    path = tmp_path_factory.mktemp("vectors") / "text.txt"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def run(text: Path) -> VectorRun:
    made = cr.train(text, model="word2vec", sg=1, out=text.parent / "run", **SMALL)
    assert isinstance(made, VectorRun)
    return made


def message_of(kind: type[ChainruleError], call: Any, *args: Any, **options: Any) -> str:
    with pytest.raises(kind) as caught:
        call(*args, **options)
    return str(caught.value)


def config(text: Path, **options: Any) -> RunConfig:
    training = options.pop("training", {})
    model = {"name": "word2vec", **SMALL, **options}
    return RunConfig.model_validate({"data": {"train": [str(text)]}, "model": model, "training": training})


def tokenizer_options(config: RunConfig) -> TokenizerConfig:
    """The options of the tokeniser after they were completed for word2vec."""
    prepared = fitting_of("word2vec").prepare(config, model_task("word2vec"), RunFolder("none"), lambda text: None)
    return prepared.tokenizer


# Training


def test_interchangeable_words_are_near(run: VectorRun) -> None:
    assert sorted(run.words) == sorted(word for couple in COUPLES for word in couple)
    units = {word: run.vector(word) / np.linalg.norm(run.vector(word)) for word in run.words}
    for one, other in COUPLES:
        nearest = max((word for word in run.words if word != one), key=lambda word, one=one: units[one] @ units[word])
        assert nearest == other
    assert not run.has("hapax")
    assert message_of(DataError, run.vector, "hapax").startswith("the run has no vector of the word 'hapax'; ")
    assert "hapax" not in run
    assert list(run) == run.words
    assert len(run) == len(run.words)
    np.testing.assert_array_equal(run[COUPLES[0][0]], run.vector(COUPLES[0][0]))
    assert run.most_similar(COUPLES[0][0], topn=1)[0].word == COUPLES[0][1]
    assert run.similarity(*COUPLES[0]) == pytest.approx(units[COUPLES[0][0]] @ units[COUPLES[0][1]], abs=1e-6)
    assert run.doesnt_match([*COUPLES[0], COUPLES[1][0]]) == COUPLES[1][0]


def test_the_reported_figures(run: VectorRun) -> None:
    result, summary = run.result, run.validation().to_dict()
    assert result["steps"] == 0
    assert result["words"] == summary["words"] == 8
    assert result["parameters"] == 2 * 8 * 8
    assert result["tokens"] % 5 == 0
    assert summary["loss"] == result["loss"]
    assert summary["vector_size"] == 8
    logged = [json.loads(line) for line in (run.folder.path / "metrics.jsonl").read_text().splitlines()]
    assert logged[-1]["tokens"] == result["tokens"]
    assert logged[-1]["lr"] == pytest.approx(1e-4)
    assert run.info()["tokenizer"] == "word"


def test_the_same_seed_gives_the_same_vectors(run: VectorRun, text: Path, tmp_path: Path) -> None:
    again = cr.train(text, model="word2vec", sg=1, out=tmp_path / "again", **SMALL)
    other = cr.train(text, model="word2vec", sg=1, seed=2, out=tmp_path / "other", **SMALL)
    assert (again.vectors_VD == run.vectors_VD).all()
    assert (other.vectors_VD != run.vectors_VD).any()


@pytest.mark.parametrize("options", [{"sg": 0}, {"sg": 1, "hs": 1, "negative": 0}], ids=["cbow", "tree"])
def test_every_training_method_learns(text: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    made = cr.train(text, model="word2vec", out=tmp_path / "run", **{**SMALL, **options})
    vectors_VD = made.vectors_VD / np.linalg.norm(made.vectors_VD, axis=1, keepdims=True)
    places = {word: place for place, word in enumerate(made.words)}
    cosines = vectors_VD @ vectors_VD.T - 2 * np.eye(8)
    assert all(cosines[places[one]].argmax() == places[other] for one, other in COUPLES)


def test_a_stopped_training_resumes_exactly(
    run: VectorRun, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def stopping() -> bool:
        asked.append(0)
        return len(asked) > 7  # asked before each chunk

    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr("chainrule.training.fitting.sweeps.stop_signals", lambda: nullcontext(stopping))
        assert not fit(config(text, sg=1), out).finished
    begun = cr.load(out)
    assert begun.model.training_progress["step"] == 7
    assert (begun.vectors_VD != run.vectors_VD).any()  # the vectors so far can be used
    finished = fit(config(text, sg=1), out)
    assert finished.finished
    made = cr.load(out)
    assert (made.vectors_VD == run.vectors_VD).all()
    assert (made.model.output_VD == run.model.output_VD).all()
    assert finished.result["tokens"] == run.result["tokens"]


def test_a_larger_budget_continues(text: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert fit(config(text, training={"epochs": 1}), out).result["tokens"] > 0
    once = RunFolder(out).read_result()
    twice = fit(config(text, training={"epochs": 2}), out).result
    assert once is not None
    assert twice["tokens"] == 2 * once["tokens"]


def test_the_learning_rate_is_linear(text: Path, tmp_path: Path) -> None:
    wanted = config(text, sg=1, training={"epochs": 2})
    wanted = wanted.model_copy(update={"tokenizer": tokenizer_options(wanted)})
    training = Word2VecTraining(
        wanted,
        open_text_corpus(TextCorpus, wanted, RunFolder(tmp_path / "run"), TrainingListener()),
        RunFolder(tmp_path / "run"),
        lambda update: None,
        lambda: False,
        epochs=2,
    )
    rates = [training._rate(step) for step in range(training.end + 1)]
    np.testing.assert_allclose(rates, np.linspace(0.05, 1e-4, 2 * training.sweeper.chunks + 1))


def test_minutes_end_it_early(text: Path, tmp_path: Path) -> None:
    made = cr.train(text, model="word2vec", minutes=0.002, epochs=10_000, out=tmp_path / "run", **SMALL)
    assert made.result["train_seconds"] < 5
    assert made.result["tokens"] < 10_000 * 32_000


def test_two_threads_learn_too(run: VectorRun, text: Path, tmp_path: Path) -> None:
    made = cr.train(text, model="word2vec", sg=1, out=tmp_path / "run", **{**SMALL, "workers": 2})
    assert made.result["tokens"] == run.result["tokens"]
    assert made.result["loss"] == pytest.approx(run.result["loss"], rel=0.1)


@pytest.mark.parametrize("kind", ["char", "bpe"])
def test_other_tokens_are_words_too(text: Path, tmp_path: Path, kind: str) -> None:
    options: dict[str, Any] = {"vocab_size": 300} if kind == "bpe" else {}
    made = cr.train(text, model="word2vec", tokenizer=kind, out=tmp_path / "run", **SMALL, **options)
    seen = {made.tokenizer.piece(token) for token in set(made.tokenizer.encode("salt pepper")) - {made.tokenizer.unk}}
    assert seen <= set(made.words)
    assert np.isfinite(made.vectors_VD).all()


# The tokeniser


def test_the_tokeniser_drops_rare_words(text: Path) -> None:
    assert tokenizer_options(config(text, min_count=3)) == TokenizerConfig(kind="word", min_count=3)
    jieba = config(text).model_copy(update={"tokenizer": TokenizerConfig(kind="jieba")})
    assert tokenizer_options(jieba).min_count == 5
    pieces = config(text).model_copy(update={"tokenizer": TokenizerConfig(kind="bpe", vocab_size=99)})
    assert tokenizer_options(pieces) == pieces.tokenizer


def test_options_that_do_not_fit_are_refused(text: Path, tmp_path: Path) -> None:
    other = config(text).model_copy(update={"tokenizer": TokenizerConfig(min_count=2)})
    assert message_of(ConfigError, tokenizer_options, other) == (
        "tokenizer.min_count is 2 and model.min_count is 5, but they are one setting; set model.min_count only"
    )
    pieces = config(text, min_count=3).model_copy(update={"tokenizer": TokenizerConfig(kind="bpe")})
    assert message_of(ConfigError, tokenizer_options, pieces) == (
        "model.min_count is 3, but the tokeniser bpe keeps rare tokens; leave it out, or use --tokenizer word"
    )
    assert message_of(ConfigError, fit, config(text, training={"steps": 5}), tmp_path / "run") == (
        "training.steps counts optimiser steps, and word2vec has none; give --epochs or --minutes"
    )
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ("a b c d\ne f g h\n", "0 words of the text occur"),
        ("one " * 20 + "\n" + "one " * 9 + "\n", "1 word of the text occurs"),
    ],
)
def test_too_few_words_are_an_error(tmp_path: Path, content: str, found: str) -> None:
    path = tmp_path / "text.txt"
    path.write_text(content)
    assert message_of(DataError, cr.train, path, model="word2vec", out=tmp_path / "run", **SMALL) == (
        f"only {found} at least 5 times; word2vec learns from words that occur together, "
        "give more text or a lower model.min_count"
    )


@pytest.mark.parametrize("verb", ["generate", "stream", "score", "evaluate", "evaluate_held_out", "compress"])
def test_vectors_give_no_probabilities_of_text(run: VectorRun, verb: str) -> None:
    message = message_of(ConfigError, getattr, run, verb)
    assert message.startswith(f"{run.folder.path} (word2vec) has no {verb}; ")
    assert message.endswith("; this run has eval, info, embed, neighbours")
    assert ("ngram" in message) == (verb in ("generate", "score", "compress"))  # the message names models that have it
