"""Masked multi-head self-attention with a cache that makes a step cost one row.

Vaswani et al., "Attention Is All You Need", 2017.
Legend: B batch, T new positions, L positions so far, C positions in the window, H heads, D width, E width of a head.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from chainrule.layers.positions import Rotary


class KeyValueCache:
    """Keys and values of a prefix in one buffer that is allocated once.

    Two caches may share a buffer: the one that is first to write past its own length writes in place, any other copies
    first, so a state never changes under the hand that holds it.
    """

    __slots__ = ("_written", "length", "pairs_B2HCE")

    def __init__(self, pairs_B2HCE: Tensor, length: int = 0) -> None:
        self.pairs_B2HCE, self.length = pairs_B2HCE, length
        self._written = [length]  # shared by all caches over this buffer

    @classmethod
    def empty(cls, batch: int, heads: int, window: int, head_width: int, like: Tensor) -> KeyValueCache:
        return cls(like.new_empty(batch, 2, heads, window, head_width))

    def append(self, pairs_B2HTE: Tensor) -> KeyValueCache:
        """The cache of the prefix that is T positions longer."""
        own = self._written[0] == self.length
        grown = KeyValueCache(self.pairs_B2HCE if own else self.pairs_B2HCE.clone(), self.length)
        if own:
            grown._written = self._written
        grown.length = grown._written[0] = self.length + pairs_B2HTE.shape[3]
        grown.pairs_B2HCE[:, :, :, self.length : grown.length] = pairs_B2HTE
        return grown

    def filled(self) -> tuple[Tensor, ...]:
        """The keys and the values so far, BHLE each."""
        return self.pairs_B2HCE[:, :, :, : self.length].unbind(1)

    def map_tensors(self, change: Callable[[Tensor], Tensor]) -> KeyValueCache:
        return KeyValueCache(change(self.pairs_B2HCE), self.length)


def attend(
    projected_NX: Tensor,
    batch: int,
    heads: int,
    cache: KeyValueCache | None,
    rotary: Rotary | None = None,
    dropout: float = 0.0,
) -> tuple[Tensor, KeyValueCache | None]:
    """Causal multi-head attention of `batch` rows that stand one after the other.

    projected_NX holds query, key and value of each position side by side (X = 3D) -> ND and the longer cache.
    """
    T, E = len(projected_NX) // batch, projected_NX.shape[1] // (3 * heads)
    if T == 1:  # a step: nothing has to change its place
        parts_B3HTE = projected_NX.view(batch, 3, heads, 1, E)
    else:
        parts_B3HTE = projected_NX.view(batch, T, 3, heads, E).permute(0, 2, 3, 1, 4)
    before = 0 if cache is None else cache.length
    if rotary is not None:
        turned = rotary(parts_B3HTE[:, :2].flatten(1, 2), before).unflatten(1, (2, heads))
        parts_B3HTE = torch.cat([turned, parts_B3HTE[:, 2:]], 1)
    if cache is None:
        query_BHTE, key_BHLE, value_BHLE = parts_B3HTE.unbind(1)
    else:
        query_BHTE = parts_B3HTE[:, 0]
        cache = cache.append(parts_B3HTE[:, 1:])
        key_BHLE, value_BHLE = cache.filled()
    mask = causal_mask(T, before, query_BHTE.device) if before and T > 1 else None
    whole = not before and T > 1
    mixed_BHTE = F.scaled_dot_product_attention(query_BHTE, key_BHLE, value_BHLE, mask, dropout, whole)
    return mixed_BHTE.transpose(1, 2).reshape(len(projected_NX), heads * E), cache


class CausalSelfAttention(nn.Module):
    """Every position attends to itself and to those before it."""

    def __init__(self, width: int, heads: int, *, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.project_in = nn.Linear(width, 3 * width)
        self.project_out = nn.Linear(width, width)

    def forward(self, inputs_BTD: Tensor, cache: KeyValueCache | None) -> tuple[Tensor, KeyValueCache | None]:
        dropout = self.dropout if self.training else 0.0
        projected_NX = self.project_in(inputs_BTD).flatten(0, 1)
        mixed_ND, cache = attend(projected_NX, len(inputs_BTD), self.heads, cache, dropout=dropout)
        return self.project_out(mixed_ND.view(inputs_BTD.shape)), cache


def causal_mask(new: int, before: int, device: torch.device) -> Tensor:
    """Which of before + new positions each of the new ones may see -> (new, before + new), True where it may."""
    return torch.ones(new, before + new, dtype=torch.bool, device=device).tril(before)
