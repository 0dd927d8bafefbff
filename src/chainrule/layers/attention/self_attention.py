"""Multi-head self-attention with a cache that makes a step cost one row.

Vaswani et al., "Attention Is All You Need", 2017.
Legend: B batch, T new positions, L positions so far, H heads, D width, E width of a head; of a cache: R rows, A groups
of W rows each, K chosen rows, N positions that a group stores, C room for them, Q = W·T new ones.
"""

from __future__ import annotations

from collections.abc import Callable
from weakref import WeakSet

import torch
from torch import Tensor, nn

from chainrule.layers.attention.beam_step import attend_step, serves
from chainrule.layers.attention.dot_product import (
    causal_mask as causal_mask,  # offered to layers that attend by themselves
)
from chainrule.layers.attention.dot_product import dot_product_attention
from chainrule.layers.attention.positions import Rotary
from chainrule.layers.attention.source_memory import regrouped

FIRST_ROOM = 32
"""Positions that an empty cache has room for."""


class KeyValueCache:
    """Keys and values of the prefixes of R rows, in one buffer that grows by doubling.

    The rows are A groups of W. Those of a group have grown out of one, as the hypotheses of a sentence do, and have
    most of their past in common. So a group stores a position once for all its rows, and `own_AWN` says which of the N
    that it stores are whose: reordering a beam moves nothing. When the buffer is full, positions that no row has any
    more make room. Where there are none, the rows have parted for good, and each becomes a group of its own.

    Caches may share a buffer. One writes in place if no other that is still held has stored anything past its end, and
    copies first if one has, so a state never changes under the hand that holds it. A cache that was cut writes over
    what was cut off as soon as nobody has that any more.
    """

    __slots__ = ("__weakref__", "_sharing", "length", "own_AWN", "pairs_AC2HE", "rows", "stored", "window")

    def __init__(
        self,
        pairs_AC2HE: Tensor,
        length: int,
        window: int,
        own_AWN: Tensor | None = None,
        sharing: WeakSet[KeyValueCache] | None = None,
    ) -> None:
        """`own_AWN` None: one row a group, which has all that is stored; `sharing`: the caches of the same buffer."""
        self.pairs_AC2HE, self.length, self.window, self.own_AWN = pairs_AC2HE, length, window, own_AWN
        self.rows, self.stored = (1, length) if own_AWN is None else own_AWN.shape[1:]
        self._sharing = WeakSet() if sharing is None else sharing
        self._sharing.add(self)

    @classmethod
    def empty(cls, batch: int, heads: int, window: int, head_width: int, like: Tensor) -> KeyValueCache:
        return cls(like.new_empty(batch, min(window, FIRST_ROOM), 2, heads, head_width), 0, window)

    # Growing, and growing back

    def append(self, pairs_R2HTE: Tensor) -> KeyValueCache:
        """The cache of the prefixes that are T positions longer."""
        new = self.rows * pairs_R2HTE.shape[3]
        fits = self.stored + new <= self.pairs_AC2HE.shape[1] and all(
            other.stored <= self.stored for other in self._sharing
        )
        return (self if fits else self._with_room(new))._extended(pairs_R2HTE)

    def _extended(self, pairs_R2HTE: Tensor) -> KeyValueCache:
        W, T = self.rows, pairs_R2HTE.shape[3]
        end = self.stored + W * T
        place_AQ2HE, pairs_RT2HE = self.pairs_AC2HE[:, self.stored : end], pairs_R2HTE.permute(0, 3, 1, 2, 4)
        own_AWN = self.own_AWN
        if own_AWN is None:
            place_AQ2HE.copy_(pairs_RT2HE)
        else:
            place_AQ2HE.unflatten(1, (W, T)).copy_(pairs_RT2HE.unflatten(0, (-1, W)))
            new_WQ = torch.eye(W, dtype=torch.bool, device=own_AWN.device).repeat_interleave(T, 1)
            own_AWN = torch.cat([own_AWN, new_WQ.expand(len(own_AWN), -1, -1)], 2)
        return KeyValueCache(self.pairs_AC2HE, self.length + T, self.window, own_AWN, self._sharing)

    def cut(self, count: int) -> KeyValueCache:
        """The cache of the prefixes without their last `count` positions; nothing is moved."""
        kept, own_AWN = self.length - count, self.own_AWN
        if own_AWN is not None:
            own_AWN = own_AWN & (own_AWN.cumsum(2) <= kept)
        return KeyValueCache(self.pairs_AC2HE, kept, self.window, own_AWN, self._sharing)

    def _with_room(self, new: int) -> KeyValueCache:
        """The same with a buffer of its own that has room for so many more positions of each group."""
        if self.own_AWN is None:
            longer, room = self.length + new, self.pairs_AC2HE.shape[1]
            moved_AC2HE = self._buffer(len(self.pairs_AC2HE), room if longer <= room else self._room(longer))
            moved_AC2HE[:, : self.length] = self.pairs_AC2HE[:, : self.length]
            return KeyValueCache(moved_AC2HE, self.length, self.window)
        A, device = len(self.own_AWN), self.own_AWN.device
        needed_AN = self.own_AWN.any(1)
        if bool(needed_AN.all()):
            return self._parted(torch.arange(A * self.rows, device=device), new // self.rows)
        most = int(needed_AN.sum(1).max())
        index_AN = needed_AN.byte().argsort(dim=1, descending=True, stable=True)[:, :most]
        own_AWN = self.own_AWN.gather(2, index_AN[:, None].expand(-1, self.rows, -1))
        moved_AC2HE = self._picked(torch.arange(A, device=device), index_AN, 2 * (most + new))
        return KeyValueCache(moved_AC2HE, self.length, self.window, own_AWN)

    def _parted(self, row_K: Tensor, new: int) -> KeyValueCache:
        """Some rows, each as a group of its own with room for so many more positions."""
        assert self.own_AWN is not None
        own_KN = self.own_AWN.flatten(0, 1).index_select(0, row_K)
        index_KL = own_KN.nonzero()[:, 1].view(len(row_K), self.length)
        moved_KC2HE = self._picked(row_K // self.rows, index_KL, self._room(self.length + new))
        return KeyValueCache(moved_KC2HE, self.length, self.window)

    def _picked(self, group_K: Tensor, index_KN: Tensor, room: int) -> Tensor:
        """A buffer of so many positions a group that begins with some of those that some groups store."""
        moved_KC2HE = self._buffer(len(group_K), room)
        flat_M = (index_KN + group_K[:, None] * self.pairs_AC2HE.shape[1]).flatten()
        picked_M2HE = self.pairs_AC2HE.flatten(0, 1).index_select(0, flat_M)
        moved_KC2HE[:, : index_KN.shape[1]] = picked_M2HE.view(*index_KN.shape, *picked_M2HE.shape[1:])
        return moved_KC2HE

    def _buffer(self, groups: int, room: int) -> Tensor:
        return self.pairs_AC2HE.new_empty(groups, room, *self.pairs_AC2HE.shape[2:])

    def _room(self, longer: int) -> int:
        return max(longer, min(2 * longer, self.window))

    # Reordering

    def map_tensors(self, change: Callable[[Tensor], Tensor]) -> KeyValueCache:
        """What `change` does to rows is done to their prefixes."""
        A, W, device = len(self.pairs_AC2HE), self.rows, self.pairs_AC2HE.device
        group_A, rows = regrouped(change, A, W, device)
        row_K = change(torch.arange(A * W, device=device))
        if rows == 1 and self.own_AWN is not None:
            return self._parted(row_K, 1)
        own_AWN = None
        if rows > 1:
            own_AWN = row_K.new_ones(A, W, self.stored, dtype=torch.bool) if self.own_AWN is None else self.own_AWN
            own_AWN = own_AWN.flatten(0, 1).index_select(0, row_K).view(len(row_K) // rows, rows, self.stored)
        if group_A is None:
            return KeyValueCache(self.pairs_AC2HE, self.length, self.window, own_AWN, self._sharing)
        moved_AC2HE = self._buffer(len(group_A), self.pairs_AC2HE.shape[1])
        torch.index_select(self.pairs_AC2HE[:, : self.stored], 0, group_A, out=moved_AC2HE[:, : self.stored])
        return KeyValueCache(moved_AC2HE, self.length, self.window, own_AWN)

    # What is attended to

    def filled(self) -> tuple[Tensor, ...]:
        """The keys and the values of each row so far, RHLE each."""
        if self.own_AWN is None:
            return self.grouped()
        row_R = torch.arange(len(self.own_AWN) * self.rows, device=self.own_AWN.device)
        return self._parted(row_R, 0).grouped()

    def grouped(self) -> tuple[Tensor, ...]:
        """The keys and the values that each group has stored, AHNE each."""
        return self.pairs_AC2HE[:, : self.stored].transpose(1, 3).unbind(2)

    def group(self, query_RHTE: Tensor) -> Tensor:
        """Queries of rows -> those of groups, AHQE with Q = W·T."""
        if self.own_AWN is None:
            return query_RHTE
        query_AHWTE: Tensor = query_RHTE.unflatten(0, (-1, self.rows)).transpose(1, 2)
        return query_AHWTE.flatten(2, 3)

    def mask(self, new: int, given_1HTL: Tensor | None) -> Tensor | None:
        """What the last T = `new` positions of each row may see of what its group has stored, AHQN or A1QN.

        `given_1HTL` is what is to be added to the scores of each position so far.
        """
        if self.own_AWN is None:
            return given_1HTL
        if new == 1 and given_1HTL is None:
            return self.own_AWN[:, None]
        place_AN = (self.own_AWN.cumsum(2) - 1).masked_fill(~self.own_AWN, 0).amax(1)
        last_T1 = torch.arange(self.length - new, self.length, device=place_AN.device)[:, None]
        seen_AWTN = self.own_AWN[:, :, None] & (place_AN[:, None, None] <= last_T1)
        if given_1HTL is None:
            return seen_AWTN.flatten(1, 2)[:, None]
        given_AHTN = given_1HTL[0][:, :, place_AN].permute(2, 0, 1, 3)
        return torch.where(seen_AWTN[:, None], given_AHTN[:, :, None], -torch.inf).flatten(2, 3)


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
        query, key, value = parts_B3HTE.unbind(1)
    else:
        cache = cache.append(parts_B3HTE[:, 1:])
        if T == 1 and mask is None and cache.own_AWN is not None and serves(projected_NX):
            found_BHE = attend_step(parts_B3HTE[:, 0, :, 0], cache.pairs_AC2HE, cache.own_AWN, scale)
            return found_BHE.flatten(1), cache
        query, (key, value), mask = cache.group(parts_B3HTE[:, 0]), cache.grouped(), cache.mask(T, mask)
    alone = mask is None and causal and T > 1
    mixed = dot_product_attention(query, key, value, mask, dropout, causal=alone, scale=scale)
    return mixed.transpose(1, 2).reshape(len(projected_NX), heads * E), cache


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
