"""A linear layer and its cross-entropy as one operation that never stores a large table of positions by words.

Positions are processed in chunks of M. For each chunk the scores are computed, turned in place into exp(s - max), and
used immediately for both gradients, so that backward only multiplies these by the incoming gradient. The softmax is
never stored: its normaliser is applied to the narrow side of each product, and the targets' part of the gradient is
added row by row.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from chainrule.base.compiling import uncompiled
from chainrule.layers.fused.softmax import exponentiate, multiply

STORED_ENTRIES = 2**18
"""Number of scores up to which the table is stored: it is small, and fewer operations matter more."""

CHUNK_ENTRIES = 2**23
"""Number of scores held at once, 32 MB: enough rows that adding to the gradient of a large vocabulary stays cheap."""


class Gradients(NamedTuple):
    """Buffers of the gradients; None where no gradient is needed."""

    hidden_ND: Tensor | None
    weight_VD: Tensor | None
    bias_V: Tensor | None


def linear_cross_entropy(
    hidden_ND: Tensor,
    weight_VD: Tensor,
    bias_V: Tensor | None,
    targets_N: Tensor,
    weights_N: Tensor | None = None,
    *,
    label_smoothing: float = 0.0,
    offset_V: Tensor | None = None,
) -> Tensor:
    """Σ_n weights_n · (log Σ_v exp(s_nv + offset_v) - s_n,target), with s = hidden·weightᵀ + bias, as a scalar.

    The offset does not apply to the target of the position itself. Label smoothing spreads that share of the target's
    mass evenly over the whole vocabulary, as torch's cross_entropy does.
    """
    if len(hidden_ND) * len(weight_VD) <= STORED_ENTRIES:
        return _stored(hidden_ND, weight_VD, bias_V, targets_N, weights_N, label_smoothing, offset_V)
    needs_gradient = torch.is_grad_enabled()
    hidden_ND = hidden_ND.to(weight_VD.dtype)
    loss: Tensor = _fused(hidden_ND, weight_VD, bias_V, targets_N, weights_N, label_smoothing, offset_V, needs_gradient)
    return loss


def _stored(
    hidden_ND: Tensor,
    weight_VD: Tensor,
    bias_V: Tensor | None,
    targets_N: Tensor,
    weights_N: Tensor | None,
    smoothing: float,
    offset_V: Tensor | None,
) -> Tensor:
    """The same by the functions of torch, with the whole table of scores."""
    scores_NV = functional.linear(hidden_ND, weight_VD, bias_V).to(weight_VD.dtype)
    if offset_V is not None:
        target_score_N1 = scores_NV.gather(1, targets_N[:, None])
        scores_NV = (scores_NV + offset_V).scatter(1, targets_N[:, None], target_score_N1)
    if weights_N is None:
        return functional.cross_entropy(scores_NV, targets_N, reduction="sum", label_smoothing=smoothing)
    loss_N = functional.cross_entropy(scores_NV, targets_N, reduction="none", label_smoothing=smoothing)
    return (loss_N * weights_N).sum()


class LinearCrossEntropy(torch.autograd.Function):
    """`linear_cross_entropy` as a node of the graph that computes its gradients together with the loss."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor | None,
        targets_N: Tensor,
        weights_N: Tensor | None,
        smoothing: float,
        offset_V: Tensor | None,
        needs_gradient: bool,
    ) -> Tensor:
        with torch.autocast(hidden_ND.device.type, enabled=False):
            weights_N = hidden_ND.new_ones(len(hidden_ND)) if weights_N is None else weights_N.to(hidden_ND.dtype)
            buffers = zip((hidden_ND, weight_VD, bias_V), ctx.needs_input_grad, strict=False)
            grads = Gradients(
                *[None if x is None or not (needs_gradient and need) else torch.zeros_like(x) for x, need in buffers]
            )
            loss = _targets_part(hidden_ND, weight_VD, bias_V, targets_N, weights_N, smoothing, grads)
            loss += _normaliser_part(hidden_ND, weight_VD, bias_V, targets_N, weights_N, offset_V, grads)
        ctx.grads = grads
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        # In place, since copying the gradient of the weight costs as much as a product; the buffers are not kept.
        grads, ctx.grads = ctx.grads, None
        if grads is None:
            raise RuntimeError("linear_cross_entropy supports one backward pass per loss: compute the loss again")
        return *(None if buffer is None else buffer.mul_(grad) for buffer in grads), None, None, None, None, None


