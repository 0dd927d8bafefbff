"""Calibration against naive loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from chainrule.evaluation.calibration import calibrate_tokens, reliability
from toy import TableModel


def test_reliability_equals_a_loop_over_predictions() -> None:
    rng = np.random.default_rng(0)
    probabilities = np.concatenate([rng.random(500), [0.0, 0.1, 1.0]])
    correct = rng.random(503) < probabilities
    found = reliability(probabilities, correct, bins=10)
    bins: dict[int, list[int]] = {}
    for place, p in enumerate(probabilities):
        bins.setdefault(min(9, int(p * 10)), []).append(place)
    error = 0.0
    for one, number in zip(found.bins, sorted(bins), strict=True):
        members = bins[number]
        assert one.count == len(members)
        assert one.confidence == pytest.approx(np.mean(probabilities[members]))
        assert one.frequency == pytest.approx(np.mean(correct[members]))
        error += len(members) / 503 * abs(np.mean(probabilities[members]) - np.mean(correct[members]))
    assert found.error == pytest.approx(error)


def test_tokens_equal_steps_of_the_model() -> None:
    model = TableModel(7, sharpness=6.0)
    tokens = np.random.default_rng(1).integers(7, size=60)
    found = calibrate_tokens(model, tokens, eos=model.eos)
    state, last, best, hits, every = model.start(1), model.eos, [], [], []
    for token in tokens.tolist():
        log_probs_1V, state = model.step(state, torch.tensor([last]))
        row = log_probs_1V[0].double().exp().numpy()
        best.append(row.max())
        hits.append(int(row.argmax()) == token)
        every += [(p, place == token) for place, p in enumerate(row.tolist())]
        last = token
    assert found.accuracy == pytest.approx(np.mean(hits))
    assert found.best.error == pytest.approx(reliability(np.array(best), np.array(hits)).error)
    whole = reliability(np.array([p for p, _ in every]), np.array([hit for _, hit in every]))
    assert found.every.error == pytest.approx(whole.error * 7)
    assert [one.count for one in found.every.bins] == [one.count for one in whole.bins]


def test_a_model_that_tells_the_truth_is_calibrated() -> None:
    """Tokens drawn from the model's own distributions."""
    model, rng = TableModel(5, sharpness=8.0), np.random.default_rng(2)
    state, tokens, last = model.start(1), [], model.eos
    for _ in range(3000):
        log_probs_1V, state = model.step(state, torch.tensor([last]))
        row = log_probs_1V[0].double().exp().numpy()
        last = int(rng.choice(5, p=row / row.sum()))
        tokens.append(last)
    assert calibrate_tokens(model, np.array(tokens), eos=model.eos).best.error < 0.03
