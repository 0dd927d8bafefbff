"""Linear layers on one core, forward and backward, by products of the project.

A drop-in for torch's function of the same name: with few rows, several threads, other types and devices, it is that.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from chainrule.layers.fused.parts import product, products_support

FEWEST_ROWS = 16
"""Rows below which copying the weights into panels takes longer than faster products save."""


def linear(inputs: Tensor, weight_XK: Tensor, bias_X: Tensor | None = None) -> Tensor:
    """inputs · weightᵀ + bias over the last dimension."""
    few = inputs.numel() < FEWEST_ROWS * weight_XK.shape[1]
    if few or not products_support(inputs, weight_XK) or not weight_XK.is_contiguous():
        return functional.linear(inputs, weight_XK, bias_X)
    rows_NK = inputs.reshape(-1, weight_XK.shape[1])
    out_NX: Tensor = _Linear.apply(rows_NK, weight_XK, bias_X)
    return out_NX.view(*inputs.shape[:-1], -1)


class Linear(nn.Linear):
    """nn.Linear whose products are those of the project where they are faster."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Vectors in any shape, of which the last dimension is theirs."""
        return linear(inputs, self.weight, self.bias)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs_NK: Tensor, weight_XK: Tensor, bias_X: Tensor | None) -> Tensor:
        ctx.save_for_backward(inputs_NK, weight_XK)
        out_NX = product(inputs_NK, weight_XK.t())
        return out_NX if bias_X is None else out_NX.add_(bias_X)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_NX: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        (inputs_NK, weight_XK), (for_inputs, for_weight, for_bias) = ctx.saved_tensors, ctx.needs_input_grad
        grad_NX = grad_NX.contiguous()
        return (
            product(grad_NX, weight_XK) if for_inputs else None,
            product(grad_NX.t(), inputs_NK) if for_weight else None,
            grad_NX.sum(0) if for_bias else None,
        )
