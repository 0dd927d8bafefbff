"""Norm, causal self-attention and sum of a Transformer block as one node of the graph, with gradients written out.

    x + W_out·mix(softmax(q·k), v), with q, k, v = W_in·norm(x), queries and keys rotated

Queries are processed in blocks, each with the keys up to its end, so that little is computed for positions that a query
does not see. The weights of attention are kept for the backward pass, which bounds the length of a row.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from chainrule.engines.fused import kernels
from chainrule.layers.fused.parts import add_product, normalise, normalise_backward

LONGEST = 512
"""Positions of a row up to which its weights of attention are kept: 512 take less memory than the other activations."""

BLOCK = 64
"""Queries of a block."""


class Heads(NamedTuple):
    """How attention divides and rotates what it reads."""

    rows: int
    heads: int
    scale: float
    cos_TE: Tensor  # of rotary positions; empty: no rotation
    sin_TE: Tensor


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
        B, H = how.rows, how.heads
        T, E = len(stream_ND) // B, len(into_XD) // (3 * H)
        normed_ND, mean_N, factor_N = normalise(stream_ND, norm_D, eps)
        projected_NX = torch.mm(normed_ND, into_XD.t())
        query_BHTE, value_BHTE = stream_ND.new_empty(B, H, T, E), stream_ND.new_empty(B, H, T, E)
        key_BHET = stream_ND.new_empty(B, H, E, T)
        parts = query_BHTE.numpy(), key_BHET.numpy(), value_BHTE.numpy()
        kernels.split_heads(projected_NX.numpy(), how.cos_TE.numpy(), how.sin_TE.numpy(), how.scale, *parts)
        mixed_NX = stream_ND.new_empty(B * T, H * E)
        mixed_BTHE, weights = mixed_NX.view(B, T, H, E), []
        for begin, end in _blocks(T):
            weights_BHQL = _product(query_BHTE[:, :, begin:end], key_BHET[..., :end])
            kernels.causal_softmax(weights_BHQL.numpy(), begin)
            weights.append(weights_BHQL)
            used_BHQL = _kept(weights_BHQL, kept_BHTT, begin, end)
            mixed_BTHE[:, begin:end] = _product(used_BHQL, value_BHTE[:, :, :end]).transpose(1, 2)
        ctx.save_for_backward(
            stream_ND, norm_D, into_XD, out_DX, normed_ND, mean_N, factor_N, query_BHTE, key_BHET, value_BHTE,
            mixed_NX, kept_BHTT, kept_ND, *weights,
        )  # fmt: skip
        ctx.how = how
        return add_product(stream_ND, mixed_NX, out_DX, kept_ND)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_ND: Tensor) -> tuple[Tensor | None, ...]:
        (stream_ND, norm_D, into_XD, out_DX, normed_ND, mean_N, factor_N, query_BHTE, key_BHET, value_BHTE,
         mixed_NX, kept_BHTT, kept_ND, *weights) = ctx.saved_tensors  # fmt: skip
        grad_ND, how = grad_ND.contiguous(), ctx.how
        B, H, T, E = query_BHTE.shape
        added_ND = grad_ND if kept_ND is None else grad_ND * kept_ND
        out_grad_DX = torch.mm(added_ND.t(), mixed_NX)
        mixed_BHTE = torch.mm(added_ND, out_DX).view(B, T, H, E).transpose(1, 2).contiguous()
        grads = _backward_of_mixing(mixed_BHTE, query_BHTE, key_BHET, value_BHTE, weights, kept_BHTT)
        projected_NX = torch.empty(B * T, 3 * H * E)
        tables = how.cos_TE.numpy(), how.sin_TE.numpy()
        kernels.join_heads(*(part.numpy() for part in grads), *tables, how.scale, projected_NX.numpy())
        into_grad_XD = torch.mm(projected_NX.t(), normed_ND)
        stream_grad_ND = torch.mm(projected_NX, into_XD)
        norm_grad_D = normalise_backward(stream_ND, norm_D, mean_N, factor_N, stream_grad_ND, grad_ND)
        return stream_grad_ND, norm_grad_D, into_grad_XD, out_grad_DX, None, None, None, None


def _backward_of_mixing(
    mixed_BHTE: Tensor,
    query_BHTE: Tensor,
    key_BHET: Tensor,
    value_BHTE: Tensor,
    weights: list[Tensor],
    kept_BHTT: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of queries, keys and values, BHTE each, given that of the mixed values."""
    query_grad_BHTE, key_grad_BHTE, value_grad_BHTE = (torch.zeros_like(query_BHTE) for _ in range(3))
    for (begin, end), weights_BHQL in zip(_blocks(query_BHTE.shape[2]), weights, strict=True):
        mixed_BHQE = mixed_BHTE[:, :, begin:end]
        used_BHQL = _kept(weights_BHQL, kept_BHTT, begin, end)
        value_grad_BHTE[:, :, :end] += _product(used_BHQL.transpose(2, 3), mixed_BHQE)
        grad_BHQL = _product(mixed_BHQE, value_BHTE[:, :, :end].transpose(2, 3))
        grad_BHQL = _kept(grad_BHQL, kept_BHTT, begin, end)
        kernels.causal_softmax_backward(weights_BHQL.numpy(), grad_BHQL.numpy(), begin)
        query_grad_BHTE[:, :, begin:end] = _product(grad_BHQL, key_BHET[..., :end].transpose(2, 3))
        key_grad_BHTE[:, :, :end] += _product(grad_BHQL.transpose(2, 3), query_BHTE[:, :, begin:end])
    return query_grad_BHTE, key_grad_BHTE, value_grad_BHTE


def _blocks(length: int) -> list[tuple[int, int]]:
    return [(begin, min(begin + BLOCK, length)) for begin in range(0, length, BLOCK)]


def _product(left: Tensor, right: Tensor) -> Tensor:
    """The products of the matrices of each row and head."""
    product = torch.bmm(left.flatten(0, 1), right.flatten(0, 1))
    return product.view(*left.shape[:2], *product.shape[1:])


def _kept(weights_BHQL: Tensor, kept_BHTT: Tensor | None, begin: int, end: int) -> Tensor:
    return weights_BHQL if kept_BHTT is None else weights_BHQL * kept_BHTT[:, :, begin:end, :end]
