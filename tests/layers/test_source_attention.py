"""Attention to a source against loops over single vectors, and its hand-written gradient against finite differences."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from chainrule.errors import ConfigError
from chainrule.layers.attention import source as source_attention
from chainrule.layers.attention.source import SCORES, SourceAttention, SourceStates, additive_scores
from chainrule.types import select_rows

U, E = 4, 4
MASK = torch.tensor([[True] * 5, [True] * 2 + [False] * 3, [True] * 4 + [False]])
scores = pytest.mark.parametrize("score", SCORES)


def made(score: str) -> tuple[SourceAttention, Tensor, Tensor]:
    """An attention layer, encoder states of three sources ASE, and decoder states RTU, all in double precision."""
    torch.manual_seed(0)
    layer = SourceAttention(score, U, E).double()
    return layer, torch.randn(3, 5, E, dtype=torch.float64), torch.randn(3, 4, U, dtype=torch.float64)


def naive_score(layer: SourceAttention, h_U: Tensor, e_E: Tensor, place: int) -> Tensor:
    score = layer.score
    if layer.score.__class__ is SCORES["location"]:
        return score.rows_SU[place] @ (score.project_query.weight @ h_U + score.project_query.bias).relu()
    if layer.score.__class__ is SCORES["dot"]:
        return h_U @ e_E
    if layer.score.__class__ is SCORES["general"]:
        return h_U @ score.project.weight @ e_E
    return score.vector_X @ (score.project_query.weight @ h_U + score.project.weight @ e_E + score.project.bias).tanh()


def naive(layer: SourceAttention, h_U: Tensor, states: list[Tensor]) -> tuple[Tensor, Tensor]:
    """h~ = tanh(W [c; h]) and the weights, for one query and the states of one source without padding."""
    exps = torch.stack([naive_score(layer, h_U, e_E, place).exp() for place, e_E in enumerate(states)])
    weights_S = exps / exps.sum()
    context_E = sum(weight * e_E for weight, e_E in zip(weights_S, states, strict=True))
    joint = torch.cat([layer.project_context.weight, layer.project_query.weight], 1)
    return (joint @ torch.cat([context_E, h_U]) + layer.project_query.bias).tanh(), weights_S


@scores
def test_it_equals_the_formula_for_every_query(score: str) -> None:
    layer, encoded_ASE, hidden_RTU = made(score)
    vector_RTU, weights_RTS = layer(hidden_RTU, layer.make_memory(encoded_ASE, MASK))
    for row, states_SE in enumerate(encoded_ASE):
        states = [e_E for e_E, real in zip(states_SE, MASK[row], strict=True) if real]
        for t in range(hidden_RTU.shape[1]):
            expected_U, expected_S = naive(layer, hidden_RTU[row, t], states)
            torch.testing.assert_close(vector_RTU[row, t], expected_U)
            torch.testing.assert_close(weights_RTS[row, t, : len(states)], expected_S)
            assert torch.equal(weights_RTS[row, t, len(states) :], torch.zeros(5 - len(states), dtype=torch.float64))


@scores
def test_a_source_without_padding_needs_no_mask(score: str) -> None:
    layer, encoded_ASE, hidden_RTU = made(score)
    masked = layer(hidden_RTU, layer.make_memory(encoded_ASE, torch.ones_like(MASK)))
    torch.testing.assert_close(layer(hidden_RTU, layer.make_memory(encoded_ASE, None)), masked)


@scores
def test_gradients_equal_finite_differences(score: str) -> None:
    layer, encoded_ASE, hidden_RTU = made(score)
    names = [name for name, _ in layer.named_parameters()]

    class Whole(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, encoded_ASE: Tensor, hidden_RTU: Tensor) -> tuple[Tensor, Tensor]:
            return self.layer(hidden_RTU, self.layer.make_memory(encoded_ASE, MASK))

    def run(encoded_ASE: Tensor, hidden_RTU: Tensor, *weights: Tensor) -> tuple[Tensor, Tensor]:
        given = {f"layer.{name}": weight for name, weight in zip(names, weights, strict=True)}
        return torch.func.functional_call(Whole(), given, (encoded_ASE, hidden_RTU))

    leaves = [encoded_ASE, hidden_RTU[:, :2].clone(), *(parameter.detach().clone() for parameter in layer.parameters())]
    assert torch.autograd.gradcheck(run, [leaf.requires_grad_() for leaf in leaves])


@pytest.mark.parametrize("chunk", [1, 60, 10**6])
def test_additive_scores_in_pieces_equal_all_at_once(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_attention, "CHUNK", chunk)
    torch.manual_seed(1)
    leaves = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in ((2, 7, 3), (2, 5, 3), (3,))]
    query_AQX, keys_ASX, vector_X = leaves
    plain_AQS = (query_AQX[:, :, None] + keys_ASX[:, None]).tanh() @ vector_X
    ours_AQS = additive_scores(*leaves)
    torch.testing.assert_close(ours_AQS, plain_AQS)
    slope_AQS = torch.randn_like(plain_AQS)
    theirs = torch.autograd.grad(plain_AQS, leaves, slope_AQS)
    torch.testing.assert_close(torch.autograd.grad(ours_AQS, leaves, slope_AQS), theirs)


@scores
def test_the_contents_of_padding_have_no_effect(score: str) -> None:
    layer, encoded_ASE, hidden_RTU = made(score)
    before = layer(hidden_RTU, layer.make_memory(encoded_ASE, MASK))
    changed_ASE = torch.where(MASK[:, :, None], encoded_ASE, 1e3)
    after = layer(hidden_RTU, layer.make_memory(changed_ASE, MASK))
    assert torch.equal(before[0], after[0])
    assert torch.equal(before[1], after[1])


@scores
@pytest.mark.parametrize(
    ("picks", "sources", "rows"),
    [
        ([[0, 0, 1, 1, 2, 2]], 3, 2),  # two hypotheses per sentence
        ([[0, 0, 1, 1, 2, 2], [1, 0, 3, 3, 4, 5]], 3, 2),  # which are reordered
        ([[0, 0, 1, 1, 2, 2], [0, 1, 4, 4]], 2, 2),  # one sentence is finished
        ([[2, 0, 1]], 3, 1),
        ([[0, 0, 0, 2]], 4, 1),  # unequal numbers: a copy of the source per row
        ([[1, 1, 0], [0, 2, 2, 0, 0]], 5, 1),
        ([[0, 1, 2, 0, 1, 2]], 6, 1),
    ],
)
def test_rows_of_one_source_share_it(score: str, picks: list[list[int]], sources: int, rows: int) -> None:
    layer, encoded_ASE, _ = made(score)
    memory, origin = layer.make_memory(encoded_ASE, MASK), torch.arange(3)
    for pick in picks:
        memory, origin = select_rows((memory, origin), torch.tensor(pick))
    assert isinstance(memory, SourceStates)
    assert (len(memory.keys_ASX), len(memory.values_ASU), memory.rows) == (sources, sources, rows)
    hidden_RTU = torch.randn(len(origin), 4, U, dtype=torch.float64)
    copied = layer(hidden_RTU, layer.make_memory(encoded_ASE[origin], MASK[origin]))
    torch.testing.assert_close(layer(hidden_RTU, memory), copied)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("genral", 4, 4),
            "unknown attention score 'genral': did you mean 'general'? Known: additive, dot, general, location",
        ),
        (
            ("dot", 4, 6),
            "the dot score needs states of equal width, but the decoder's are 4 wide and the encoder's 6: "
            "make them equal, or choose the general or the additive score",
        ),
    ],
)
def test_wrong_options_are_named(arguments: tuple, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        SourceAttention(*arguments)
    assert str(caught.value) == message


def test_far_positions_share_the_last_row_of_the_location_score(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_attention, "LOCATIONS", 3)
    layer, encoded_ASE, hidden_RTU = made("location")
    weights_RTS = layer(hidden_RTU, layer.make_memory(encoded_ASE, None))[1]
    torch.testing.assert_close(weights_RTS[:, :, 3:], weights_RTS[:, :, 2:3].expand(-1, -1, 2))
    other_RTS = layer(hidden_RTU, layer.make_memory(encoded_ASE + 1, None))[1]
    assert torch.equal(weights_RTS, other_RTS)  # the contents of the source do not matter
