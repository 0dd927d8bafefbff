"""An ensemble against its formula, and against its only member."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from chainrule.decoding import Ensemble, Greedy, beam_search, generate
from chainrule.errors import ConfigError
from chainrule.types import Stepper
from toy import PrefillingTable, TableModel, TablePrefix

EOS = 0
TOKENS_BT = torch.tensor([[EOS, 2, 4], [EOS, 1, 1], [EOS, 3, 0]])


class SourceTable(TableModel):
    """A table that starts from a source of one number per row, as a translator starts from a sentence."""

    def start(self, source_B: Any) -> TablePrefix:
        return TablePrefix(source_B * 31 + self.seed, None)


def step_through(stepper: Stepper, state: Any, tokens_BT: Tensor) -> list[Tensor]:
    """log p(. | prefix) BV after each token."""
    rows = []
    for token_B in tokens_BT.unbind(1):
        row_BV, state = stepper.step(state, token_B)
        rows.append(row_BV)
    return rows


@pytest.mark.parametrize(("weights", "shares"), [(None, [1 / 3] * 3), ([3, 1, 4], [0.375, 0.125, 0.5])])
def test_a_step_is_the_weighted_mean_of_probabilities(weights: list[float] | None, shares: list[float]) -> None:
    members = [TableModel(6, 1), PrefillingTable(6, 2), TableModel(6, 3)]
    ensemble = Ensemble(members, weights)
    separate = [step_through(member, member.start(3), TOKENS_BT) for member in members]
    for row_BV, *rows in zip(step_through(ensemble, ensemble.start(3), TOKENS_BT), *separate, strict=True):
        mean_BV = sum(share * row.double().exp() for share, row in zip(shares, rows, strict=True))
        torch.testing.assert_close(row_BV.exp(), mean_BV, check_dtype=False)
        torch.testing.assert_close(row_BV.exp().sum(1), torch.ones(3))


def test_a_token_is_possible_if_one_member_allows_it_and_impossible_if_none_does() -> None:
    class FixedTable(TableModel):
        def __init__(self, probabilities: list[float]) -> None:
            super().__init__(len(probabilities))
            self.row_V = torch.tensor(probabilities).log()

        def _row(self, hash_B: Tensor) -> Tensor:
            return self.row_V.expand(len(hash_B), -1)

    ensemble = Ensemble([FixedTable([0.5, 0.5, 0.0]), FixedTable([1.0, 0.0, 0.0])], [1, 3])
    row_1V, _ = ensemble.step(ensemble.start(1), torch.tensor([EOS]))
    assert row_1V.exp()[0].tolist() == pytest.approx([0.875, 0.125, 0.0])
    assert row_1V[0, 2] == -math.inf


def test_each_member_reads_the_prompt_by_its_own_prefill() -> None:
    members = [TableModel(6, 1), PrefillingTable(6, 2)]
    ensemble = Ensemble(members)
    row_BV, state = ensemble.prefill(ensemble.start(3), TOKENS_BT)
    assert [member.steps for member in members] == [3, 1]
    longer_BT = torch.cat([TOKENS_BT, torch.tensor([[1], [2], [5]])], 1)
    stepped = step_through(Ensemble(members), ensemble.start(3), longer_BT)
    assert torch.equal(row_BV, stepped[2])
    assert torch.equal(ensemble.step(state, torch.tensor([1, 2, 5]))[0], stepped[3])


def test_select_reorders_every_member() -> None:
    ensemble = Ensemble([TableModel(6, 1), TableModel(6, 2)], [1, 2])
    _, state = ensemble.prefill(ensemble.start(3), TOKENS_BT)
    rows_K, token_B = torch.tensor([2, 0, 0, 1]), torch.tensor([4, 1, 5])
    expected_KV = ensemble.step(state, token_B)[0][rows_K]
    assert torch.equal(ensemble.step(ensemble.select(state, rows_K), token_B[rows_K])[0], expected_KV)


def test_each_member_starts_from_its_own_source() -> None:
    members = [SourceTable(6, 1), SourceTable(6, 2)]
    sources = [torch.tensor([5, 6, 7]), torch.tensor([9, 8, 7])]
    ensemble = Ensemble(members, [2, 2])
    rows = step_through(ensemble, ensemble.start(sources), TOKENS_BT)
    first, second = (
        step_through(member, member.start(source_B), TOKENS_BT)
        for member, source_B in zip(members, sources, strict=True)
    )
    torch.testing.assert_close(rows[2].exp(), (first[2].exp() + second[2].exp()) / 2)


@pytest.mark.parametrize("copies", [1, 2])
def test_an_ensemble_of_one_model_searches_like_that_model(copies: int) -> None:
    """So does an ensemble of the same model twice, apart from rounding."""
    alone = TableModel(7, 5)
    ensemble = Ensemble([alone] * copies, [0.3] * copies)
    options = {"eos": EOS, "beams": 4, "max_new_tokens": 8, "length_penalty": 0.6, "num_return_sequences": 3}
    expected = beam_search(alone, alone.start(3), TOKENS_BT, **options)  # type: ignore[arg-type]
    found = beam_search(ensemble, ensemble.start(3), TOKENS_BT, **options)  # type: ignore[arg-type]
    if copies == 1:
        assert found == expected
    assert [[h.tokens for h in row] for row in found] == [[h.tokens for h in row] for row in expected]
    greedy = [generate(model, eos=EOS, bos=EOS, max_new_tokens=9, choose=Greedy()) for model in (alone, ensemble)]
    assert torch.equal(greedy[0][0], greedy[1][0])


def test_beam_search_with_an_ensemble_ranks_by_the_mean() -> None:
    members = [TableModel(4, 1), TableModel(4, 2)]
    ensemble = Ensemble(members, [1, 3])
    options = {"eos": None, "beams": 16, "max_new_tokens": 2, "length_penalty": 0.0}
    best = beam_search(ensemble, ensemble.start(1), torch.tensor([[EOS]]), **options)[0][0]  # type: ignore[arg-type]
    scores = {}
    for first in range(4):
        rows = [step_through(member, member.start(1), torch.tensor([[EOS, first]])) for member in members]
        one_1V, two_1V = (0.25 * left.exp() + 0.75 * right.exp() for left, right in zip(*rows, strict=True))
        scores |= {(first, second): float((one_1V[0, first] * two_1V[0, second]).log()) for second in range(4)}
    assert tuple(best.tokens) == max(scores, key=lambda pair: scores[pair])
    assert math.isclose(best.log_prob, max(scores.values()), abs_tol=1e-5)


@pytest.mark.parametrize(
    ("members", "weights", "message"),
    [
        (0, None, "the ensemble has no members; give at least 1"),
        (
            3,
            [1.0, 2.0],
            "the ensemble has 2 weights for 3 members; give one weight per member, or none for equal weights",
        ),
        (
            2,
            [1.0, 0.0],
            "a member of the ensemble has the weight 0.0; expected a positive number: leave out a member that should "
            "not count",
        ),
        (
            1,
            [math.inf],
            "a member of the ensemble has the weight inf; expected a positive number: leave out a member that should "
            "not count",
        ),
    ],
)
def test_wrong_weights_raise_an_error(members: int, weights: list[float] | None, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Ensemble([TableModel(3)] * members, weights)
    assert str(caught.value) == message


def test_too_few_sources_raise_an_error() -> None:
    with pytest.raises(ConfigError) as caught:
        Ensemble([SourceTable(3), SourceTable(3)]).start([torch.tensor([1])])
    assert str(caught.value) == "the ensemble got 1 sources for 2 members; give one source per member"


def test_different_vocabularies_raise_an_error() -> None:
    ensemble = Ensemble([TableModel(5), TableModel(3)])
    with pytest.raises(ConfigError) as caught:
        ensemble.step(ensemble.start(1), torch.tensor([EOS]))
    assert str(caught.value) == (
        "the members of the ensemble have vocabularies of 3 and 5 tokens; expected one vocabulary: train them with "
        "one tokeniser"
    )
