"""The expected embedding against the formula, and its gradient against autograd and finite differences."""

from __future__ import annotations

import torch

from chainrule.layers.expectation import expected_embedding


def naive(query_BTD: torch.Tensor, table_VD: torch.Tensor) -> torch.Tensor:
    return (query_BTD @ table_VD.T).softmax(-1) @ table_VD


def test_expected_embedding_is_the_mean_of_the_table_under_the_softmax() -> None:
    query_BTD, table_VD = torch.randn(2, 3, 4), torch.randn(11, 4)
    torch.testing.assert_close(expected_embedding(query_BTD, table_VD), naive(query_BTD, table_VD))


def test_the_gradient_of_the_query_equals_autograd_and_the_table_gets_none() -> None:
    query_BTD, table_VD = torch.randn(2, 3, 4, requires_grad=True), torch.randn(11, 4, requires_grad=True)
    above_BTD = torch.randn(2, 3, 4)
    expected_embedding(query_BTD, table_VD).backward(above_BTD)
    (expected,) = torch.autograd.grad(naive(query_BTD, table_VD.detach()), query_BTD, above_BTD)
    torch.testing.assert_close(query_BTD.grad, expected)
    assert table_VD.grad is None


def test_the_gradient_equals_finite_differences() -> None:
    query_BTD = torch.randn(1, 2, 3, dtype=torch.float64, requires_grad=True)
    table_VD = torch.randn(5, 3, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda query: expected_embedding(query, table_VD), query_BTD)
