"""An ensemble against its formula, and against its only member.

Legend: B batch, T time, V vocabulary, K kept rows.
"""

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


class Sourced(TableModel):
    """A table that starts from a source of one number a row, as a translator starts from a sentence."""

    def start(self, source_B: Any) -> TablePrefix:
        return TablePrefix(source_B * 31 + self.seed, None)


def walked(stepper: Stepper, state: Any, tokens_BT: Tensor) -> list[Tensor]:
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
    apart = [walked(member, member.start(3), TOKENS_BT) for member in members]
    for row_BV, *rows in zip(walked(ensemble, ensemble.start(3), TOKENS_BT), *apart, strict=True):
        mean_BV = sum(share * row.double().exp() for share, row in zip(shares, rows, strict=True))
        torch.testing.assert_close(row_BV.exp(), mean_BV, check_dtype=False)
        torch.testing.assert_close(row_BV.exp().sum(1), torch.ones(3))


def test_what_only_one_member_allows_stays_possible_and_what_none_allows_does_not() -> None:
    class Fixed(TableModel):
        def __init__(self, probabilities: list[float]) -> None:
            super().__init__(len(probabilities))
            self.row_V = torch.tensor(probabilities).log()

        def _row(self, hash_B: Tensor) -> Tensor:
            return self.row_V.expand(len(hash_B), -1)

    ensemble = Ensemble([Fixed([0.5, 0.5, 0.0]), Fixed([1.0, 0.0, 0.0])], [1, 3])
    row_1V, _ = ensemble.step(ensemble.start(1), torch.tensor([EOS]))
    assert row_1V.exp()[0].tolist() == pytest.approx([0.875, 0.125, 0.0])
    assert row_1V[0, 2] == -math.inf


def test_a_prompt_is_read_by_each_member_in_its_own_way() -> None:
    members = [TableModel(6, 1), PrefillingTable(6, 2)]
    ensemble = Ensemble(members)
    row_BV, state = ensemble.prefill(ensemble.start(3), TOKENS_BT)
    assert [member.steps for member in members] == [3, 1]
    stepped = walked(Ensemble(members), ensemble.start(3), torch.cat([TOKENS_BT, torch.tensor([[1], [2], [5]])], 1))
    assert torch.equal(row_BV, stepped[2])
    assert torch.equal(ensemble.step(state, torch.tensor([1, 2, 5]))[0], stepped[3])


def test_select_reorders_every_member() -> None:
    ensemble = Ensemble([TableModel(6, 1), TableModel(6, 2)], [1, 2])
    _, state = ensemble.prefill(ensemble.start(3), TOKENS_BT)
    rows_K, token_B = torch.tensor([2, 0, 0, 1]), torch.tensor([4, 1, 5])
    expected_KV = ensemble.step(state, token_B)[0][rows_K]
    assert torch.equal(ensemble.step(ensemble.select(state, rows_K), token_B[rows_K])[0], expected_KV)


def test_each_member_starts_from_its_own_source() -> None:
    members = [Sourced(6, 1), Sourced(6, 2)]
    sources = [torch.tensor([5, 6, 7]), torch.tensor([9, 8, 7])]
    ensemble = Ensemble(members, [2, 2])
    rows = walked(ensemble, ensemble.start(sources), TOKENS_BT)
    first, second = (
        walked(member, member.start(source_B), TOKENS_BT) for member, source_B in zip(members, sources, strict=True)
    )
    torch.testing.assert_close(rows[2].exp(), (first[2].exp() + second[2].exp()) / 2)


@pytest.mark.parametrize("copies", [1, 2])
def test_an_ensemble_of_one_searches_as_that_one(copies: int) -> None:
    """So does one of the same model twice, but for rounding."""
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


def test_the_beam_of_an_ensemble_ranks_by_the_mean() -> None:
    members = [TableModel(4, 1), TableModel(4, 2)]
    ensemble = Ensemble(members, [1, 3])
    best = beam_search(ensemble, ensemble.start(1), torch.tensor([[EOS]]), eos=None, beams=16, max_new_tokens=2)[0][0]
    scores = {}
    for first in range(4):
        rows = [walked(member, member.start(1), torch.tensor([[EOS, first]])) for member in members]
        one_1V, two_1V = (0.25 * left.exp() + 0.75 * right.exp() for left, right in zip(*rows, strict=True))
        scores |= {(first, second): float((one_1V[0, first] * two_1V[0, second]).log()) for second in range(4)}
    assert tuple(best.tokens) == max(scores, key=lambda pair: scores[pair])
    assert math.isclose(best.log_prob, max(scores.values()), abs_tol=1e-5)


@pytest.mark.parametrize(
    ("members", "weights", "sentence"),
    [
        (0, None, "the ensemble has no member, but at least 1 is needed."),
        (
            3,
            [1.0, 2.0],
            "the ensemble has 2 weights for 3 members; give one each, or none for equal weights.",
        ),
        (
            2,
            [1.0, 0.0],
            "a member of the ensemble weighs 0.0, but a weight must be a positive number; "
            "leave out a member that is to have none.",
        ),
        (
            1,
            [math.inf],
            "a member of the ensemble weighs inf, but a weight must be a positive number; "
            "leave out a member that is to have none.",
        ),
    ],
)
def test_wrong_weights_have_their_sentence(members: int, weights: list[float] | None, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Ensemble([TableModel(3)] * members, weights)
    assert str(caught.value) == sentence


def test_sources_that_are_too_few_have_their_sentence() -> None:
    with pytest.raises(ConfigError) as caught:
        Ensemble([Sourced(3), Sourced(3)]).start([torch.tensor([1])])
    assert str(caught.value) == (
        "the ensemble was started from 1 sources, but it has 2 members; give each member its own."
    )


def test_members_of_different_vocabularies_have_their_sentence() -> None:
    ensemble = Ensemble([TableModel(5), TableModel(3)])
    with pytest.raises(ConfigError) as caught:
        ensemble.step(ensemble.start(1), torch.tensor([EOS]))
    assert str(caught.value) == (
        "the members of the ensemble choose from 3 and 5 words, but they must share one vocabulary; "
        "train them with one tokeniser."
    )
