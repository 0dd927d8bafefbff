"""The expected row of a table under a softmax over the vocabulary, Σ_v p_v E_v with p = softmax(W q + b).

W and b (an output layer) and E (an embedding table) are constants here: they are trained where words are read and where
they are predicted, and the query is trained through them. That takes two products of positions by vocabulary forward
and two backward. The logarithm of the normaliser comes with it, so a cross-entropy on the same distribution costs no
further product: d log Z/dq = Σ_v p_v W_v, which is the expected row itself where W is E.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from chainrule.base.compiling import uncompiled
from chainrule.layers.fused.softmax import exponentiate, multiply

CHUNK_ENTRIES = 2**20
"""Number of scores processed at once, 4 MB: they stay in the CPU cache between passes."""


class _Expectation(torch.autograd.Function):
    """Saves exp(score - max) for backward; the normaliser is applied to the narrow side of each product."""

    @staticmethod
    def forward(
        ctx: Any, query_ND: Tensor, weight_VD: Tensor, bias_V: Tensor | None, table_VE: Tensor
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        ctx.rows, ctx.same = max(1, CHUNK_ENTRIES // len(weight_VD)), weight_VD is table_VE
        weights_NV = query_ND.new_empty(len(query_ND), len(weight_VD))
        expected_NE = query_ND.new_empty(len(query_ND), table_VE.shape[1])
        total_N1, highest_N1 = query_ND.new_empty(len(query_ND), 1), query_ND.new_empty(len(query_ND), 1)
        for part in _parts(len(query_ND), ctx.rows):
            weights_MV = multiply(query_ND[part], weight_VD.mT, weights_NV[part])
            highest_N1[part], total_N1[part] = exponentiate(weights_MV, bias_V)
            multiply(weights_MV, table_VE, expected_NE[part])
        expected_NE.div_(total_N1)
        ctx.save_for_backward(weights_NV, total_N1, weight_VD, table_VE, expected_NE)
        return expected_NE, (total_N1.log() + highest_N1).squeeze(1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_NE: Tensor | None, grad_N: Tensor | None) -> tuple[Tensor | None, None, None, None]:
        """d/dq = Σ_v p_v (g·E_v - g·Σ_u p_u E_u + g_logZ) W_v."""
        weights_NV, total_N1, weight_VD, table_VE, expected_NE = ctx.saved_tensors
        if grad_NE is None and grad_N is None:
            return None, None, None, None
        if grad_NE is None and ctx.same:
            assert grad_N is not None
            return expected_NE * grad_N[:, None], None, None, None
        into_query_ND = weight_VD.new_empty(len(weights_NV), weight_VD.shape[1])
        scores_MV = weights_NV.new_empty(ctx.rows, len(weight_VD))
        shift_N1 = weights_NV.new_zeros(len(weights_NV), 1) if grad_N is None else grad_N[:, None] / total_N1
        if grad_NE is not None:
            grad_NE = grad_NE / total_N1
            shift_N1 = shift_N1 - (grad_NE * expected_NE).sum(1, keepdim=True)
        for part in _parts(len(weights_NV), ctx.rows):
            scores = scores_MV[: part.stop - part.start]
            if grad_NE is None:
                torch.mul(weights_NV[part], shift_N1[part], out=scores)
            else:
                multiply(grad_NE[part], table_VE.mT, scores).add_(shift_N1[part]).mul_(weights_NV[part])
            multiply(scores, weight_VD, into_query_ND[part])
        return into_query_ND, None, None, None


_apply = uncompiled(_Expectation.apply)


def _parts(count: int, size: int) -> list[slice]:
    return [slice(begin, min(begin + size, count)) for begin in range(0, count, size)]


def softmax_expectation(
    query_ND: Tensor, weight_VD: Tensor, bias_V: Tensor | None, table_VE: Tensor
) -> tuple[Tensor, Tensor]:
    """Σ_v p_v table_v as NE, and log Z as N, for p = softmax(weight · query + bias); only the query gets a gradient."""
    same = weight_VD is table_VE
    with torch.autocast(query_ND.device.type, enabled=False):
        weight_VD, bias_V = weight_VD.detach(), None if bias_V is None else bias_V.detach()
        table_VE = weight_VD if same else table_VE.detach()
        expected_NE, log_total_N = _apply(query_ND.to(weight_VD.dtype), weight_VD, bias_V, table_VE)
    return expected_NE, log_total_N
