"""Schedules and budgets against their formulas."""

from __future__ import annotations

import math

import pytest

from chainrule.config import TrainingConfig
from chainrule.training.budget import Clock, progress
from chainrule.training.schedules import SchedulePoint, rate


def at(progress: float, step: int = 500, epoch: float = 0.0, plateaus: int = 0) -> SchedulePoint:
    return SchedulePoint(step, progress, epoch, plateaus)


def config(**options: object) -> TrainingConfig:
    return TrainingConfig.model_validate({"warmup": 0, **options})


@pytest.mark.parametrize("used", [0.0, 0.1, 0.5, 0.93, 1.0])
def test_cosine_linear_and_constant_are_their_formulas(used: float) -> None:
    cosine = 0.1 + 0.9 * (1 + math.cos(math.pi * used)) / 2
    assert rate(config(schedule="cosine", final_lr=0.1), at(used)) == pytest.approx(cosine)
    assert rate(config(schedule="linear", final_lr=0.2), at(used)) == pytest.approx(1 - 0.8 * used)
    assert rate(config(schedule="constant"), at(used)) == 1.0


@pytest.mark.parametrize(
    ("epoch", "expected"), [(0, 1), (3.99, 1), (4, 0.5), (5.99, 0.5), (6, 0.25), (8.5, 0.125), (10, 0.0625)]
)
def test_steps_begin_after_some_epochs_and_come_evenly(epoch: float, expected: float) -> None:
    steps = config(schedule="step", decay_start=4, decay_every=2, decay_factor=0.5)
    assert rate(steps, at(0.3, epoch=epoch)) == expected


def test_plateaus_decay_once_for_each_validation_without_improvement() -> None:
    plateau = config(schedule="plateau", decay_factor=0.3)
    assert [rate(plateau, at(0.5, plateaus=n)) for n in range(3)] == pytest.approx([1, 0.3, 0.09])


def test_warm_up_rises_over_a_share_of_the_budget_or_over_steps() -> None:
    share = config(schedule="constant", warmup=0.1)
    assert [rate(share, at(used)) for used in (0.0, 0.02, 0.05, 0.1, 0.4)] == pytest.approx([0.05, 0.2, 0.5, 1, 1])
    steps = config(schedule="constant", warmup=4)
    assert [rate(steps, at(0.9, step=n)) for n in range(6)] == pytest.approx([0.25, 0.5, 0.75, 1, 1, 1])
    both = config(schedule="linear", final_lr=0, warmup=4)
    assert rate(both, at(0.5, step=1)) == pytest.approx(0.5 * 0.5)


def test_the_budget_that_ends_first_counts() -> None:
    def used(step: int = 0, seconds: float = 0.0, **budget: float) -> float:
        return progress(TrainingConfig(**budget), step=step, steps_per_epoch=20, seconds=seconds)  # type: ignore[arg-type]

    assert used(step=30, steps=120) == 0.25
    assert used(step=30, epochs=3) == 0.5
    assert used(seconds=45, minutes=1) == 0.75
    assert used(step=30, seconds=45, steps=120, epochs=3, minutes=1) == 0.75
    assert used(step=500, steps=120) == 1.0
    assert used(step=500, seconds=99) == 0.0


def test_a_clock_continues_from_earlier_sessions() -> None:
    clock = Clock(before=100.0)
    first = clock.seconds
    assert 100.0 <= first <= clock.seconds
