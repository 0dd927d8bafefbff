"""Scaled dot-product attention, softmax(q·k / √E) v, by the kernel that is fastest for the shape.

Torch's fused kernel is made for many queries. A beam has a handful per source; for those, two plain products and a
softmax take a third of its time on a CPU. A single query, and everything that needs a gradient, use the fused kernel.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional as F

from chainrule.base.shares import draw_rows, is_shared

FEW_QUERIES = 16
"""Queries per row up to which plain products are faster."""


def dot_product_attention(
    query_AHQE: Tensor,
    key_AHNE: Tensor,
    value_AHNE: Tensor,
    mask: Tensor | None = None,
    dropout: float = 0.0,
    *,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """The weighted values of each query -> AHQE. A boolean mask marks visible keys, any other is added to the scores.

    `causal`: the queries are those of the last Q of N positions, and each sees the positions up to its own.
    """
    Q, N = query_AHQE.shape[2], key_AHNE.shape[2]
    later = causal and Q < N
    few = 1 < Q <= FEW_QUERIES and query_AHQE.device.type == "cpu"
    if few and (later or not causal) and not torch.is_grad_enabled():
        return _plain_attention(query_AHQE, key_AHNE, value_AHNE, mask, scale, causal)
    if later:
        mask, causal = causal_mask(Q, N - Q, query_AHQE.device), False
    if dropout and is_shared():
        return _dropped_attention(query_AHQE, key_AHNE, value_AHNE, mask, dropout, causal=causal, scale=scale)
    return F.scaled_dot_product_attention(query_AHQE, key_AHNE, value_AHNE, mask, dropout, causal, scale=scale)


def _plain_attention(
    query_AHQE: Tensor, key_AHNE: Tensor, value_AHNE: Tensor, mask: Tensor | None, scale: float | None, causal: bool
) -> Tensor:
    """The formula as matrix products and a softmax."""
    scores_AHQN = query_AHQE @ key_AHNE.transpose(2, 3)
    scores_AHQN *= query_AHQE.shape[3] ** -0.5 if scale is None else scale
    if causal:
        new = query_AHQE.shape[2]
        scores_AHQN[..., -new:].masked_fill_(_future_mask(new), -torch.inf)
    elif mask is not None:
        boolean = mask.dtype == torch.bool
        scores_AHQN = scores_AHQN.masked_fill_(~mask, -torch.inf) if boolean else scores_AHQN.add_(mask)
    return scores_AHQN.softmax(-1) @ value_AHNE


def _dropped_attention(
    query_AHQE: Tensor,
    key_AHNE: Tensor,
    value_AHNE: Tensor,
    mask: Tensor | None,
    dropout: float,
    *,
    causal: bool,
    scale: float | None,
) -> Tensor:
    """The formula with dropout of the weights, drawn for the whole batch of which this process has a share."""
    scores_AHQN = query_AHQE @ key_AHNE.transpose(2, 3) * (query_AHQE.shape[3] ** -0.5 if scale is None else scale)
    if causal:
        mask = causal_mask(scores_AHQN.shape[2], 0, scores_AHQN.device)
    if mask is not None:
        boolean = mask.dtype == torch.bool
        scores_AHQN = scores_AHQN.masked_fill(~mask, -torch.inf) if boolean else scores_AHQN + mask
    return (scores_AHQN.softmax(-1) * dropped_weights(scores_AHQN.shape, dropout, query_AHQE)) @ value_AHNE


def dropped_weights(shape: tuple[int, ...], rate: float, like: Tensor) -> Tensor:
    """What dropout multiplies weights of this shape by, drawn as torch's attention draws it: 0, or 1 / (1 - rate)."""
    return draw_rows(lambda whole: F.dropout(like.new_ones(whole), rate), shape)


def causal_weights(query_BHTE: Tensor, key_BHTE: Tensor, scale: float | None = None) -> Tensor:
    """softmax(q·k / √E) over each position and those before it, the weights of attention themselves -> BHTT."""
    scores_BHTT = query_BHTE @ key_BHTE.transpose(2, 3) * (query_BHTE.shape[3] ** -0.5 if scale is None else scale)
    seen_TT = causal_mask(query_BHTE.shape[2], 0, query_BHTE.device)
    return scores_BHTT.masked_fill(~seen_TT, -torch.inf).softmax(-1)


def causal_mask(new: int, before: int, device: torch.device) -> Tensor:
    """True where each of the `new` positions may see one of the before + new positions -> (new, before + new)."""
    return torch.ones(new, before + new, dtype=torch.bool, device=device).tril(before)


@lru_cache(FEW_QUERIES)
def _future_mask(new: int) -> Tensor:
    """True where a position lies in the future of another, (new, new)."""
    return ~causal_mask(new, 0, torch.device("cpu"))
