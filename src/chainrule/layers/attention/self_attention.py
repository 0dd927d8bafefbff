"""Multi-head self-attention over positions that are given at once or added to a key-value cache.

Vaswani et al., "Attention Is All You Need", 2017.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from chainrule.base.kernels import inference_kernel_supports
from chainrule.layers.attention.beam_step import attend_step
from chainrule.layers.attention.dot_product import causal_weights, dot_product_attention
from chainrule.layers.attention.kv_cache import KeyValueCache
from chainrule.layers.attention.positions import Rotary
from chainrule.layers.fused.linear import Linear


def attend(
    projected_NX: Tensor,
    batch: int,
    heads: int,
    cache: KeyValueCache | None,
    rotary: Rotary | None = None,
    dropout: float = 0.0,
    *,
    mask: Tensor | None = None,
    causal: bool = True,
    scale: float | None = None,
) -> tuple[Tensor, KeyValueCache | None]:
    """Multi-head self-attention of `batch` rows, whose positions are concatenated row by row.

    projected_NX holds query, key and value of each position side by side (X = 3D) -> ND and the longer cache. A boolean
    mask (B or 1, H or 1, T, L) marks the visible positions, any other mask is added to the scores; without a mask,
    `causal` decides.
    """
    T, E = projected_NX.shape[0] // batch, projected_NX.shape[1] // (3 * heads)
    parts_B3HTE = _split_heads(projected_NX, batch, heads, rotary, 0 if cache is None else cache.length)
    if cache is None:
        query, key, value = parts_B3HTE.unbind(1)
    else:
        cache = cache.append(parts_B3HTE[:, 1:])
        if T == 1 and mask is None and cache.owned_AWN is not None and inference_kernel_supports(projected_NX):
            mixed_BHE = attend_step(parts_B3HTE[:, 0, :, 0], cache.buffer, cache.owned_AWN, scale)
            return mixed_BHE.flatten(1), cache
        query, mask = cache.group_queries(parts_B3HTE[:, 0]), cache.group_mask(T, mask)
        key, value = cache.group_keys_and_values()
    mixed = dot_product_attention(
        query, key, value, mask, dropout, causal=mask is None and causal and bool(T > 1), scale=scale
    )
    return mixed.transpose(1, 2).reshape(projected_NX.shape[0], heads * E), cache


def _split_heads(projected_NX: Tensor, batch: int, heads: int, rotary: Rotary | None, before: int) -> Tensor:
    """Query, key and value of each head, after `before` positions -> B3HTE."""
    T, E = projected_NX.shape[0] // batch, projected_NX.shape[1] // (3 * heads)
    if T == 1:  # one step: the layout needs no permutation
        parts_B3HTE = projected_NX.view(batch, 3, heads, 1, E)
    else:
        parts_B3HTE = projected_NX.view(batch, T, 3, heads, E).permute(0, 2, 3, 1, 4)
    if rotary is None:
        return parts_B3HTE
    rotated = rotary(parts_B3HTE[:, :2].flatten(1, 2), before).unflatten(1, (2, heads))
    return torch.cat([rotated, parts_B3HTE[:, 2:]], 1)


def self_weights(
    projected_NX: Tensor, batch: int, heads: int, rotary: Rotary | None = None, *, scale: float | None = None
) -> Tensor:
    """The weights with which `attend` combines the values, without a cache or mask -> BHTT."""
    query_BHTE, key_BHTE, _ = _split_heads(projected_NX, batch, heads, rotary, 0).unbind(1)
    return causal_weights(query_BHTE, key_BHTE, scale)


class CausalSelfAttention(nn.Module):
    """Every position attends to itself and to those before it."""

    def __init__(self, width: int, heads: int, *, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.project_in = Linear(width, 3 * width)
        self.project_out = Linear(width, width)

    def forward(self, inputs_BTD: Tensor, cache: KeyValueCache | None) -> tuple[Tensor, KeyValueCache | None]:
        """inputs_BTD after the positions in the cache -> BTD and the longer cache."""
        dropout = self.dropout if self.training else 0.0
        projected_NX = self.project_in(inputs_BTD).flatten(0, 1)
        mixed_ND, cache = attend(projected_NX, len(inputs_BTD), self.heads, cache, dropout=dropout)
        return self.project_out(mixed_ND.view(inputs_BTD.shape)), cache

    def weights(self, inputs_BTD: Tensor) -> Tensor:
        """The weights of whole rows, BHTT."""
        return self_weights(self.project_in(inputs_BTD).flatten(0, 1), len(inputs_BTD), self.heads)
