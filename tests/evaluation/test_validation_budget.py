"""The number of items that a validation may measure, with a clock of known speed."""

from __future__ import annotations

import itertools

import pytest

from chainrule.evaluation import validation_budget
from chainrule.evaluation.validation_budget import affordable_items, seconds_per_validation


def test_all_validations_together_take_a_tenth_of_the_time() -> None:
    assert seconds_per_validation(2.0, 10) == pytest.approx(1.2)
    assert seconds_per_validation(2.0, 40) == pytest.approx(0.3)
    assert seconds_per_validation(None, 10) is None


@pytest.mark.parametrize(
    ("per_second", "total", "seconds", "expected"),
    [
        (100_000, 200_000, 1.2, 65_536),  # a power of two below 120,000
        (100_000, 200_000, 0.3, 16_384),
        (1_000, 200_000, 1.2, 8_192),  # at least `least`
        (1e9, 200_000, 1.2, 200_000),  # at most all
        (1_000, 200_000, None, 200_000),  # no time limit
        (1_000, 8_192, 0.001, 8_192),  # too few to be limited
    ],
)
@pytest.mark.parametrize("warm_up", [0, 256])
def test_the_number_of_items_follows_from_the_measured_rate(
    per_second: float,
    total: int,
    seconds: float | None,
    expected: int,
    warm_up: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = itertools.count(0.0, 8192 / per_second)
    monkeypatch.setattr(validation_budget.time, "perf_counter", lambda: next(clock))
    measured: list[int] = []
    assert affordable_items(measured.append, total, least=8192, seconds=seconds, warm_up=warm_up) == expected
    limited = seconds is not None and total > 8192
    assert measured == ([warm_up, 8192] if warm_up else [8192]) * limited
