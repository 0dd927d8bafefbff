"""Linear layers and softmax of one core against torch: values, gradients, and when torch computes them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from chainrule.base.devices import threads
from chainrule.base.kernels import kernels_suspended
from chainrule.layers.fused import linear as fused
from chainrule.layers.fused.linear import FEWEST_ROWS, linear
from chainrule.layers.fused.softmax import exponentiate, multiply
from chainrule.layers.outputs.fused import linear_cross_entropy


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with threads(1):
        yield


def gradients(result: Tensor, *parameters: Tensor | None) -> list[Tensor]:
    weights = torch.randn(result.shape, generator=torch.Generator().manual_seed(2))
    return list(torch.autograd.grad((result * weights).sum(), [one for one in parameters if one is not None]))


@pytest.mark.parametrize("shape", [(16, 5), (17, 40), (3, 30, 33), (100, 130)])
@pytest.mark.parametrize("outputs", [1, 65, 200])
@pytest.mark.parametrize("bias", [False, True])
def test_equals_the_function_of_torch(shape: tuple[int, ...], outputs: int, bias: bool) -> None:
    torch.manual_seed(1)
    inputs, weight_XK = torch.randn(shape, requires_grad=True), torch.randn(outputs, shape[-1], requires_grad=True)
    bias_X = torch.randn(outputs, requires_grad=True) if bias else None
    ours, theirs = linear(inputs, weight_XK, bias_X), functional.linear(inputs, weight_XK, bias_X)
    assert "_Linear" in type(ours.grad_fn.next_functions[0][0]).__name__ + type(ours.grad_fn).__name__  # type: ignore[union-attr]
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-4)
    pairs = zip(gradients(ours, inputs, weight_XK, bias_X), gradients(theirs, inputs, weight_XK, bias_X), strict=True)
    for own, other in pairs:
        torch.testing.assert_close(own, other, rtol=1e-5, atol=2e-4)


def test_inputs_and_gradients_in_any_layout() -> None:
    inputs_TBK, weight_XK = torch.randn(20, 6, 24).transpose(0, 1), torch.randn(30, 24, requires_grad=True)
    ours, theirs = linear(inputs_TBK, weight_XK), functional.linear(inputs_TBK, weight_XK)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-4)
    own, other = (torch.autograd.grad(one.transpose(0, 1).sum(), weight_XK)[0] for one in (ours, theirs))
    torch.testing.assert_close(own, other, rtol=1e-5, atol=2e-4)


def test_a_row_has_the_same_numbers_beside_any_others() -> None:
    inputs_NK, weight_XK = torch.randn(70, 96), torch.randn(100, 96)
    whole_NX = linear(inputs_NK, weight_XK)
    assert torch.equal(linear(inputs_NK[30 : 30 + FEWEST_ROWS], weight_XK), whole_NX[30 : 30 + FEWEST_ROWS])


@pytest.mark.parametrize("case", ["few rows", "two threads", "double", "suspended"])
def test_torch_computes_everything_else(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **named: object) -> Tensor:
        raise AssertionError("the product of the project was called")

    monkeypatch.setattr(fused, "product", refuse)
    dtype = torch.float64 if case == "double" else torch.float32
    inputs_NK, weight_XK = torch.randn(FEWEST_ROWS, 8, dtype=dtype), torch.randn(9, 8, dtype=dtype)
    if case == "suspended":
        with kernels_suspended():
            assert torch.equal(linear(inputs_NK, weight_XK), functional.linear(inputs_NK, weight_XK))
        return
    rows = FEWEST_ROWS - 1 if case == "few rows" else FEWEST_ROWS
    with threads(2 if case == "two threads" else 1):
        assert torch.equal(linear(inputs_NK[:rows], weight_XK), functional.linear(inputs_NK[:rows], weight_XK))
    if case == "few rows":
        with pytest.raises(AssertionError, match="was called"):
            linear(inputs_NK, weight_XK)


@pytest.mark.parametrize("words", [7, 64, 1003])
@pytest.mark.parametrize("bias", [False, True])
def test_exponentials_of_scores(words: int, bias: bool) -> None:
    scores_MV, bias_V = 9 * torch.randn(13, words), torch.randn(words) if bias else None
    total_MV = scores_MV.double() + (0 if bias_V is None else bias_V)
    highest_M1, sums_M1 = exponentiate(scores_MV, bias_V)
    expected_M1 = total_MV.amax(1, keepdim=True)
    torch.testing.assert_close(highest_M1.double(), expected_M1, rtol=1e-6, atol=1e-5)
    torch.testing.assert_close(scores_MV.double(), (total_MV - expected_M1).exp(), rtol=2e-5, atol=1e-12)
    torch.testing.assert_close(sums_M1.double(), (total_MV - expected_M1).exp().sum(1, keepdim=True), rtol=2e-5, atol=0)


def test_products_are_added() -> None:
    left_KN, right_KX, out_NX = torch.randn(40, 30), torch.randn(40, 70), torch.randn(30, 70)
    expected_NX = out_NX + left_KN.t() @ right_KX
    multiply(left_KN.t(), right_KX, out_NX, add=True)
    torch.testing.assert_close(out_NX, expected_NX, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("offset", [False, True])
def test_the_loss_of_one_core_is_that_of_two(offset: bool) -> None:
    torch.manual_seed(3)
    hidden_ND, weight_VD = torch.randn(300, 40, requires_grad=True), torch.randn(2000, 40, requires_grad=True)
    bias_V, targets_N = torch.randn(2000, requires_grad=True), torch.randint(2000, (300,))
    offset_V = torch.randn(2000) if offset else None
    found = []
    for count in (1, 2):
        with threads(count):
            loss = linear_cross_entropy(hidden_ND, weight_VD, bias_V, targets_N, offset_V=offset_V)
            found.append([loss, *torch.autograd.grad(loss, (hidden_ND, weight_VD, bias_V))])
    for one, two in zip(*found, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-4)
