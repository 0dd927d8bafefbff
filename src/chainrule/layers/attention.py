"""Masked multi-head self-attention with a cache that makes a step cost one row.

Vaswani et al., "Attention Is All You Need", 2017.
Legend: B batch, T new positions, C positions in the window, H heads, D width, E = D/H width of a head.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from chainrule.layers.positions import Rotary


class KeyValueCache:
    """Keys and values of a prefix in buffers that are allocated once.

    Two caches may share buffers: the one that is first to write past its own length writes in place, any other copies
    first, so a state never changes under the hand that holds it.
    """

    def __init__(self, keys_BHCE: Tensor, values_BHCE: Tensor, length: int = 0) -> None:
        self.keys_BHCE, self.values_BHCE = keys_BHCE, values_BHCE
        self.length = length
        self._written = [length]  # shared by all caches over these buffers

    @classmethod
    def empty(cls, batch: int, heads: int, window: int, head_width: int, like: Tensor) -> KeyValueCache:
        shape = (batch, heads, window, head_width)
        return cls(like.new_empty(shape), like.new_empty(shape))

    def append(self, keys_BHTE: Tensor, values_BHTE: Tensor) -> KeyValueCache:
        """The cache of the longer prefix."""
        end = self.length + keys_BHTE.shape[2]
        if self._written[0] != self.length:
            grown = KeyValueCache(self.keys_BHCE.clone(), self.values_BHCE.clone(), self.length)
        else:
            grown = KeyValueCache(self.keys_BHCE, self.values_BHCE, self.length)
            grown._written = self._written
        grown.keys_BHCE[:, :, self.length : end] = keys_BHTE
        grown.values_BHCE[:, :, self.length : end] = values_BHTE
        grown.length = grown._written[0] = end
        return grown

    def filled(self) -> tuple[Tensor, Tensor]:
        return self.keys_BHCE[:, :, : self.length], self.values_BHCE[:, :, : self.length]

    def map_tensors(self, change: Callable[[Tensor], Tensor]) -> KeyValueCache:
        return KeyValueCache(change(self.keys_BHCE), change(self.values_BHCE), self.length)


class CausalSelfAttention(nn.Module):
    """Every position attends to itself and to those before it."""

    def __init__(self, width: int, heads: int, *, bias: bool, dropout: float, rotary: Rotary | None = None) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.project_in = nn.Linear(width, 3 * width, bias=bias)
        self.project_out = nn.Linear(width, width, bias=bias)
        self.rotary = rotary

    def forward(self, inputs_BTD: Tensor, cache: KeyValueCache | None) -> tuple[Tensor, KeyValueCache | None]:
        B, T, D = inputs_BTD.shape
        parts = self.project_in(inputs_BTD).view(B, T, 3, self.heads, D // self.heads)
        query_BHTE, key_BHTE, value_BHTE = parts.permute(2, 0, 3, 1, 4)
        offset = cache.length if cache is not None else 0
        if self.rotary is not None:
            query_BHTE, key_BHTE = self.rotary(query_BHTE, offset), self.rotary(key_BHTE, offset)
        if cache is not None:
            cache = cache.append(key_BHTE, value_BHTE)
            key_BHTE, value_BHTE = cache.filled()
        mixed_BHTE = F.scaled_dot_product_attention(
            query_BHTE,
            key_BHTE,
            value_BHTE,
            attn_mask=causal_mask(T, offset, inputs_BTD.device) if offset and T > 1 else None,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=not offset and T > 1,
        )
        return self.project_out(mixed_BHTE.transpose(1, 2).reshape(B, T, D)), cache


def causal_mask(new: int, before: int, device: torch.device) -> Tensor:
    """Which of before + new positions each of the new ones may see -> (new, before + new), True where it may."""
    return torch.ones(new, before + new, dtype=torch.bool, device=device).tril(before)
