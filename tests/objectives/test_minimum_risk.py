"""Minimum risk against its formula, and against the exact risk over all sequences.

N is the number of enumerated sequences.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from translators import (
    EOS,
    TableTranslator,
    all_sequences,
    as_samples,
    assert_close,
    expected_reward,
    gradients,
    one_row,
    rewards_of,
    sequence_log_probs,
    some_reward,
    table_batch,
    with_samples,
)

from builders import TRANSLATORS, small_model, small_translator, some_source
from chainrule.errors import ConfigError
from chainrule.objectives import reward_objective
from chainrule.objectives.minimum_risk import MinimumRisk, compute_risks, distinct_candidates
from chainrule.objectives.policy_gradient import leave_one_out_mean
from chainrule.objectives.reward_objective import references_of
from chainrule.types import Batch, Source, Vocabulary

ROWS = all_sequences(3, 3)
EVEN = Vocabulary(3, EOS, np.ones(3, np.int64))


def make_objective(**options: Any) -> MinimumRisk:
    objective = MinimumRisk(MinimumRisk.Config(**{"with_reference": False, **options}))
    objective.reward = some_reward
    return objective


def by_formula(
    model: Any, source: Source, rows: list[tuple[int, ...]], reference: list[int], sharpness: float
) -> Tensor:
    """Σ_y p(y)^α (1 - r(y)) / Σ_y p(y)^α, with gradient."""
    powers_N = sequence_log_probs(model, source, rows).exp() ** sharpness
    return powers_N @ (1 - rewards_of(rows, reference)) / powers_N.sum()


# The risk


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(-40, 0), st.floats(0, 1)), min_size=1, max_size=12))
def test_risks_equal_the_formula_in_any_order(candidates: list[tuple[int, float, float]]) -> None:
    numbers, log_probs, costs = zip(*candidates, strict=True)
    found_B = compute_risks(torch.tensor(log_probs), torch.tensor(costs), torch.tensor(numbers), 0.3)
    for found, number in zip(found_B.tolist(), sorted(set(numbers)), strict=True):
        own_candidates = [(math.exp(0.3 * log_prob), cost) for source, log_prob, cost in candidates if source == number]
        assert found == pytest.approx(
            sum(p * cost for p, cost in own_candidates) / sum(p for p, _ in own_candidates), rel=1e-4, abs=1e-6
        )


def test_risks_of_very_improbable_sequences_are_finite() -> None:
    log_probs_N = torch.tensor([-2000.0, -2000.0, -3000.0], requires_grad=True)
    found_B = compute_risks(log_probs_N, torch.tensor([0.0, 1.0, 0.25]), torch.tensor([0, 0, 1]), 1.0)
    assert found_B.tolist() == [0.5, 0.25]
    found_B.sum().backward()
    assert log_probs_N.grad is not None
    assert log_probs_N.grad.tolist() == [-0.25, 0.25, 0.0]


@pytest.mark.parametrize("name", ["table", *TRANSLATORS])
@pytest.mark.parametrize("sharpness", [1.0, 0.005])
def test_over_all_sequences_it_has_the_gradient_of_the_exact_risk(name: str, sharpness: float) -> None:
    """Every sequence is sampled, some several times. At sharpness 1 that is exactly the expected reward."""
    batch = table_batch([[2, 1]], [1])
    model: Any = TableTranslator()
    if name != "table":
        model, batch = small_translator(name, vocabulary=EVEN).double(), batch._replace(source=some_source([3], size=3))
    objective = make_objective(sharpness=sharpness)
    with_samples(objective, [*ROWS, ROWS[3], ROWS[3], ROWS[11]])
    loss = objective.loss(model, batch, None, 0)
    exact = by_formula(model, one_row(batch.source), ROWS, [2, 1], sharpness)
    assert float(loss.total.detach()) == pytest.approx(float(exact.detach()) / sharpness, rel=1e-5)
    assert_close(gradients(loss.total, model), gradients(exact / sharpness, model), rtol=1e-5)
    if sharpness == 1.0:
        reward = sequence_log_probs(model, one_row(batch.source), ROWS).exp() @ rewards_of(ROWS, [2, 1])
        assert_close(gradients(loss.total, model), gradients(-reward, model), rtol=1e-5)


@pytest.mark.parametrize("with_reference", [True, False])
def test_the_loss_of_a_batch_is_the_sum_over_its_sources(with_reference: bool) -> None:
    model, batch, references = TableTranslator(), table_batch([[2, 1], [1]]), [[2, 1], [1]]
    sampled = [ROWS[4], ROWS[4], ROWS[7], ROWS[1], ROWS[13], ROWS[2]]  # one of the second source is its reference
    objective = make_objective(samples=3, sharpness=0.2, with_reference=with_reference)
    with_samples(objective, sampled)
    loss = objective.loss(model, batch, None, 0)
    exact = []
    for number, reference in enumerate(references):
        candidates = {*sampled[3 * number : 3 * number + 3], *([(*reference, EOS)] if with_reference else [])}
        exact.append(by_formula(model, one_row(batch.source, number), sorted(candidates), reference, 0.2))
    total = torch.stack(exact).sum()
    assert float(loss.total.detach()) == pytest.approx(float(total.detach()) / 0.2, rel=1e-5)
    assert_close(gradients(loss.total, model), gradients(total / 0.2, model))
    assert loss.count == 5  # reference tokens, eos included
    sample_rewards = torch.cat([rewards_of(sampled[:3], [2, 1]), rewards_of(sampled[3:], [1])])
    assert objective.figures == pytest.approx(
        {"reward": float(sample_rewards.mean()), "risk": float(total.detach()) / 2}
    )


def test_at_low_sharpness_it_is_the_policy_gradient_with_the_mean_as_baseline() -> None:
    """Distinct samples with equal weights: Σ (r - mean) ∇ log p / K, (K - 1)/K of that with the leave-one-out mean."""
    model, batch = TableTranslator(), table_batch([[2, 1]], [0])
    objective = make_objective(sharpness=1e-6)
    with_samples(objective, ROWS[3:9])
    rewards_1N = rewards_of(ROWS[3:9], [2, 1])[None]
    advantage_N = (rewards_1N - leave_one_out_mean(rewards_1N))[0]
    expected = -(advantage_N * sequence_log_probs(model, one_row(batch.source), ROWS[3:9])).mean() * 5 / 6
    assert_close(gradients(objective.loss(model, batch, None, 0).total, model), gradients(expected, model), rtol=1e-4)


# The candidates


@given(st.data())
def test_candidates_are_the_distinct_samples_of_each_source_and_its_reference(data: st.DataObject) -> None:
    sources, samples = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 5))
    row = st.sampled_from(ROWS)
    sampled = data.draw(st.lists(row, min_size=sources * samples, max_size=sources * samples))
    references = data.draw(st.none() | st.lists(row, min_size=sources, max_size=sources))
    found = distinct_candidates(as_samples(sampled), sources, references and as_samples(references), EOS)
    lengths = found.samples.weights_RT.sum(1).long().tolist()
    rows = [tuple(tokens[:length]) for tokens, length in zip(found.samples.tokens_RT.tolist(), lengths, strict=True)]
    # A row that is cut at the limit differs from the same row with eos, unless a longer reference pads it with eos.
    ended = [(*one, EOS) if EOS not in one and len(one) < found.samples.tokens_RT.shape[1] else one for one in sampled]
    expected = {}
    for number, one in enumerate(ended):
        expected[number // samples, one] = expected.get((number // samples, one), 0) + 1
    for number, one in enumerate(references or ()):
        one = (*one, EOS) if EOS not in one and len(one) < found.samples.tokens_RT.shape[1] else one
        expected.setdefault((number, one), 0)
    assert dict(zip(zip(found.source_R.tolist(), rows, strict=True), found.count_R.tolist(), strict=True)) == expected
    assert found.source_R.tolist() == sorted(found.source_R.tolist())


def test_the_references_of_a_batch_end_where_its_weights_do() -> None:
    targets_BT = torch.tensor([[4, 2, EOS, 9], [3, EOS, 9, 9], [5, 6, 7, EOS]])
    weights_BT = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0], [1, 1, 1, 1.0]])
    found = references_of(Batch(targets_BT, targets_BT, weights_BT), EOS)
    assert found.tokens_RT.tolist() == [[4, 2, EOS, EOS], [3, EOS, EOS, EOS], [5, 6, 7, EOS]]
    assert torch.equal(found.weights_RT, weights_BT)


# Training


@pytest.mark.parametrize("name", ["seq2seq-transformer", "seq2seq-attention"])
def test_chunks_do_not_change_the_result(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, source = small_translator(name).double(), some_source([5, 2, 4, 4, 1], padding=1)
    batch = Batch(torch.tensor([[EOS, 3, 5]] * 5), torch.tensor([[3, 5, EOS]] * 5), None, source)
    found, figures = [], []
    for tokens in (4096, 30, 1):
        monkeypatch.setattr(reward_objective, "CHUNK_TOKENS", tokens)
        torch.manual_seed(0)
        objective = make_objective(samples=4, with_reference=True)
        found.append(gradients(objective.loss(model, batch, None, 0).total, model))
        figures.append(objective.figures)
    assert_close(found[1], found[0], rtol=1e-4)  # costs are in single precision
    assert_close(found[2], found[0], rtol=1e-4)
    assert figures[1] == pytest.approx(figures[0], rel=1e-5)


def test_rewards_see_each_distinct_sample_of_a_source_once() -> None:
    torch.manual_seed(0)
    objective, seen = make_objective(samples=50, temperature=0.5), []

    def recording(rows: list[list[int]], references: list[list[int]]) -> Any:
        seen.extend(zip(rows, references, strict=True))
        return some_reward(rows, references)

    objective.reward = recording
    objective.loss(TableTranslator(), table_batch([[2, 1], [1]]), None, 0)
    for reference in ([2, 1], [1]):
        rows = [tuple(row) for row, given in seen if given == reference]
        assert len(rows) == len(set(rows)) > 3


@pytest.mark.parametrize("options", [{}, {"with_reference": True}, {"likelihood": 0.1}, {"sharpness": 1.0}])
def test_a_few_steps_raise_the_expected_reward(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model, batch, objective = TableTranslator(), table_batch([[2, 1], [1]] * 5, [0, 1] * 5), make_objective(**options)
    optimizer = torch.optim.SGD(model.parameters(), lr=5.0)
    before = expected_reward(model, [[2, 1], [1]])
    for step in range(30):
        loss = objective.loss(model, batch, None, step)
        (loss.total / loss.count).backward()
        optimizer.step()
        optimizer.zero_grad()
    after = expected_reward(model, [[2, 1], [1]])
    assert after > before + 0.2
    assert objective.figures["reward"] == pytest.approx(after, abs=0.15)


def test_a_language_model_raises_an_error() -> None:
    tokens_BT = torch.zeros(1, 3).long()
    with pytest.raises(ConfigError) as caught:
        make_objective().loss(small_model("lstm"), Batch(tokens_BT, tokens_BT), None, 0)
    assert str(caught.value) == (
        "minimum-risk trains translators only: it compares translations with references; use likelihood or "
        "scheduled-sampling for a language model"
    )
