"""Norm, feed-forward layer and sum of a Transformer block as one node of the graph, with gradients written out.

    x + W_narrow·max(W_widen·norm(x), 0)²

The squares replace what is squared: the derivative is twice their root, which is exact.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from chainrule.engines.fused.products import SLOPE, SQUARE
from chainrule.layers.fused.parts import add_product, normalise, normalise_backward, product


class FusedFeedforward(torch.autograd.Function):
    """`kept_ND` is the mask of the dropout of what is added to the stream; it contains 0 and 1 / (1 - rate)."""

    @staticmethod
    def forward(
        ctx: Any,
        stream_ND: Tensor,
        norm_D: Tensor,
        widen_FD: Tensor,
        narrow_DF: Tensor,
        eps: float,
        kept_ND: Tensor | None,
    ) -> Tensor:
        normed_ND, mean_N, factor_N = normalise(stream_ND, norm_D, eps)
        inner_NF = product(normed_ND, widen_FD.t(), finish=SQUARE)
        ctx.save_for_backward(stream_ND, norm_D, widen_FD, narrow_DF, normed_ND, mean_N, factor_N, inner_NF, kept_ND)
        return add_product(stream_ND, inner_NF, narrow_DF, kept_ND)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_ND: Tensor) -> tuple[Tensor | None, ...]:
        stream_ND, norm_D, widen_FD, narrow_DF, normed_ND, mean_N, factor_N, inner_NF, kept_ND = ctx.saved_tensors
        grad_ND = grad_ND.contiguous()
        added_ND = grad_ND if kept_ND is None else grad_ND * kept_ND
        narrow_grad_DF = product(added_ND.t(), inner_NF)
        inner_grad_NF = product(added_ND, narrow_DF, finish=SLOPE, squares_NX=inner_NF)
        widen_grad_FD = product(inner_grad_NF.t(), normed_ND)
        stream_grad_ND = product(inner_grad_NF, widen_FD)
        norm_grad_D = normalise_backward(stream_ND, norm_D, mean_N, factor_N, stream_grad_ND, grad_ND)
        return stream_grad_ND, norm_grad_D, widen_grad_FD, narrow_grad_DF, None, None
