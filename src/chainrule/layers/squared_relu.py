"""max(x, 0)², with a backward pass of two operations where torch's own takes five."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class SquaredRelu(torch.autograd.Function):
    """The derivative is 2·max(x, 0), so only that maximum is kept."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor) -> Tensor:
        positive = inputs.relu()
        ctx.save_for_backward(positive)
        return positive * positive

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (positive,) = ctx.saved_tensors
        product: Tensor = grad * positive
        return product.mul_(2)


def squared_relu(inputs: Tensor) -> Tensor:
    """max(x, 0)² of every entry."""
    if torch.compiler.is_compiling() or not inputs.requires_grad:
        return inputs.relu().square()
    squared: Tensor = SquaredRelu.apply(inputs)
    return squared
