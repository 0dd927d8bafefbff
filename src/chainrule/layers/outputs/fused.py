"""A linear layer and its cross-entropy as one step that never stores a large table of positions by words.

Work goes in chunks of positions. For each chunk the scores are computed, turned in place into exp(s - max), and used
at once for both gradients, so that backward only multiplies them by what comes from above. Softmax is never formed:
its normaliser is applied to the narrow side of each product, and the targets' part of the gradient is added by row.

Shapes: N positions, C positions of a chunk, D width, V vocabulary.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from chainrule.base.compiling import left_out

STORED_ENTRIES = 2**18
"""Scores up to this many are simply stored: the table is small, and fewer operations count for more."""

CHUNK_ENTRIES = 2**23
"""Scores held at once, 32 MB: enough rows that adding to the gradient of a large vocabulary is not the main cost."""


class Gradients(NamedTuple):
    """Buffers of the gradients that are wanted; None for those that are not."""

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

    The offset never applies to a position's own target. Label smoothing moves that share of the target's mass evenly
    to the whole vocabulary, as torch's cross_entropy does.
    """
    if len(hidden_ND) * len(weight_VD) <= STORED_ENTRIES:
        return _stored(hidden_ND, weight_VD, bias_V, targets_N, weights_N, label_smoothing, offset_V)
    wanted = torch.is_grad_enabled()
    hidden_ND = hidden_ND.to(weight_VD.dtype)
    loss: Tensor = _fused(hidden_ND, weight_VD, bias_V, targets_N, weights_N, label_smoothing, offset_V, wanted)
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
    """The same by torch's own functions, with the whole table of scores."""
    scores_NV = functional.linear(hidden_ND, weight_VD, bias_V).to(weight_VD.dtype)
    if offset_V is not None:
        own_N1 = scores_NV.gather(1, targets_N[:, None])
        scores_NV = (scores_NV + offset_V).scatter(1, targets_N[:, None], own_N1)
    if weights_N is None:
        return functional.cross_entropy(scores_NV, targets_N, reduction="sum", label_smoothing=smoothing)
    loss_N = functional.cross_entropy(scores_NV, targets_N, reduction="none", label_smoothing=smoothing)
    return (loss_N * weights_N).sum()


class LinearCrossEntropy(torch.autograd.Function):
    """`linear_cross_entropy` as a node of the graph whose gradients are ready when the loss is."""

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
        wanted: bool,
    ) -> Tensor:
        with torch.autocast(hidden_ND.device.type, enabled=False):
            weights_N = hidden_ND.new_ones(len(hidden_ND)) if weights_N is None else weights_N.to(hidden_ND.dtype)
            buffers = zip((hidden_ND, weight_VD, bias_V), ctx.needs_input_grad, strict=False)
            grads = Gradients(
                *[None if x is None or not (wanted and need) else torch.zeros_like(x) for x, need in buffers]
            )
            loss = _targets_part(hidden_ND, weight_VD, bias_V, targets_N, weights_N, smoothing, grads)
            loss += _normaliser_part(hidden_ND, weight_VD, bias_V, targets_N, weights_N, offset_V, grads)
        ctx.grads = grads
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        # In place, since a copy of the weight's gradient costs as much as a product; the buffers are then given away.
        grads, ctx.grads = ctx.grads, None
        if grads is None:
            raise RuntimeError("linear_cross_entropy keeps its gradients for one backward pass: compute the loss again")
        return *(None if buffer is None else buffer.mul_(grad) for buffer in grads), None, None, None, None, None


# Gradients that are made in the forward pass are more than a compiler of graphs follows.
_fused = left_out(LinearCrossEntropy.apply)


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
    hit_N, even_N = (1 - smoothing) * weights_N, smoothing * weights_N
    vectors_ND = weight_VD[targets_N]
    scores_N = (hidden_ND * vectors_ND).sum(1)
    if bias_V is not None:
        scores_N += bias_V[targets_N]
    loss = -(hit_N @ scores_N)
    if grads.hidden_ND is not None:
        grads.hidden_ND.addcmul_(vectors_ND, hit_N[:, None], value=-1)
    if grads.weight_VD is not None:
        grads.weight_VD.index_add_(0, targets_N, hidden_ND * hit_N[:, None], alpha=-1)
    if grads.bias_V is not None:
        grads.bias_V.index_add_(0, targets_N, hit_N, alpha=-1)
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
    scores_buffer_CV = hidden_ND.new_empty(min(rows, len(hidden_ND)), len(weight_VD))
    for start in range(0, len(hidden_ND), rows):
        chunk = slice(start, start + rows)
        hidden_CD, targets_C1 = hidden_ND[chunk], targets_N[chunk, None]
        scores_CV = scores_buffer_CV[: len(hidden_CD)]
        torch.mm(hidden_CD, weight_VD.t(), out=scores_CV)
        if bias_V is not None:
            scores_CV += bias_V
        if offset_V is not None:
            own_C1 = scores_CV.gather(1, targets_C1)
            scores_CV.add_(offset_V).scatter_(1, targets_C1, own_C1)
        most_C1 = scores_CV.amax(1, keepdim=True)
        sums_C1 = scores_CV.sub_(most_C1).exp_().sum(1, keepdim=True)
        total += weights_N[chunk] @ (sums_C1.log() + most_C1)[:, 0]
        scale_C1 = weights_N[chunk, None] / sums_C1
        if grads.hidden_ND is not None:
            grads.hidden_ND[chunk] += (scores_CV @ weight_VD).mul_(scale_C1)
        if grads.weight_VD is not None:
            grads.weight_VD.addmm_(scores_CV.t(), hidden_CD * scale_C1)
        if grads.bias_V is not None:
            grads.bias_V.addmv_(scores_CV.t(), scale_C1[:, 0])
    return total
