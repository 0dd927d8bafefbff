"""Validations must not eat a budget of minutes."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

from chainrule.config import TrainingConfig
from chainrule.tasks import language_model as corpora


class Uniform:
    """Every token is equally likely among eight."""

    def start(self, batch: int) -> None:
        return None

    def score(self, tokens_BT: torch.Tensor, state: None) -> tuple[torch.Tensor, None]:
        return torch.full(tokens_BT.shape, -np.log(8.0)), None


@pytest.mark.parametrize(
    ("tokens_per_second", "options", "expected"),
    [
        (100_000, {"minutes": 2.0}, 65_536),  # a tenth of 120 s in 10 validations is 1.2 s each: 120,000 tokens
        (100_000, {"minutes": 2.0, "validations": 40}, 16_384),
        (1_000, {"minutes": 2.0}, corpora.LEAST_VALIDATION),
        (1e9, {"minutes": 2.0}, 200_000),
        (1_000, {"steps": 5}, 200_000),  # a budget of steps is not lost to validations
    ],
)
def test_a_validation_has_as_many_tokens_as_the_budget_affords(
    tokens_per_second: float, options: dict[str, Any], expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = itertools.count(0.0, corpora.LEAST_VALIDATION / tokens_per_second)
    monkeypatch.setattr(corpora.time, "perf_counter", lambda: next(clock))
    tokens = np.zeros(200_000, np.uint8)
    assert corpora._affordable(Uniform(), tokens, 0, TrainingConfig(**options)) == expected
