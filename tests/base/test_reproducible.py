"""Reproducible arithmetic: accurate functions, and the same bits whatever vector instructions the CPU has."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from chainrule.base.kernels import kernel_supports
from chainrule.base.reproducible import kernels
from chainrule.base.reproducible.mode import reproducible
from chainrule.errors import ConfigError

WIDE = np.concatenate([np.linspace(-40, 40, 4001), np.array([0.0, 1e-9, -1e-9, 3e-4, 700.0, -700.0, -745.0])])
POSITIVE = np.exp(np.linspace(-300, 300, 4001))


@pytest.mark.parametrize(
    ("number", "reference", "values"),
    [
        (kernels.EXP, math.exp, WIDE),
        (kernels.LOG, math.log, POSITIVE),
        (kernels.TANH, math.tanh, WIDE),
        (kernels.SIGMOID, lambda x: 1 / (1 + math.exp(-x)), WIDE[WIDE > -600]),
        (kernels.ERF, math.erf, WIDE),
        (kernels.EXPM1, math.expm1, WIDE),
        (kernels.LOG1P, math.log1p, POSITIVE[POSITIVE < 1e12]),
    ],
)
def test_functions_agree_with_the_math_library(number: int, reference: object, values: np.ndarray) -> None:
    results = np.empty_like(values)
    kernels.apply(number, values, results)
    expected = np.array([reference(float(x)) for x in values])  # type: ignore[operator]
    np.testing.assert_allclose(results, expected, rtol=3e-11, atol=5e-324)


def test_sine_and_cosine_agree_with_the_math_library() -> None:
    angles = np.linspace(-5000, 5000, 20001)
    for number, reference in ((kernels.SIN, np.sin), (kernels.COS, np.cos)):
        results = np.empty_like(angles)
        kernels.apply(number, angles, results)
        np.testing.assert_allclose(results, reference(angles), rtol=0, atol=1e-12)


def test_limits_of_functions() -> None:
    values = torch.tensor([math.inf, -math.inf, math.nan, 0.0])
    with reproducible():
        assert values.exp()[:2].tolist() == [math.inf, 0.0]
        assert values.log()[[0, 3]].tolist() == [math.inf, -math.inf]
        assert values.exp()[2].isnan()
        assert values.tanh()[:2].tolist() == [1.0, -1.0]
        masked = torch.tensor([[-math.inf, 0.0], [-math.inf, -math.inf]])
        assert masked.logsumexp(1).tolist() == [0.0, -math.inf]
        assert masked[:1].softmax(1).tolist() == [[0.0, 1.0]]


def test_sums_have_one_order() -> None:
    values = torch.randn(3, 1000, generator=torch.Generator().manual_seed(0))
    totals = []
    for row in values.tolist():
        total = 0.0
        for value in row:
            total += value
        totals.append(total)
    with reproducible():
        assert values.sum(1).tolist() == torch.tensor(totals).tolist()
        assert torch.equal(values.cumsum(1)[:, -1], values.sum(1))


def test_products_round_every_step() -> None:
    """No fused multiply-add, and one order of additions."""
    left, right = torch.randn(4, 30), torch.randn(30, 5)
    expected = np.zeros((4, 5), np.float32)
    for k in range(30):
        expected += (left[:, k : k + 1] * right[k]).numpy()
    with reproducible():
        assert np.array_equal((left @ right).numpy(), expected)


class Everything(nn.Module):
    """Many operations in one network."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(8, 8), nn.LayerNorm(8)
        self.convolution = nn.Conv1d(8, 8, 3, padding=1, dilation=1, groups=2)

    def forward(self, values_BTD: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.linear(values_BTD)) / 4
        x = x + self.convolution(x.transpose(1, 2)).transpose(1, 2)
        heads = x.unflatten(2, (2, 4)).transpose(1, 2)
        x = x + functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True).transpose(1, 2).flatten(2)
        x = torch.lerp(functional.gelu(x), functional.gelu(x, approximate="tanh"), 0.3)
        x = torch.addcmul(functional.silu(x), x, x, value=0.5) + functional.elu(x) + functional.softplus(x)
        x = torch.logaddexp(x, functional.logsigmoid(x)) + x.pow(2) - functional.glu(torch.cat([x, x], 2))
        x = torch.baddbmm(x, x @ x.transpose(1, 2), x, alpha=0.01).add_(x, alpha=0.25)
        x = x - x.mean((1, 2), keepdim=True)
        return torch.log_softmax(x[0].scatter_add(1, torch.arange(8).expand(5, 8) // 2, x[1]), -1)


def test_a_network_gives_the_numbers_of_torch_up_to_rounding() -> None:
    torch.manual_seed(1)
    network, values = Everything(), torch.randn(2, 5, 8)
    with torch.inference_mode():
        expected = network(values)
        with reproducible(network):
            found = network(values)
            again = network(values)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert torch.equal(found, again)
    assert not torch.equal(found, expected)  # else the mode would do nothing


def test_kernels_are_off_inside_and_on_again_outside() -> None:
    number = torch.zeros(1)
    with reproducible():
        assert not kernel_supports(number, torch.float32)
    assert kernel_supports(number, torch.float32)


def test_an_operation_without_a_reproducible_form_is_an_error() -> None:
    with (
        reproducible(),
        pytest.raises(
            ConfigError, match="the operation digamma of this model has no reproducible form; leave --portab"
        ),
    ):
        torch.digamma(torch.ones(2))
    with reproducible(strict=False):
        assert torch.digamma(torch.ones(2)).shape == (2,)
