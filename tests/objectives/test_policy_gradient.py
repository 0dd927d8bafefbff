"""The policy gradient against the exact gradient of the expected reward, by enumeration of all that can be drawn.

Legend: B sources, N rows, V vocabulary, Y sequences there are.
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
    assert_close,
    drawing,
    everything,
    expected_reward,
    gradients,
    one_row,
    rewards_of,
    sequence_log_probs,
    some_reward,
    summed,
    table_batch,
)

from builders import TRANSLATORS, small_model, small_translator, some_source
from chainrule.config import parse
from chainrule.errors import ConfigError
from chainrule.objectives import rewarded
from chainrule.objectives.likelihood import Likelihood
from chainrule.objectives.policy_gradient import PolicyGradient, others_mean
from chainrule.objectives.rewarded import portioned
from chainrule.types import Batch, Vocabulary

ROWS = everything(3, 3)
EVEN = Vocabulary(3, EOS, np.ones(3, np.int64))


def objective(**options: Any) -> PolicyGradient:
    made = PolicyGradient(PolicyGradient.Config(**options))
    made.reward = some_reward
    return made


def translated(batch: Batch, name: str) -> tuple[Any, Batch]:
    """A model in double precision and a batch of one source for it."""
    if name == "table":
        return TableTranslator(), batch
    return small_translator(name, vocabulary=EVEN).double(), batch._replace(source=some_source([3], size=3, padding=1))


# The estimate is right


def weighted_gradients(model: Any, batch: Batch, made: PolicyGradient, first: list[tuple[int, ...]]) -> Iterator[Any]:
    """p(draws) times the gradient of the loss given these draws, for all draws of so many samples."""
    with torch.no_grad():
        chances_Y = sequence_log_probs(model, batch.source, ROWS).exp().tolist()
    for drawn in itertools.product(zip(ROWS, chances_Y, strict=True), repeat=made.config.samples):
        loss = drawing(made, [*first, *(row for row, _ in drawn)]).loss(model, batch, None, 0)
        chance = float(np.prod([chance for _, chance in drawn]))
        yield [chance * gradient for gradient in gradients(loss.total, model)]


@pytest.mark.parametrize("name", ["table", *TRANSLATORS])
def test_its_expectation_is_the_gradient_of_the_expected_reward(name: str) -> None:
    model, batch = translated(table_batch([[2, 1]], [1]), name)
    exact = gradients(-sequence_log_probs(model, batch.source, ROWS).exp() @ rewards_of(ROWS, [2, 1]), model)
    found = summed(weighted_gradients(model, batch, objective(), [ROWS[4]]))
    assert_close(found, exact)


@pytest.mark.parametrize("greedy", [ROWS[0], ROWS[9], ROWS[14]])
def test_no_baseline_changes_the_expectation(greedy: tuple[int, ...]) -> None:
    model, batch = translated(table_batch([[1]], [0]), "table")
    exact = gradients(-sequence_log_probs(model, batch.source, ROWS).exp() @ rewards_of(ROWS, [1]), model)
    assert_close(summed(weighted_gradients(model, batch, objective(), [greedy])), exact)


@pytest.mark.parametrize("baseline", ["greedy", "mean"])
def test_several_draws_have_the_same_expectation(baseline: str) -> None:
    model, batch = translated(table_batch([[1]], [0]), "table")
    exact = gradients(-sequence_log_probs(model, batch.source, ROWS).exp() @ rewards_of(ROWS, [1]), model)
    made = objective(samples=2, baseline=baseline)
    assert_close(summed(weighted_gradients(model, batch, made, [ROWS[2]] if baseline == "greedy" else [])), exact)


def test_the_mean_of_the_others_leaves_each_draw_out() -> None:
    rewards_BK = torch.rand(3, 4)
    expected = [[(sum(row) - one) / 3 for one in row] for row in rewards_BK.tolist()]
    torch.testing.assert_close(others_mean(rewards_BK), torch.tensor(expected))


def test_the_loss_of_a_batch_is_the_sum_over_its_rows_by_the_formula() -> None:
    """Two sources, two draws each; the one that is as good as the greedy one takes no part."""
    model, batch, made = TableTranslator(), table_batch([[2, 1], [1]]), objective(samples=2)
    drawn = [ROWS[4], ROWS[4], ROWS[7], ROWS[0], ROWS[13], ROWS[2]]
    drawing(made, drawn)
    loss = made.loss(model, batch, None, 0)
    expected = torch.zeros((), dtype=torch.float64)
    for number, reference in enumerate([[2, 1], [1]]):
        greedy, *sampled = drawn[3 * number : 3 * number + 3]
        source = one_row(batch.source, number)
        gained_K = rewards_of(sampled, reference) - rewards_of([greedy], reference)
        expected = expected - (gained_K * sequence_log_probs(model, source, sampled)).sum() / 2
    torch.testing.assert_close(loss.total, expected)
    assert_close(gradients(loss.total, model), gradients(expected, model))
    assert loss.count == 3 + 2  # reference tokens, eos included
    assert made.figures["reward"] == pytest.approx(
        float(torch.cat([rewards_of(drawn[1:3], [2, 1]), rewards_of(drawn[4:], [1])]).mean())
    )
    assert made.figures["greedy_reward"] == pytest.approx(
        float((rewards_of(drawn[:1], [2, 1]) + rewards_of(drawn[3:4], [1])) / 2)
    )


def test_the_reward_sees_rows_and_references_without_eos() -> None:
    made, seen = objective(), []

    def watched(rows: list[list[int]], references: list[list[int]]) -> Any:
        seen.append((rows, references))
        return some_reward(rows, references)

    made.reward = watched
    drawing(made, [(2, 1, EOS), (1, 1, 2), (EOS,), (2, EOS)])
    made.loss(TableTranslator(), table_batch([[2, 1], [1]]), None, 0)
    assert seen == [([[2, 1], [1, 1, 2], [], [2]], [[2, 1], [2, 1], [1], [1]])]


# Around the estimate


@pytest.mark.parametrize("name", ["seq2seq-transformer", "seq2seq-attention"])
def test_portions_change_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, source = small_translator(name).double(), some_source([5, 2, 4, 4, 1], padding=1)
    targets_BT = torch.tensor([[3, 5, EOS]] * 5)
    batch = Batch(torch.tensor([[EOS, 3, 5]] * 5), targets_BT, None, source)
    found, passes, forward = [], [0, 0, 0], model.forward
    for number, tokens in enumerate((4096, 12, 1)):

        def counted(*given: Any, number: int = number) -> Any:
            passes[number] += 1
            return forward(*given)

        model.forward = counted
        monkeypatch.setattr(rewarded, "PORTION_TOKENS", tokens)
        torch.manual_seed(0)
        found.append(gradients(objective(samples=3).loss(model, batch, None, 0).total, model))
    assert 1 == passes[0] < passes[1] < passes[2]
    assert_close(found[1], found[0])
    assert_close(found[2], found[0])


def test_portions_hold_each_unit_whole_and_no_more_than_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rewarded, "PORTION_TOKENS", 10)
    lengths, units = [3, 9, 2, 4, 1, 6], [0, 1, 0, 2, 2, 1]
    assert portioned(lengths, units, 100) == [[1, 5], [3, 4, 0, 2]]
    assert portioned(lengths, range(6), 100) == [[1], [5, 3], [0, 2, 4]]
    monkeypatch.setattr(rewarded, "PORTION_ENTRIES", 500)
    assert portioned(lengths, range(6), 100) == [[1], [5], [3], [0, 2], [4]]


def test_gradients_add_up_with_those_of_other_losses() -> None:
    """Accumulated batches and a share of likelihood: .grad is the sum, each times what it is multiplied by."""
    model, batch = TableTranslator(), table_batch([[2, 1], [1]])
    plain = gradients(Likelihood(Likelihood.Config()).loss(model, batch, None, 0).total, model)[0]
    alone, mixed = objective(), objective(likelihood=0.25)
    for made in (alone, mixed):
        drawing(made, [ROWS[4], ROWS[5], ROWS[0], ROWS[13]])
    rewarded_only = gradients(alone.loss(model, batch, None, 0).total, model)[0]
    mixture = mixed.loss(model, batch, None, 0)
    mixture.total.backward()
    (2 * alone.loss(model, batch, None, 0).total).backward()
    assert_close([model.scores_ATVV.grad], [0.75 * rewarded_only + 0.25 * plain + 2 * rewarded_only])
    assert mixture.count == Likelihood(Likelihood.Config()).loss(model, batch, None, 0).count


def test_where_nothing_is_better_than_expected_every_gradient_is_zero_and_there() -> None:
    model, batch = small_translator("seq2seq-transformer"), table_batch([[2, 1], [1]])
    made = objective()
    made.reward = lambda rows, references: np.full(len(rows), 0.5)
    made.loss(model, batch, None, 0).total.backward()
    assert all(torch.equal(parameter.grad, torch.zeros_like(parameter)) for parameter in model.parameters())


def test_in_bfloat16_the_gradient_points_the_same_way() -> None:
    model, batch = small_translator("seq2seq-transformer"), table_batch([[2, 1], [1]])
    made, found = objective(), []
    drawing(made, [ROWS[4], ROWS[5], ROWS[0], ROWS[13]])
    for half in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            loss = made.loss(model, batch, None, 0)
        found.append(torch.cat([gradient.flatten() for gradient in gradients(loss.total, model)]))
    assert 0.99 < float(torch.cosine_similarity(*found, dim=0)) < 1 - 1e-9


@pytest.mark.parametrize("options", [{}, {"samples": 4, "baseline": "mean"}, {"likelihood": 0.1}])
def test_a_few_steps_raise_the_expected_reward(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model, batch, made = TableTranslator(), table_batch([[2, 1], [1]] * 10, [0, 1] * 10), objective(**options)
    optimizer = torch.optim.SGD(model.parameters(), lr=5.0)
    before = expected_reward(model, [[2, 1], [1]])
    for step in range(40):
        loss = made.loss(model, batch, None, step)
        (loss.total / loss.count).backward()
        optimizer.step()
        optimizer.zero_grad()
    after = expected_reward(model, [[2, 1], [1]])
    assert after > before + 0.2
    assert made.figures["reward"] == pytest.approx(after, abs=0.15)


# What does not fit


def test_a_language_model_is_refused() -> None:
    tokens_BT = torch.zeros(1, 3).long()
    with pytest.raises(ConfigError) as caught:
        objective().loss(small_model("lstm"), Batch(tokens_BT, tokens_BT), None, 0)
    assert str(caught.value) == (
        "policy-gradient trains translators; a language model has no reference to be compared with: "
        "use likelihood or scheduled-sampling"
    )


def test_a_mean_of_others_needs_others() -> None:
    with pytest.raises(ConfigError) as caught:
        parse(PolicyGradient.Config, {"baseline": "mean"}, "objective")
    assert str(caught.value) == (
        "objective.samples = 1: the mean of the other draws needs at least 2; "
        "raise objective.samples or take objective.baseline=greedy"
    )
