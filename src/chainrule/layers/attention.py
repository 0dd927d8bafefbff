"""Multi-head self-attention with a cache that makes a step cost one row.

Vaswani et al., "Attention Is All You Need", 2017.
Legend: B batch, T new positions, L positions so far, C positions in the window, H heads, D width, E width of a head.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from chainrule.layers.positions import Rotary

FIRST_ROOM = 32
"""Positions that an empty cache has room for."""


class KeyValueCache:
    """Keys and values of a prefix in one buffer that grows by doubling, up to the window.

    Two caches may share a buffer: the one that is first to write past its own length writes in place, any other copies
    first, so a state never changes under the hand that holds it. Reordering rows is put off until the next position is
    appended, when the rows are moved to a buffer with room for it.
    """

    __slots__ = ("_written", "length", "pairs_B2HCE", "rows_K", "window")

    def __init__(self, pairs_B2HCE: Tensor, length: int, window: int, rows_K: Tensor | None = None) -> None:
        self.pairs_B2HCE, self.length, self.window, self.rows_K = pairs_B2HCE, length, window, rows_K
        self._written = [length]  # shared by all caches over this buffer

    @classmethod
    def empty(cls, batch: int, heads: int, window: int, head_width: int, like: Tensor) -> KeyValueCache:
        return cls(like.new_empty(batch, 2, heads, min(window, FIRST_ROOM), head_width), 0, window)

    def append(self, pairs_B2HTE: Tensor) -> KeyValueCache:
        """The cache of the prefix that is T positions longer."""
        longer = self.length + pairs_B2HTE.shape[3]
        fits = longer <= self.pairs_B2HCE.shape[3]
        own = self._written[0] == self.length and self.rows_K is None and fits
        grown = KeyValueCache(self.pairs_B2HCE if own else self._moved(longer), self.length, self.window)
        if own:
            grown._written = self._written
        grown.length = grown._written[0] = longer
        grown.pairs_B2HCE[:, :, :, self.length : longer] = pairs_B2HTE
        return grown

    def _moved(self, longer: int) -> Tensor:
        """A buffer of this cache's own, its rows in order, with room for so many positions."""
        filled = self.pairs_B2HCE[:, :, :, : self.length]
        room = self.pairs_B2HCE.shape[3]
        if longer > room:
            room = max(longer, min(2 * longer, self.window))
        rows = len(filled) if self.rows_K is None else len(self.rows_K)
        moved = filled.new_empty(rows, *filled.shape[1:3], room, filled.shape[4])
        place = moved[:, :, :, : self.length]
        if self.rows_K is None:
            place.copy_(filled)
        else:
            torch.index_select(filled, 0, self.rows_K, out=place)
        return moved

    def filled(self) -> tuple[Tensor, ...]:
        """The keys and the values so far, BHLE each."""
        filled = self.pairs_B2HCE[:, :, :, : self.length]
        return (filled if self.rows_K is None else filled.index_select(0, self.rows_K)).unbind(1)

    def map_tensors(self, change: Callable[[Tensor], Tensor]) -> KeyValueCache:
        rows_K = self.rows_K
        if rows_K is None:
            rows_K = torch.arange(len(self.pairs_B2HCE), device=self.pairs_B2HCE.device)
        return KeyValueCache(self.pairs_B2HCE, self.length, self.window, change(rows_K))


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
    """Multi-head self-attention of `batch` rows that stand one after the other.

    projected_NX holds query, key and value of each position side by side (X = 3D) -> ND and the longer cache. A mask
    (B or 1, H or 1, T, L) says what each position may see, or is added to the scores; without one, `causal` decides.
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
    alone = mask is None and causal and T > 1
    if alone and before:
        mask = causal_mask(T, before, query_BHTE.device)
    mixed_BHTE = F.scaled_dot_product_attention(
        query_BHTE, key_BHLE, value_BHLE, mask, dropout, alone and not before, scale=scale
    )
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
