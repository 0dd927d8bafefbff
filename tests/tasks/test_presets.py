"""Default options, chosen from the size of the data, the model and the budget."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from chainrule.config import RunConfig
from chainrule.tasks.presets import resolve
from chainrule.tasks.task import CorpusSize, task_of
from chainrule.training.request import make_config


def resolved(model: str = "lstm", tokens: int = 1_000_000, vocabulary: int = 8000, **training: Any) -> RunConfig:
    """The options of a model after all open choices are made."""
    config = make_config(None, {"model": {"name": model}}, {"training": training})
    return resolve(config, task_of(config), CorpusSize(tokens, vocabulary))


def test_without_a_budget_there_are_five_minutes_and_a_limit_of_passes() -> None:
    training = resolved().training
    assert (training.minutes, training.epochs, training.steps) == (5.0, 60.0, None)
    assert resolved(steps=7).training.minutes is None


@pytest.mark.parametrize(
    ("tokens", "minutes", "width"),
    [(100_000, 60, 128), (10**6, 60, 256), (10**8, 60, 512), (10**8, 10, 256), (10**8, 1, 128)],
)
def test_width_grows_with_text_and_time(tokens: int, minutes: float, width: int) -> None:
    assert resolved(tokens=tokens, minutes=minutes).model.options["hidden"] == width


@pytest.mark.parametrize(("epochs", "dropout"), [(1, 0.0), (5, 0.1), (20, 0.3)])
def test_dropout_grows_with_the_passes_over_the_text(epochs: float, dropout: float) -> None:
    assert resolved(epochs=epochs).model.options["dropout"] == dropout


def test_what_is_given_is_kept() -> None:
    config = make_config(
        None,
        {"model": {"name": "lstm", "hidden": 77}},
        {"training": {"lr": 0.5, "batch_size": 3, "length": 4, "steps": 1}},
    )
    made = resolve(config, task_of(config), CorpusSize(10**6, 100))
    assert made.model.options == {"embedding": 256, "hidden": 77, "dropout": 0.0}
    assert (made.training.lr, made.training.batch_size, made.training.length) == (0.5, 3, 4)


def test_attention_trains_by_muon_and_recurrence_by_adamw() -> None:
    assert resolved("lstm").training.optimizer == "adamw"
    assert resolved("transformer").training.optimizer == ("muon" if hasattr(torch.optim, "Muon") else "adamw")
    assert resolved("transformer").training.batching == "blocks"
    assert resolved("lstm").training.batching == "stream"


@pytest.mark.parametrize(("vocabulary", "length", "rows"), [(66, 128, 16), (8000, 64, 32)])
def test_linear_attention_reads_streams_in_rows_as_long_as_a_window(vocabulary: int, length: int, rows: int) -> None:
    training = resolved("at", vocabulary=vocabulary).training
    assert (training.batching, training.length, training.batch_size) == ("stream", length, rows)
    assert training.optimizer == resolved("transformer").training.optimizer


def test_a_hybrid_carries_its_context_through_the_text() -> None:
    training = resolved("hybrid-lm", vocabulary=60).training
    assert (training.batching, training.length, training.batch_size) == ("stream", 64, 32)
    assert (training.optimizer, training.lr) == ("adamw", 3e-3)
    assert resolved("hybrid-lm", batching="blocks").training.batching == "blocks"
