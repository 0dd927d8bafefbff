"""The policy gradient against the exact gradient of the expected reward, by enumeration of all samples.

N is the number of enumerated sequences.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from translators import (
    EOS,
    TableTranslator,
    all_sequences,
    assert_close,
    expected_reward,
    gradients,
    one_row,
    rewards_of,
    sequence_log_probs,
    some_reward,
    sum_gradients,
    table_batch,
    with_samples,
)

from builders import TRANSLATORS, small_model, small_translator, some_source
from chainrule.config import parse
from chainrule.errors import ConfigError
from chainrule.objectives import reward_objective
from chainrule.objectives.likelihood import Likelihood
from chainrule.objectives.policy_gradient import PolicyGradient, leave_one_out_mean
from chainrule.objectives.reward_objective import split_into_chunks
from chainrule.types import Batch, Vocabulary

ROWS = all_sequences(3, 3)
EVEN = Vocabulary(3, EOS, np.ones(3, np.int64))


def make_objective(**options: Any) -> PolicyGradient:
    objective = PolicyGradient(PolicyGradient.Config(**options))
    objective.reward = some_reward
    return objective


def model_and_batch(batch: Batch, name: str) -> tuple[Any, Batch]:
    """A model in double precision, and the batch with one source for it."""
    if name == "table":
        return TableTranslator(), batch
    return small_translator(name, vocabulary=EVEN).double(), batch._replace(source=some_source([3], size=3, padding=1))


# The estimate is unbiased


def weighted_gradients(
    model: Any, batch: Batch, objective: PolicyGradient, first: list[tuple[int, ...]]
) -> Iterator[Any]:
    """p(samples) times the gradient of the loss given these samples, for all possible samples."""
    with torch.no_grad():
        probs_N = sequence_log_probs(model, batch.source, ROWS).exp().tolist()
    for drawn in itertools.product(zip(ROWS, probs_N, strict=True), repeat=objective.config.samples):
        loss = with_samples(objective, [*first, *(row for row, _ in drawn)]).loss(model, batch, None, 0)
        prob = float(np.prod([one for _, one in drawn]))
        yield [prob * gradient for gradient in gradients(loss.total, model)]


@pytest.mark.parametrize("name", ["table", *TRANSLATORS])
def test_its_expectation_is_the_gradient_of_the_expected_reward(name: str) -> None:
    model, batch = model_and_batch(table_batch([[2, 1]], [1]), name)
    exact = gradients(-sequence_log_probs(model, batch.source, ROWS).exp() @ rewards_of(ROWS, [2, 1]), model)
    found = sum_gradients(weighted_gradients(model, batch, make_objective(), [ROWS[4]]))
    assert_close(found, exact)


@pytest.mark.parametrize(
    "options", [{"gamma": 0.3}, {"mixing": "learned", "gamma": 0.3}, {"mixing": "gated"}, {"gamma": 0.0}]
)
def test_a_mixture_in_training_has_the_gradient_of_both_branches(options: dict[str, Any]) -> None:
    batch = table_batch([[2, 1]], [1])._replace(source=some_source([3], size=3, padding=1))
    model = small_translator("hybrid", vocabulary=EVEN, dropout=0.0, **options).double()
    exact = gradients(-sequence_log_probs(model, batch.source, ROWS).exp() @ rewards_of(ROWS, [2, 1]), model)
    found = sum_gradients(weighted_gradients(model.train(), batch, make_objective(), [ROWS[4]]))
    assert_close(found, exact)


@pytest.mark.parametrize("greedy", [ROWS[0], ROWS[9], ROWS[14]])
def test_the_baseline_does_not_change_the_expectation(greedy: tuple[int, ...]) -> None:
    model, batch = model_and_batch(table_batch([[1]], [0]), "table")
    exact = gradients(-sequence_log_probs(model, batch.source, ROWS).exp() @ rewards_of(ROWS, [1]), model)
    assert_close(sum_gradients(weighted_gradients(model, batch, make_objective(), [greedy])), exact)


@pytest.mark.parametrize("baseline", ["greedy", "mean"])
def test_several_samples_have_the_same_expectation(baseline: str) -> None:
    model, batch = model_and_batch(table_batch([[1]], [0]), "table")
    exact = gradients(-sequence_log_probs(model, batch.source, ROWS).exp() @ rewards_of(ROWS, [1]), model)
    objective = make_objective(samples=2, baseline=baseline)
    assert_close(
        sum_gradients(weighted_gradients(model, batch, objective, [ROWS[2]] if baseline == "greedy" else [])), exact
    )


def test_the_leave_one_out_mean_excludes_each_sample() -> None:
    rewards_BK = torch.rand(3, 4)
    expected = [[(sum(row) - one) / 3 for one in row] for row in rewards_BK.tolist()]
    torch.testing.assert_close(leave_one_out_mean(rewards_BK), torch.tensor(expected))


def test_the_loss_of_a_batch_equals_the_formula() -> None:
    """Two sources, two samples each; one sample equals the greedy translation and has no advantage."""
    model, batch, objective = TableTranslator(), table_batch([[2, 1], [1]]), make_objective(samples=2)
    drawn = [ROWS[4], ROWS[4], ROWS[7], ROWS[0], ROWS[13], ROWS[2]]
    with_samples(objective, drawn)
    loss = objective.loss(model, batch, None, 0)
    expected = torch.zeros((), dtype=torch.float64)
    for number, reference in enumerate([[2, 1], [1]]):
        greedy, *sampled = drawn[3 * number : 3 * number + 3]
        source = one_row(batch.source, number)
        advantage_K = rewards_of(sampled, reference) - rewards_of([greedy], reference)
        expected = expected - (advantage_K * sequence_log_probs(model, source, sampled)).sum() / 2
    torch.testing.assert_close(loss.total, expected)
    assert_close(gradients(loss.total, model), gradients(expected, model))
    assert loss.count == 3 + 2  # reference tokens, eos included
    assert objective.figures["reward"] == pytest.approx(
        float(torch.cat([rewards_of(drawn[1:3], [2, 1]), rewards_of(drawn[4:], [1])]).mean())
    )
    assert objective.figures["greedy_reward"] == pytest.approx(
        float((rewards_of(drawn[:1], [2, 1]) + rewards_of(drawn[3:4], [1])) / 2)
    )


def test_the_reward_gets_rows_and_references_without_eos() -> None:
    objective, seen = make_objective(), []

    def recording(rows: list[list[int]], references: list[list[int]]) -> Any:
        seen.append((rows, references))
        return some_reward(rows, references)

    objective.reward = recording
    with_samples(objective, [(2, 1, EOS), (1, 1, 2), (EOS,), (2, EOS)])
    objective.loss(TableTranslator(), table_batch([[2, 1], [1]]), None, 0)
    assert seen == [([[2, 1], [1, 1, 2], [], [2]], [[2, 1], [2, 1], [1], [1]])]


# Training


@pytest.mark.parametrize("name", ["seq2seq-transformer", "seq2seq-attention"])
def test_chunks_do_not_change_the_result(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, source = small_translator(name).double(), some_source([5, 2, 4, 4, 1], padding=1)
    targets_BT = torch.tensor([[3, 5, EOS]] * 5)
    batch = Batch(torch.tensor([[EOS, 3, 5]] * 5), targets_BT, None, source)
    found, passes, forward = [], [0, 0, 0], model.forward
    for number, tokens in enumerate((4096, 12, 1)):

        def counting(*given: Any, number: int = number) -> Any:
            passes[number] += 1
            return forward(*given)

        model.forward = counting
        monkeypatch.setattr(reward_objective, "CHUNK_TOKENS", tokens)
        torch.manual_seed(0)
        found.append(gradients(make_objective(samples=3).loss(model, batch, None, 0).total, model))
    assert 1 == passes[0] < passes[1] < passes[2]
    assert_close(found[1], found[0])
    assert_close(found[2], found[0])


def test_chunks_contain_whole_units_within_the_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reward_objective, "CHUNK_TOKENS", 10)
    lengths, units = [3, 9, 2, 4, 1, 6], [0, 1, 0, 2, 2, 1]
    assert split_into_chunks(lengths, units, 100) == [[1, 5], [3, 4, 0, 2]]
    assert split_into_chunks(lengths, range(6), 100) == [[1], [5, 3], [0, 2, 4]]
    monkeypatch.setattr(reward_objective, "CHUNK_ENTRIES", 500)
    assert split_into_chunks(lengths, range(6), 100) == [[1], [5], [3], [0, 2], [4]]


def test_gradients_are_added_to_those_of_other_losses() -> None:
    """With accumulated batches and a share of likelihood, .grad is the weighted sum."""
    model, batch = TableTranslator(), table_batch([[2, 1], [1]])
    plain = gradients(Likelihood(Likelihood.Config()).loss(model, batch, None, 0).total, model)[0]
    alone, mixed = make_objective(), make_objective(likelihood=0.25)
    for objective in (alone, mixed):
        with_samples(objective, [ROWS[4], ROWS[5], ROWS[0], ROWS[13]])
    reward_gradient = gradients(alone.loss(model, batch, None, 0).total, model)[0]
    mixture = mixed.loss(model, batch, None, 0)
    mixture.total.backward()
    (2 * alone.loss(model, batch, None, 0).total).backward()
    assert_close([model.scores_ATVV.grad], [0.75 * reward_gradient + 0.25 * plain + 2 * reward_gradient])
    assert mixture.count == Likelihood(Likelihood.Config()).loss(model, batch, None, 0).count


def test_without_advantages_every_gradient_is_zero_but_exists() -> None:
    model, batch = small_translator("seq2seq-transformer"), table_batch([[2, 1], [1]])
    objective = make_objective()
    objective.reward = lambda rows, references: np.full(len(rows), 0.5)
    objective.loss(model, batch, None, 0).total.backward()
    assert all(torch.equal(parameter.grad, torch.zeros_like(parameter)) for parameter in model.parameters())


def test_in_bfloat16_the_gradient_has_the_same_direction() -> None:
    model, batch = small_translator("seq2seq-transformer"), table_batch([[2, 1], [1]])
    objective, found = make_objective(), []
    with_samples(objective, [ROWS[4], ROWS[5], ROWS[0], ROWS[13]])
    for half in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            loss = objective.loss(model, batch, None, 0)
        found.append(torch.cat([gradient.flatten() for gradient in gradients(loss.total, model)]))
    assert 0.99 < float(torch.cosine_similarity(*found, dim=0)) < 1 - 1e-9


@pytest.mark.parametrize("options", [{}, {"samples": 4, "baseline": "mean"}, {"likelihood": 0.1}])
def test_a_few_steps_raise_the_expected_reward(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model, batch, objective = TableTranslator(), table_batch([[2, 1], [1]] * 10, [0, 1] * 10), make_objective(**options)
    optimizer = torch.optim.SGD(model.parameters(), lr=5.0)
    before = expected_reward(model, [[2, 1], [1]])
    for step in range(40):
        loss = objective.loss(model, batch, None, step)
        (loss.total / loss.count).backward()
        optimizer.step()
        optimizer.zero_grad()
    after = expected_reward(model, [[2, 1], [1]])
    assert after > before + 0.2
    assert objective.figures["reward"] == pytest.approx(after, abs=0.15)


# Errors


def test_a_language_model_raises_an_error() -> None:
    tokens_BT = torch.zeros(1, 3).long()
    with pytest.raises(ConfigError) as caught:
        make_objective().loss(small_model("lstm"), Batch(tokens_BT, tokens_BT), None, 0)
    assert str(caught.value) == (
        "policy-gradient trains translators only: it compares translations with references; use likelihood or "
        "scheduled-sampling for a language model"
    )


def test_the_mean_baseline_needs_two_samples() -> None:
    with pytest.raises(ConfigError) as caught:
        parse(PolicyGradient.Config, {"baseline": "mean"}, "objective")
    assert str(caught.value) == (
        "objective.samples is 1; expected at least 2 with objective.baseline=mean: raise objective.samples, or use "
        "objective.baseline=greedy"
    )
