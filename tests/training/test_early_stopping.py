"""Early stopping: which validation is the best, and when a training ends."""

from __future__ import annotations

import math

import pytest

from chainrule.config import TrainingConfig
from chainrule.training.checkpoint_state import TrainingState
from chainrule.training.early_stopping import EarlyStopping


def feed(values: list[float], *, select: str = "loss", patience: int = 0) -> tuple[EarlyStopping, list[bool]]:
    """Validations at the steps 10, 20, … -> the state after them, and for each whether it was the best so far."""
    stopping = EarlyStopping(TrainingConfig(select=select, patience=patience), TrainingState())  # type: ignore[arg-type]
    is_best = []
    for number, value in enumerate(values, start=1):
        stopping.state.step = 10 * number
        is_best.append(stopping.update({"loss": 1.0, select: value}))
    return stopping, is_best


def test_the_lowest_loss_is_the_best() -> None:
    stopping, is_best = feed([3.0, 2.0, 2.0, 2.5, 1.0, 1.5])
    assert is_best == [True, True, False, False, True, False]
    state = stopping.state
    assert (state.best, state.best_step, state.stale, state.plateaus) == (1.0, 50, 1, 3)


@pytest.mark.parametrize("metric", ["bleu", "accuracy", "f1"])
def test_the_highest_metric_is_the_best(metric: str) -> None:
    stopping, is_best = feed([10.0, 12.0, 11.0], select=metric)
    assert is_best == [True, True, False]
    assert (stopping.state.best, stopping.state.best_step) == (-12.0, 20)
    assert stopping.metrics == ["loss", metric]


def test_patience_counts_validations_since_the_best() -> None:
    assert [feed([2.0, 1.0, *[3.0] * count], patience=3)[0].out_of_patience for count in range(5)] == [
        False,
        False,
        False,
        True,
        True,
    ]
    assert not feed([3.0, 4.0, 4.0, 2.0], patience=3)[0].out_of_patience
    assert not feed([1.0, *[2.0] * 50], patience=0)[0].out_of_patience


def test_nothing_is_better_than_nan_or_infinity() -> None:
    stopping, is_best = feed([math.nan, math.inf])
    assert is_best == [False, False]
    assert stopping.state.best == math.inf
