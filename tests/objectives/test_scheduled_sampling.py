"""Scheduled sampling against its formulas and against a plain loop."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from builders import TRANSLATORS, small_model, small_translator, some_source
from chainrule.objectives import rollout
from chainrule.objectives.likelihood import Likelihood
from chainrule.objectives.rollout import sample_tokens
from chainrule.objectives.scheduled_sampling import (
    ScheduledSampling,
    exponential_decay,
    inverse_sigmoid_decay,
    linear_decay,
)
from chainrule.types import Batch


def objective(**options: Any) -> ScheduledSampling:
    return ScheduledSampling(ScheduledSampling.Config(**options))


def some_batch(rows: int = 3, length: int = 6) -> Batch:
    tokens = torch.randint(0, 13, (rows, length + 1), generator=torch.Generator().manual_seed(1))
    return Batch(tokens[:, :-1], tokens[:, 1:])


# Decay


@pytest.mark.parametrize("step", [0, 1, 10, 999, 100_000])
def test_the_decays_equal_their_formulas(step: int) -> None:
    assert linear_decay(step, 0.9, 0.001, 0.2) == pytest.approx(max(0.2, 0.9 - 0.001 * step))
    assert exponential_decay(step, 0.99) == pytest.approx(0.99**step)
    k = 40.0
    expected = k / (k + math.exp(step / k)) if step / k < 700 else 0.0
    assert inverse_sigmoid_decay(step, k) == pytest.approx(expected, abs=1e-12)


def test_the_rate_of_true_inputs_follows_the_decay_down_to_its_minimum() -> None:
    assert objective(decay="linear", start=0.8, slope=0.1, least=0.3).true_input_rate(2) == pytest.approx(0.6)
    assert objective(decay="linear", start=0.8, slope=0.1, least=0.3).true_input_rate(99) == 0.3
    assert objective(decay="exponential", base=0.5, least=0.1).true_input_rate(2) == 0.25
    assert objective(decay="exponential", base=0.5, least=0.1).true_input_rate(9) == 0.1
    assert objective(k=5.0, least=0.0).true_input_rate(10) == pytest.approx(5 / (5 + math.exp(2)))
    assert objective(k=5.0, least=0.4).true_input_rate(1000) == 0.4


# Inputs


@pytest.mark.parametrize("by", ["steps", "two-pass"])
@pytest.mark.parametrize("name", ["lstm", "transformer"])
def test_all_inputs_are_true_at_rate_one_and_only_the_first_at_rate_zero(name: str, by: str) -> None:
    model, batch = small_model(name), some_batch(rows=40)
    assert torch.equal(objective(by=by).mix_inputs(model, batch, None, 1.0), batch.inputs_BT)
    mixed_BT = objective(by=by).mix_inputs(model, batch, None, 0.0)
    assert torch.equal(mixed_BT[:, 0], batch.inputs_BT[:, 0])
    agree = (mixed_BT == batch.inputs_BT)[:, 1:].float().mean()
    assert 0 < agree < 0.5  # samples equal the truth only by chance
    half_BT = objective(by=by).mix_inputs(model, batch, None, 0.5)
    assert agree + 0.2 < (half_BT == batch.inputs_BT)[:, 1:].float().mean() < 0.95


def mix_by_loop(model: Any, batch: Batch, rate: float, *, own_prefix: bool) -> Tensor:
    """The same random numbers in the same order, with each distribution computed from the whole prefix."""
    true_BT = torch.rand(batch.inputs_BT.shape) < rate
    inputs_BT = batch.inputs_BT.clone()
    rows = []
    for t in range(1, inputs_BT.shape[1]):
        prefix_BT = inputs_BT[:, :t] if own_prefix else batch.inputs_BT[:, :t]
        row_BV, _ = model.prefill(model.start(len(prefix_BT)), prefix_BT)
        rows.append(row_BV)
        if own_prefix:
            sampled_B = sample_tokens(row_BV)
            inputs_BT[:, t] = torch.where(true_BT[:, t], batch.inputs_BT[:, t], sampled_B)
    if not own_prefix:
        replaced = ~true_BT[:, 1:]
        inputs_BT[:, 1:][replaced] = sample_tokens(torch.stack(rows, 1)[replaced])
    return inputs_BT


@pytest.mark.parametrize("by", ["steps", "two-pass"])
@pytest.mark.parametrize("name", ["gru", "sr", "transformer"])
def test_samples_equal_those_of_a_loop_with_the_same_seed(name: str, by: str) -> None:
    model, batch = small_model(name), some_batch(rows=8)
    with torch.no_grad():
        torch.manual_seed(5)
        found = objective(by=by).mix_inputs(model, batch, None, 0.4)
        torch.manual_seed(5)
        expected = mix_by_loop(model, batch, 0.4, own_prefix=by == "steps")
    assert torch.equal(found, expected)


def test_models_with_a_window_sample_in_two_passes_and_others_by_steps() -> None:
    for name, by in (("lstm", "steps"), ("transformer", "two-pass")):
        model, batch = small_model(name), some_batch()
        torch.manual_seed(2)
        chosen = objective().mix_inputs(model, batch, None, 0.2)
        torch.manual_seed(2)
        assert torch.equal(chosen, objective(by=by).mix_inputs(model, batch, None, 0.2))


def test_sampling_in_parts_does_not_change_the_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = small_model("transformer"), some_batch(rows=8)
    found = []
    for entries in (2**23, 13 * 5):
        monkeypatch.setattr(rollout, "TABLE_ENTRIES", entries)
        torch.manual_seed(5)
        found.append(objective().mix_inputs(model, batch, None, 0.4))
    assert torch.equal(*found)


# Translators


def translation_batch(rows: int = 3) -> Batch:
    """Sources and targets of different lengths."""
    lengths_B1 = torch.arange(rows)[:, None] % 5 + 2
    source = some_source([number % 4 + 1 for number in range(rows)], padding=1, size=13)
    batch = some_batch(rows)
    weights_BT = (torch.arange(6) < lengths_B1).float()
    return Batch(batch.inputs_BT.masked_fill(weights_BT == 0, 0), batch.targets_BT, weights_BT, source)


@pytest.mark.parametrize("by", ["steps", "two-pass"])
@pytest.mark.parametrize("name", TRANSLATORS)
def test_a_translator_reads_true_tokens_or_its_own(name: str, by: str) -> None:
    model, batch = small_translator(name), translation_batch(rows=40)
    assert torch.equal(objective(by=by).mix_inputs(model, batch, None, 1.0), batch.inputs_BT)
    mixed_BT = objective(by=by).mix_inputs(model, batch, None, 0.0)
    assert torch.equal(mixed_BT[:, 0], batch.inputs_BT[:, 0])
    real_BT = batch.weights_BT[:, 1:] > 0
    assert (mixed_BT == batch.inputs_BT)[:, 1:][real_BT].float().mean() < 0.5


@torch.no_grad()
@pytest.mark.parametrize("by", ["steps", "two-pass"])
@pytest.mark.parametrize("name", TRANSLATORS)
def test_samples_of_a_translator_depend_on_the_source(name: str, by: str) -> None:
    """The same random numbers give the same tokens with distributions computed from the source and whole prefix."""
    model, batch = small_translator(name), translation_batch(rows=6)
    for rate in (0.0, 0.5):
        torch.manual_seed(7)
        mixed_BT = objective(by=by).mix_inputs(model, batch, None, rate)
        torch.manual_seed(7)
        true_BT = torch.rand(6, 6) < rate
        read_BT = mixed_BT if by == "steps" else batch.inputs_BT
        hidden_BTD = model(batch._replace(inputs_BT=read_BT)).hidden_BTD
        log_probs_BTV = model.output.log_probs(hidden_BTD.flatten(0, 1)).view(6, 6, 13)
        expected_BT = batch.inputs_BT.clone()
        if by == "steps":
            for t in range(1, 6):
                expected_BT[:, t] = torch.where(
                    true_BT[:, t], batch.inputs_BT[:, t], sample_tokens(log_probs_BTV[:, t - 1])
                )
        else:
            replaced_BT = ~true_BT & (batch.weights_BT > 0) & (torch.arange(6) > 0)
            expected_BT[replaced_BT] = sample_tokens(log_probs_BTV[:, :-1][replaced_BT[:, 1:]])
        assert torch.equal(mixed_BT, expected_BT)


@pytest.mark.parametrize(("name", "by"), [("seq2seq-attention", "steps"), ("seq2seq-transformer", "two-pass")])
def test_translators_use_their_own_method_and_ignore_padding(name: str, by: str) -> None:
    model, batch = small_translator(name), translation_batch()
    torch.manual_seed(2)
    loss = objective(decay="linear", start=0.2, least=0.0).loss(model, batch, None, 0)
    torch.manual_seed(2)
    inputs_BT = objective(by=by).mix_inputs(model, batch, None, 0.2)
    padded_BT = inputs_BT.masked_fill(batch.weights_BT == 0, 5)
    expected = Likelihood(Likelihood.Config()).loss(model, batch._replace(inputs_BT=padded_BT), None, 0)
    torch.testing.assert_close(loss.total, expected.total)
    assert loss.count == expected.count == 2 + 3 + 4


# Loss


def test_the_loss_is_the_likelihood_of_the_true_targets_after_the_mixed_inputs() -> None:
    model, batch = small_model("lstm"), some_batch()
    state, plain = model.start(3), Likelihood(Likelihood.Config())
    sampling = objective(decay="linear", start=1.0, slope=0.1, least=0.0)
    assert torch.equal(sampling.loss(model, batch, state, 0).total, plain.loss(model, batch, state, 0).total)
    torch.manual_seed(4)
    loss = sampling.loss(model, batch, state, 7)
    torch.manual_seed(4)
    mixed = batch._replace(inputs_BT=sampling.mix_inputs(model, batch, state, 0.3))
    assert torch.equal(loss.total, plain.loss(model, mixed, state, 0).total)
    assert loss.count == 18


@torch.no_grad()
def test_the_likelihood_is_the_weighted_sum_of_minus_log_p() -> None:
    model, batch = small_model("lstm"), some_batch()
    eos_first = batch._replace(inputs_BT=torch.cat([torch.zeros(3, 1).long(), batch.targets_BT[:, :-1]], 1))
    log_probs_BT = model.log_probs(batch.targets_BT)
    whole = Likelihood(Likelihood.Config()).loss(model, eos_first, None, 0)
    assert float(whole.total) == pytest.approx(-float(log_probs_BT.sum()), rel=1e-5)
    weights_BT = (torch.arange(6) < torch.tensor([[6], [2], [4]])).float()
    part = Likelihood(Likelihood.Config()).loss(model, eos_first._replace(weights_BT=weights_BT), None, 0)
    assert float(part.total) == pytest.approx(-float((log_probs_BT * weights_BT).sum()), rel=1e-5)
    assert (whole.count, part.count) == (18, 12)
