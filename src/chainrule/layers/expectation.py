"""The expected embedding under a distribution over the vocabulary, Σ_v softmax(E q)_v E_v, with E the embedding table.

The table is a constant here: it is trained where words are read and where they are predicted, and the query is trained
through it. That takes two products of positions by vocabulary in each direction, fewer than a softmax layer needs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

CHUNK_ENTRIES = 2**20
"""Number of scores processed at once, 4 MB: they stay in the CPU cache between passes."""


class _Expectation(torch.autograd.Function):
    """Saves exp(score - max) for backward; the normaliser is applied to the narrow side of each product."""

    @staticmethod
    def forward(ctx: Any, query_ND: Tensor, table_VD: Tensor) -> Tensor:
        rows = max(1, CHUNK_ENTRIES // len(table_VD))
        weights_NV = query_ND.new_empty(len(query_ND), len(table_VD))
        expected_ND, total_N1 = torch.empty_like(query_ND), query_ND.new_empty(len(query_ND), 1)
        for part in _parts(len(query_ND), rows):
            weights_MV = torch.mm(query_ND[part], table_VD.mT, out=weights_NV[part])
            weights_MV.sub_(weights_MV.amax(1, keepdim=True)).exp_()
            torch.sum(weights_MV, 1, keepdim=True, out=total_N1[part])
            torch.mm(weights_MV, table_VD, out=expected_ND[part])
        expected_ND.div_(total_N1)
        ctx.save_for_backward(weights_NV, total_N1, table_VD, expected_ND)
        ctx.rows = rows
        return expected_ND

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_ND: Tensor) -> tuple[Tensor, None]:
        """d/dq = Σ_v p_v (g·E_v - g·Σ_u p_u E_u) E_v."""
        weights_NV, total_N1, table_VD, expected_ND = ctx.saved_tensors
        grad_ND = grad_ND / total_N1
        mean_N1 = (grad_ND * expected_ND).sum(1, keepdim=True)
        into_query_ND, scores_MV = torch.empty_like(grad_ND), weights_NV.new_empty(ctx.rows, len(table_VD))
        for part in _parts(len(grad_ND), ctx.rows):
            scores = torch.mm(grad_ND[part], table_VD.mT, out=scores_MV[: part.stop - part.start])
            scores.sub_(mean_N1[part]).mul_(weights_NV[part])
            torch.mm(scores, table_VD, out=into_query_ND[part])
        return into_query_ND, None


def _parts(count: int, size: int) -> list[slice]:
    return [slice(begin, min(begin + size, count)) for begin in range(0, count, size)]


def expected_embedding(query_BTD: Tensor, table_VD: Tensor) -> Tensor:
    """Σ_v softmax(table · query)_v table_v for each position -> BTD; no gradient reaches the table."""
    with torch.autocast(query_BTD.device.type, enabled=False):
        query_ND = query_BTD.flatten(0, -2).to(table_VD.dtype)
        expected_ND: Tensor = _Expectation.apply(query_ND, table_VD.detach())
    return expected_ND.view(query_BTD.shape)
