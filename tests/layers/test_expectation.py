"""The expected embedding and the normaliser against the formula, their gradients against autograd and differences."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from chainrule.layers.expectation import softmax_expectation
from chainrule.layers.outputs.base import OutputLayer
from chainrule.registry import OUTPUTS
from chainrule.types import Vocabulary


def naive(query_ND: Tensor, weight_VD: Tensor, bias_V: Tensor, table_VE: Tensor) -> tuple[Tensor, Tensor]:
    scores_NV = query_ND @ weight_VD.T + bias_V
    return scores_NV.softmax(-1) @ table_VE, scores_NV.logsumexp(-1)


def parts(tied: bool, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    weight_VD = torch.randn(11, 4, dtype=dtype)
    table_VE = weight_VD if tied else torch.randn(11, 3, dtype=dtype)
    return torch.randn(5, 4, dtype=dtype, requires_grad=True), weight_VD, torch.randn(11, dtype=dtype), table_VE


@pytest.mark.parametrize("tied", [True, False])
def test_the_expectation_is_the_mean_of_the_table_under_the_softmax(tied: bool) -> None:
    given = parts(tied)
    torch.testing.assert_close(softmax_expectation(*given), naive(*given))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("used", ["expected", "normaliser", "both"])
def test_the_gradient_of_the_query_equals_autograd(tied: bool, used: str) -> None:
    query_ND, *_, table_VE = given = parts(tied, torch.float64)
    above_NE, above_N = torch.randn(5, table_VE.shape[1], dtype=torch.float64), torch.randn(5, dtype=torch.float64)

    def total(results: tuple[Tensor, Tensor]) -> Tensor:
        expected = (results[0] * above_NE).sum() * (used != "normaliser")
        return expected + (results[1] @ above_N if used != "expected" else 0)

    if used == "normaliser":
        (ours,) = torch.autograd.grad(softmax_expectation(*given)[1] @ above_N, query_ND)
    else:
        (ours,) = torch.autograd.grad(total(softmax_expectation(*given)), query_ND)
    (expected,) = torch.autograd.grad(total(naive(*given)), query_ND)
    torch.testing.assert_close(ours, expected)


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    given = parts(False, torch.float64)

    def results() -> list[Tensor]:
        expected_NE, log_total_N = softmax_expectation(*given)
        (grad,) = torch.autograd.grad(expected_NE.sin().sum() + log_total_N.sum(), given[0])
        return [expected_NE, log_total_N, grad]

    whole = results()
    monkeypatch.setattr("chainrule.layers.expectation.CHUNK_ENTRIES", 22)
    torch.testing.assert_close(results(), whole)


def test_the_gradient_equals_finite_differences() -> None:
    query_ND, *constants = parts(False, torch.float64)
    assert torch.autograd.gradcheck(lambda query: softmax_expectation(query, *constants), query_ND)


def layer_of(name: str) -> tuple[OutputLayer, Any]:
    make = OUTPUTS.get(name).make
    options: dict[str, Any] = {"cutoffs": (4, 8), "div_value": 2.0} if name == "adaptive" else {}
    vocabulary = Vocabulary(11, 0, torch.arange(11, 0, -1).numpy())
    layer = make(make.Config(**options), 4, vocabulary).double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn(parameter.shape))
    return layer, torch.randn(11, 3, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("name", OUTPUTS.names())
def test_every_output_layer_expects_under_its_own_distribution(name: str) -> None:
    layer, table_VE = layer_of(name)
    hidden_ND, targets_N = torch.randn(6, 4, dtype=torch.float64, requires_grad=True), torch.arange(6)
    expected_NE, log_prob_N = layer.expect(hidden_ND, table_VE, targets_N)
    log_probs_NV = layer.log_probs(hidden_ND)
    by_hand_NE, by_hand_N = log_probs_NV.exp() @ table_VE, log_probs_NV[torch.arange(6), targets_N]
    torch.testing.assert_close(expected_NE, by_hand_NE)
    torch.testing.assert_close(log_prob_N, by_hand_N)
    (expected,) = torch.autograd.grad(by_hand_NE.cos().sum() + by_hand_N.sum(), hidden_ND)
    (expected_NE.cos().sum() + log_prob_N.sum()).backward()
    torch.testing.assert_close(hidden_ND.grad, expected)
    assert table_VE.grad is None
    assert all(parameter.grad is None for parameter in layer.parameters())
    assert layer.expect(hidden_ND, table_VE, None)[1] is None
