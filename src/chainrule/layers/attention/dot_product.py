"""softmax(q·k / √E) v, by the kernel that is quickest for the shape.

Torch's fused kernel is made for many queries. A beam asks with a handful for each source, where two plain products and
a softmax take a third of its time on a processor; a single query, and everything that needs a gradient, stay with it.
Legend: A rows, H heads, Q queries, N keys, E width of a head.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional as F

FEW = 16
"""Queries of a row up to which plain products are quicker."""


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
    """What each query finds -> AHQE. A boolean mask says what it may see, any other is added to the scores.

    `causal`: the queries are those of the last Q positions, and each sees what there is up to its own.
    """
    Q, N = query_AHQE.shape[2], key_AHNE.shape[2]
    later = causal and Q < N
    few = 1 < Q <= FEW and query_AHQE.device.type == "cpu"
    if few and (later or not causal) and not torch.is_grad_enabled():
        return _plain(query_AHQE, key_AHNE, value_AHNE, mask, scale, causal)
    if later:
        mask, causal = causal_mask(Q, N - Q, query_AHQE.device), False
    return F.scaled_dot_product_attention(query_AHQE, key_AHNE, value_AHNE, mask, dropout, causal, scale=scale)


def _plain(
    query_AHQE: Tensor, key_AHNE: Tensor, value_AHNE: Tensor, mask: Tensor | None, scale: float | None, causal: bool
) -> Tensor:
    """The formula itself."""
    scores_AHQN = query_AHQE @ key_AHNE.transpose(2, 3)
    scores_AHQN *= query_AHQE.shape[3] ** -0.5 if scale is None else scale
    if causal:
        new = query_AHQE.shape[2]
        scores_AHQN[..., -new:].masked_fill_(_hidden(new), -torch.inf)
    elif mask is not None:
        hidden = mask.dtype == torch.bool
        scores_AHQN = scores_AHQN.masked_fill_(~mask, -torch.inf) if hidden else scores_AHQN.add_(mask)
    return scores_AHQN.softmax(-1) @ value_AHNE


def causal_mask(new: int, before: int, device: torch.device) -> Tensor:
    """Which of before + new positions each of the new ones may see -> (new, before + new), True where it may."""
    return torch.ones(new, before + new, dtype=torch.bool, device=device).tril(before)


@lru_cache(FEW)
def _hidden(new: int) -> Tensor:
    """Which of a few new positions each of them may not see."""
    return ~causal_mask(new, 0, torch.device("cpu"))
