"""The key-value cache of self-attention: it makes a decoding step cost one row, and reordering a beam cost nothing.

The cache stores keys and values in one buffer of shape (groups A, capacity, 2, heads H, width of a head E), whose
capacity doubles when it is full. The first N positions of each group are in use.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from weakref import WeakSet

import torch
from torch import Tensor

from chainrule.layers.attention.source_memory import regroup
from chainrule.types import TensorHolder

INITIAL_CAPACITY = 32
"""Positions that an empty cache has room for."""


class KeyValueCache(TensorHolder):
    """Keys and values of the prefixes of R = A·W rows.

    The rows of a group descend from one row, as the hypotheses of a sentence do, and share most of their past. A group
    therefore stores each position once for all its rows, and `owned_AWN` marks which of the N stored positions belong
    to which row: reordering a beam moves nothing. When the buffer is full, positions that no row owns are removed. If
    every position has an owner, the rows have too little in common, and each row becomes a group.

    Caches may share a buffer. A cache writes in place if no other live cache has stored anything past its end, and
    copies the buffer first otherwise, so a state never changes while someone holds it. A cache that was shortened
    overwrites the removed positions as soon as no other cache holds them.
    """

    __slots__ = ("__weakref__", "_sharing", "buffer", "length", "owned_AWN", "rows", "stored", "window")

    def __init__(
        self,
        buffer: Tensor,
        length: int,
        window: int,
        owned_AWN: Tensor | None = None,
        sharing: WeakSet[KeyValueCache] | None = None,
    ) -> None:
        """`owned_AWN` None: one row per group, which owns all positions; `sharing`: the caches of the same buffer."""
        self.buffer, self.length, self.window, self.owned_AWN = buffer, length, window, owned_AWN
        self.rows, self.stored = (1, length) if owned_AWN is None else owned_AWN.shape[1:]
        self._sharing = WeakSet() if sharing is None else sharing
        self._sharing.add(self)

    @classmethod
    def empty(cls, batch: int, heads: int, window: int, head_width: int, like: Tensor) -> KeyValueCache:
        """The cache of `batch` empty prefixes, on the device and in the type of `like`."""
        return cls(like.new_empty(batch, min(window, INITIAL_CAPACITY), 2, heads, head_width), 0, window)

    # Growing and shrinking

    def append(self, pairs_R2HTE: Tensor) -> KeyValueCache:
        """The cache after T more positions."""
        new = self.rows * pairs_R2HTE.shape[3]
        fits = self.stored + new <= self.buffer.shape[1] and all(other.stored <= self.stored for other in self._sharing)
        return (self if fits else self._reallocate(new))._write(pairs_R2HTE)

    def _write(self, pairs_R2HTE: Tensor) -> KeyValueCache:
        W, T = self.rows, pairs_R2HTE.shape[3]
        end = self.stored + W * T
        free_AQ2HE, pairs_RT2HE = self.buffer[:, self.stored : end], pairs_R2HTE.permute(0, 3, 1, 2, 4)
        owned_AWN = self.owned_AWN
        if owned_AWN is None:
            free_AQ2HE.copy_(pairs_RT2HE)
        else:
            free_AQ2HE.unflatten(1, (W, T)).copy_(pairs_RT2HE.unflatten(0, (-1, W)))
            new_WQ = torch.eye(W, dtype=torch.bool, device=owned_AWN.device).repeat_interleave(T, 1)
            owned_AWN = torch.cat([owned_AWN, new_WQ.expand(len(owned_AWN), -1, -1)], 2)
        return KeyValueCache(self.buffer, self.length + T, self.window, owned_AWN, self._sharing)

    def remove_last(self, count: int) -> KeyValueCache:
        """The cache without the last `count` positions; the buffer stays as it is."""
        kept, owned_AWN = self.length - count, self.owned_AWN
        if owned_AWN is not None:
            owned_AWN = owned_AWN & (owned_AWN.cumsum(2) <= kept)
        return KeyValueCache(self.buffer, kept, self.window, owned_AWN, self._sharing)

    def _reallocate(self, new: int) -> KeyValueCache:
        """The same cache with a separate buffer that has room for `new` more positions of each group."""
        if self.owned_AWN is None:
            longer, capacity = self.length + new, self.buffer.shape[1]
            moved = self._allocate(len(self.buffer), capacity if longer <= capacity else self._capacity(longer))
            moved[:, : self.length] = self.buffer[:, : self.length]
            return KeyValueCache(moved, self.length, self.window)
        A, device = len(self.owned_AWN), self.owned_AWN.device
        needed_AN = self.owned_AWN.any(1)
        if bool(needed_AN.all()):
            return self._ungroup(torch.arange(A * self.rows, device=device), new // self.rows)
        most = int(needed_AN.sum(1).max())
        index_AN = needed_AN.byte().argsort(dim=1, descending=True, stable=True)[:, :most]
        owned_AWN = self.owned_AWN.gather(2, index_AN[:, None].expand(-1, self.rows, -1))
        moved = self._gather(torch.arange(A, device=device), index_AN, 2 * (most + new))
        return KeyValueCache(moved, self.length, self.window, owned_AWN)

    def _ungroup(self, row_K: Tensor, new: int) -> KeyValueCache:
        """The selected rows, each as a group with room for `new` more positions."""
        assert self.owned_AWN is not None
        owned_KN = self.owned_AWN.flatten(0, 1).index_select(0, row_K)
        index_KL = owned_KN.nonzero()[:, 1].view(len(row_K), self.length)
        moved = self._gather(row_K // self.rows, index_KL, self._capacity(self.length + new))
        return KeyValueCache(moved, self.length, self.window)

    def _gather(self, group_K: Tensor, index_KN: Tensor, capacity: int) -> Tensor:
        """A new buffer that begins with the positions `index_KN` of the groups `group_K`."""
        moved = self._allocate(len(group_K), capacity)
        flat_M = (index_KN + group_K[:, None] * self.buffer.shape[1]).flatten()
        picked_M2HE = self.buffer.flatten(0, 1).index_select(0, flat_M)
        moved[:, : index_KN.shape[1]] = picked_M2HE.view(*index_KN.shape, *picked_M2HE.shape[1:])
        return moved

    def _allocate(self, groups: int, capacity: int) -> Tensor:
        return self.buffer.new_empty(groups, capacity, *self.buffer.shape[2:])

    def _capacity(self, longer: int) -> int:
        """The capacity of a new buffer for `longer` positions: twice as many, within the window."""
        return max(longer, min(2 * longer, self.window))

    # Reordering

    def map_tensors(self, change: Callable[[Tensor], Tensor]) -> KeyValueCache:
        """Apply a change of rows, such as a selection, to their prefixes."""
        A, W, device = len(self.buffer), self.rows, self.buffer.device
        group_A, rows = regroup(change, A, W, device)
        row_K = change(torch.arange(A * W, device=device))
        if rows == 1 and self.owned_AWN is not None:
            return self._ungroup(row_K, 1)
        owned_AWN = None
        if rows > 1:
            if self.owned_AWN is None:
                owned_AWN = row_K.new_ones(A, W, self.stored, dtype=torch.bool)
            else:
                owned_AWN = self.owned_AWN
            owned_AWN = owned_AWN.flatten(0, 1).index_select(0, row_K).view(len(row_K) // rows, rows, self.stored)
        if group_A is None:
            return KeyValueCache(self.buffer, self.length, self.window, owned_AWN, self._sharing)
        moved = self._allocate(len(group_A), self.buffer.shape[1])
        torch.index_select(self.buffer[:, : self.stored], 0, group_A, out=moved[:, : self.stored])
        return KeyValueCache(moved, self.length, self.window, owned_AWN)

    def form(self) -> Hashable:
        """Caches of equally many positions can be joined."""
        return "cache", self.length, self.window, self.buffer.shape[2:], self.buffer.dtype, self.buffer.device

    def join(self, others: Sequence[KeyValueCache]) -> KeyValueCache:
        """The rows of this cache, then those of the others, each as a group."""
        alone = [one.separate() for one in (self, *others)]
        capacity = self._capacity(self.length + 1)
        joined = self._allocate(sum(len(one.buffer) for one in alone), capacity)
        torch.cat([one.buffer[:, : self.length] for one in alone], out=joined[:, : self.length])
        return KeyValueCache(joined, self.length, self.window)

    def separate(self) -> KeyValueCache:
        """The same cache with one row per group."""
        if self.owned_AWN is None:
            return self
        return self._ungroup(torch.arange(len(self.owned_AWN) * self.rows, device=self.owned_AWN.device), 0)

    # Reading

    def keys_and_values(self) -> tuple[Tensor, ...]:
        """The keys and the values of each row, RHLE each."""
        return self.separate().group_keys_and_values()

    def group_keys_and_values(self) -> tuple[Tensor, ...]:
        """The keys and the values that each group stores, AHNE each."""
        return self.buffer[:, : self.stored].transpose(1, 3).unbind(2)

    def group_queries(self, query_RHTE: Tensor) -> Tensor:
        """Queries of rows -> queries of groups, AHQE with Q = W·T."""
        if self.owned_AWN is None:
            return query_RHTE
        query_AHWTE: Tensor = query_RHTE.unflatten(0, (-1, self.rows)).transpose(1, 2)
        return query_AHWTE.flatten(2, 3)

    def group_mask(self, new: int, mask_1HTL: Tensor | None) -> Tensor | None:
        """The mask of the last T = `new` positions of each row over the positions its group stores, AHQN or A1QN.

        `mask_1HTL` is added to the scores of each row's L positions; the result is then added to the scores too.
        """
        if self.owned_AWN is None:
            return mask_1HTL
        if new == 1 and mask_1HTL is None:
            return self.owned_AWN[:, None]
        place_AN = (self.owned_AWN.cumsum(2) - 1).masked_fill(~self.owned_AWN, 0).amax(1)
        last_T1 = torch.arange(self.length - new, self.length, device=place_AN.device)[:, None]
        seen_AWTN = self.owned_AWN[:, :, None] & (place_AN[:, None, None] <= last_T1)
        if mask_1HTL is None:
            return seen_AWTN.flatten(1, 2)[:, None]
        mask_AHTN = mask_1HTL[0][:, :, place_AN].permute(2, 0, 1, 3)
        return torch.where(seen_AWTN[:, None], mask_AHTN[:, :, None], -torch.inf).flatten(2, 3)
