"""Norm, causal self-attention and sum of a Transformer block as one node of the graph, with gradients written out.

    x + W_out·mix(softmax(q·k), v), with q, k, v = W_in·norm(x), queries and keys rotated

Nothing of the size of the weights of attention is kept, unless they have dropout, whose mask is.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from chainrule.engines.fused.attention import attend, attend_backward, buffers
from chainrule.layers.fused.parts import add_product, normalise, normalise_backward, product

NO_MASK = np.empty((0, 0, 0, 0), np.float32)


class Heads(NamedTuple):
    """How attention divides and rotates what it reads."""

    rows: int
    heads: int
    scale: float
    cos_TE: Tensor  # of rotary positions; empty: no rotation
    sin_TE: Tensor

    def arguments(self) -> tuple[Any, ...]:
        """The same for a kernel."""
        return self.rows, self.heads, np.float32(self.scale), self.cos_TE.numpy(), self.sin_TE.numpy()

    def buffers(self, projected_NX: Tensor) -> tuple[np.ndarray[Any, Any], ...]:
        return buffers(len(projected_NX) // self.rows, projected_NX.shape[1] // (3 * self.heads))


def attend_fused(
    projected_NX: Tensor, how: Heads, kept_BHTT: Tensor | None = None, keep: int = 0
) -> tuple[Tensor, Tensor]:
    """The mixed values of the positions of each row after the first `keep`, NX, and log Σ exp of their scores, BHT."""
    N, width = projected_NX.shape
    mixed_NX = projected_NX.new_empty(N - how.rows * keep, width // 3)
    log_sum_BHT = projected_NX.new_empty(how.rows, how.heads, N // how.rows)
    mask, room = NO_MASK if kept_BHTT is None else kept_BHTT.numpy(), how.buffers(projected_NX)
    attend(projected_NX.numpy(), *how.arguments(), mask, keep, room, mixed_NX.numpy(), log_sum_BHT.numpy())
    return mixed_NX, log_sum_BHT


class FusedAttention(torch.autograd.Function):
    """The masks of dropout, of the weights and of what is added to the stream, contain 0 and 1 / (1 - rate)."""

    @staticmethod
    def forward(
        ctx: Any,
        stream_ND: Tensor,
        norm_D: Tensor,
        into_XD: Tensor,
        out_DX: Tensor,
        eps: float,
        how: Heads,
        kept_BHTT: Tensor | None,
        kept_ND: Tensor | None,
    ) -> Tensor:
        normed_ND, mean_N, factor_N = normalise(stream_ND, norm_D, eps)
        projected_NX = product(normed_ND, into_XD.t())
        mixed_NX, log_sum_BHT = attend_fused(projected_NX, how, kept_BHTT)
        ctx.save_for_backward(
            stream_ND, norm_D, into_XD, out_DX, normed_ND, mean_N, factor_N, projected_NX, mixed_NX, log_sum_BHT,
            kept_BHTT, kept_ND,
        )  # fmt: skip
        ctx.how = how
        return add_product(stream_ND, mixed_NX, out_DX, kept_ND)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_ND: Tensor) -> tuple[Tensor | None, ...]:
        (stream_ND, norm_D, into_XD, out_DX, normed_ND, mean_N, factor_N, projected_NX, mixed_NX, log_sum_BHT,
         kept_BHTT, kept_ND) = ctx.saved_tensors  # fmt: skip
        grad_ND, how = grad_ND.contiguous(), ctx.how
        added_ND = grad_ND if kept_ND is None else grad_ND * kept_ND
        out_grad_DX = product(added_ND.t(), mixed_NX)
        mixed_grad_NX = product(added_ND, out_DX)
        projected_grad_NX = torch.empty_like(projected_NX)
        arrays = mixed_NX.numpy(), log_sum_BHT.numpy(), mixed_grad_NX.numpy()
        mask, room = NO_MASK if kept_BHTT is None else kept_BHTT.numpy(), how.buffers(projected_NX)
        attend_backward(projected_NX.numpy(), *how.arguments(), mask, *arrays, room, projected_grad_NX.numpy())
        into_grad_XD = product(projected_grad_NX.t(), normed_ND)
        stream_grad_ND = product(projected_grad_NX, into_XD)
        norm_grad_D = normalise_backward(stream_ND, norm_D, mean_N, factor_N, stream_grad_ND, grad_ND)
        return stream_grad_ND, norm_grad_D, into_grad_XD, out_grad_DX, None, None, None, None
