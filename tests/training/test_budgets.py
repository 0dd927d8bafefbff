"""Budgets, what ends a training, and how much of the time and of the data validations take."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from numba import njit

import chainrule as cr
from builders import pairs_text
from chainrule.base.compile_time import measuring_compilation
from chainrule.config import TrainingConfig
from chainrule.data.held_out import MAX_BYTES, hold_out_text
from chainrule.evaluation.validation_budget import LEAST_FINAL, final_tokens, tokens_per_validation
from chainrule.text.readers import text_of
from chainrule.training.budget import Clock, spent_budget


@pytest.mark.parametrize(
    ("given", "step", "seconds", "expected"),
    [
        ({"steps": 600}, 600, 9.0, "600 steps"),
        ({"steps": 1}, 1, 9.0, "1 step"),
        ({"minutes": 1.0, "epochs": 20.0}, 50, 60.0, "1 minute"),
        ({"minutes": 1.0, "epochs": 2.0}, 200, 9.0, "2 epochs"),
    ],
)
def test_the_budget_that_was_spent_is_named(given: dict[str, float], step: int, seconds: float, expected: str) -> None:
    config = TrainingConfig.model_validate(given)
    found = spent_budget(config, step=step, steps_per_epoch=100, seconds=seconds)
    assert found == f"the budget of {expected} is spent"


def test_a_budget_of_minutes_does_not_count_the_compilation_of_kernels() -> None:
    began = time.monotonic()
    with measuring_compilation() as compiling:
        clock = Clock(5.0, compiling)
        assert compiling.seconds == 0
        assert njit(lambda number: number + 1)(1) == 2
        assert compiling.seconds > 0
        assert 5 <= clock.seconds <= 5 + time.monotonic() - began - compiling.seconds
    compiled = compiling.seconds
    assert njit(lambda number: number + 2)(1) == 3
    assert compiling.seconds == compiled


def test_early_stopping_is_stated(tmp_path: Path) -> None:
    data = tmp_path / "a.tsv"
    data.write_text("".join(f"{'ab'[i % 2]}\tsame words\n" for i in range(60)))  # nothing to learn
    settings = {"training": {"patience": 1, "validations": 50, "lr": 1.0}}
    run = cr.train(data, model="classifier", steps=200, out=tmp_path / "run", settings=settings)
    assert run.result["steps"] < 200
    assert run.result["stopped"] == "early: 1 validation without improvement (training.patience)"


def test_word_vectors_are_trained_for_the_minutes_given(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text(pairs_text(30))
    options = {"model": "word2vec", "vector_size": 4, "min_count": 1}
    run = cr.train(text, **options, minutes=0.02, out=tmp_path / "minutes")
    assert run.result["stopped"] == "the budget of 0.02 minutes is spent"
    assert run.result["seconds"] >= 1.2
    both = cr.train(text, **options, minutes=5, epochs=1, out=tmp_path / "both")
    assert both.result["stopped"] == "the budget of 1 epoch is spent"
    own = cr.train(text, **options, minutes=5, settings={"model": {"epochs": 2}}, out=tmp_path / "own")
    assert own.result["stopped"] == "the budget of 2 epochs is spent"


def test_validations_of_a_short_training_score_few_tokens() -> None:
    short = TrainingConfig(steps=50)
    assert tokens_per_validation(short, epoch_tokens=100_000_000, steps_per_epoch=100_000) == 2048
    longer = TrainingConfig(steps=10_000)
    assert tokens_per_validation(longer, epoch_tokens=100_000_000, steps_per_epoch=100_000) == 200_000
    middle = TrainingConfig(steps=1000)
    assert tokens_per_validation(middle, epoch_tokens=100_000_000, steps_per_epoch=100_000) == 30_000
    assert tokens_per_validation(TrainingConfig(minutes=1), epoch_tokens=100, steps_per_epoch=1) == 200_000


def test_the_text_held_out_is_bounded() -> None:
    text = text_of("0123456789abcde\n" * 2_000_000)
    split = hold_out_text(text, 0.05)
    assert split is not None
    assert split[1].size == MAX_BYTES
    assert split[0].size + split[1].size == text.size


def test_a_short_training_is_not_followed_by_long_scoring(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("abcdefghi\n" * 40_000)  # 20,000 tokens are held out
    run = cr.train(text, model="rnn", tokenizer="char", steps=1, out=tmp_path / "run", embedding=4, hidden=4)
    measured = run.validation()
    assert final_tokens(run.result["tokens"]) == LEAST_FINAL
    assert measured.tokens <= LEAST_FINAL
    assert run.validation_note == "scored 8,190 of the 20,000 bytes held out: at most 1 token for 4 trained on"
    given = cr.train(text, model="ngram", tokenizer="char", valid=text, out=tmp_path / "given")
    assert given.validation().tokens == 400_000


def test_validations_are_put_off_that_exceed_their_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chainrule.training.loop.VALIDATION_SHARE", 0.0)
    text = tmp_path / "text.txt"
    text.write_text(pairs_text(200))
    run = cr.train(text, model="rnn", tokenizer="char", minutes=0.02, out=tmp_path / "run", embedding=4, hidden=4)
    records = [json.loads(line) for line in (run.folder.path / "metrics.jsonl").read_text().splitlines()]
    assert sum("valid_loss" in record for record in records) <= 2  # the first, whose cost is unknown, and the last