# torch.compile does not support gradients that are computed in the forward pass.
_fused = uncompiled(LinearCrossEntropy.apply)


def _targets_part(
    hidden_ND: Tensor,
    weight_VD: Tensor,
    bias_V: Tensor | None,
    targets_N: Tensor,
    weights_N: Tensor,
    smoothing: float,
    grads: Gradients,
) -> Tensor:
    """-Σ w·((1 - ε)·s_target + ε·mean_v s_v), the mean by linearity, with its gradients."""
    target_N, even_N = (1 - smoothing) * weights_N, smoothing * weights_N
    vectors_ND = weight_VD[targets_N]
    scores_N = (hidden_ND * vectors_ND).sum(1)
    if bias_V is not None:
        scores_N += bias_V[targets_N]
    loss = -(target_N @ scores_N)
    if grads.hidden_ND is not None:
        grads.hidden_ND.addcmul_(vectors_ND, target_N[:, None], value=-1)
    if grads.weight_VD is not None:
        grads.weight_VD.index_add_(0, targets_N, hidden_ND * target_N[:, None], alpha=-1)
    if grads.bias_V is not None:
        grads.bias_V.index_add_(0, targets_N, target_N, alpha=-1)
    if smoothing:
        mean_D, size = weight_VD.mean(0), len(weight_VD)
        loss -= even_N @ (hidden_ND @ mean_D + (0 if bias_V is None else bias_V.mean()))
        if grads.hidden_ND is not None:
            grads.hidden_ND.addr_(even_N, mean_D, alpha=-1)
        if grads.weight_VD is not None:
            grads.weight_VD.sub_(even_N @ hidden_ND / size)
        if grads.bias_V is not None:
            grads.bias_V.sub_(even_N.sum() / size)
    return loss


def _normaliser_part(
    hidden_ND: Tensor,
    weight_VD: Tensor,
    bias_V: Tensor | None,
    targets_N: Tensor,
    weights_N: Tensor,
    offset_V: Tensor | None,
    grads: Gradients,
) -> Tensor:
    """Σ w·log Σ_v exp(s_v + offset_v), with its gradients, chunk by chunk."""
    total = hidden_ND.new_zeros(())
    rows = max(1, CHUNK_ENTRIES // len(weight_VD))
    scores_buffer_MV = hidden_ND.new_empty(min(rows, len(hidden_ND)), len(weight_VD))
    for start in range(0, len(hidden_ND), rows):
        chunk = slice(start, start + rows)
        hidden_MD, targets_M1 = hidden_ND[chunk], targets_N[chunk, None]
        scores_MV = scores_buffer_MV[: len(hidden_MD)]
        multiply(hidden_MD, weight_VD.t(), scores_MV)
        if offset_V is None:
            max_M1, sums_M1 = exponentiate(scores_MV, bias_V)
        else:
            if bias_V is not None:
                scores_MV += bias_V
            target_score_M1 = scores_MV.gather(1, targets_M1)
            scores_MV.add_(offset_V).scatter_(1, targets_M1, target_score_M1)
            max_M1, sums_M1 = exponentiate(scores_MV, None)
        total += weights_N[chunk] @ (sums_M1.log() + max_M1)[:, 0]
        scale_M1 = weights_N[chunk, None] / sums_M1
        if grads.hidden_ND is not None:
            grads.hidden_ND[chunk] += multiply(scores_MV, weight_VD, torch.empty_like(hidden_MD)).mul_(scale_M1)
        if grads.weight_VD is not None:
            multiply(scores_MV.t(), hidden_MD * scale_M1, grads.weight_VD, add=True)
        if grads.bias_V is not None:
            grads.bias_V.addmv_(scores_MV.t(), scale_M1[:, 0])
    return total
