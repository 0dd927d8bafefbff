"""States of models as flat lists of named tensors, which is how a graph takes and returns them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from chainrule.layers.attention.kv_cache import KeyValueCache


class StatePart(NamedTuple):
    """One tensor of a state, as the runner starts and grows it."""

    name: str
    shape: tuple[int, ...]  # of one row of the empty prefix, without the batch; 0 where it grows
    grows: int | None = None  # the axis of positions; None: the shape stays


class ConcatenatedCache(KeyValueCache):
    """A key-value cache that is one tensor, longer by the new positions after each step."""

    __slots__ = ("pairs_B2HLE",)

    def __init__(self, pairs_B2HLE: Tensor) -> None:
        self.pairs_B2HLE, self.owned_AWN = pairs_B2HLE, None
        self.length = pairs_B2HLE.shape[3]

    def append(self, pairs_R2HTE: Tensor) -> ConcatenatedCache:
        return ConcatenatedCache(torch.cat([self.pairs_B2HLE, pairs_R2HTE], 3))

    def group_queries(self, query_RHTE: Tensor) -> Tensor:
        return query_RHTE

    def group_mask(self, new: int, mask_1HTL: Tensor | None) -> Tensor | None:
        return mask_1HTL

    def group_keys_and_values(self) -> tuple[Tensor, ...]:
        return self.pairs_B2HLE.unbind(1)


def cache_parts(blocks: Sequence[Any]) -> list[StatePart]:
    """The caches of a stack of blocks."""
    return [
        StatePart(f"cache_{number}", (2, block.heads, 0, block.shape.attention_width // block.heads), 3)
        for number, block in enumerate(blocks)
    ]


def recurrent_parts(recurrence: Any) -> list[StatePart]:
    """The states of a stack of recurrent layers."""
    names = ("hidden", "cell")[: recurrence.cell.states]
    return [
        StatePart(f"{name}_{depth}", (recurrence.hidden_size,))
        for depth in range(len(recurrence.layers))
        for name in names
    ]


def as_layers(tensors: Sequence[Tensor], states: int) -> list[tuple[Tensor, ...]]:
    """The tensors of recurrent layers as a state: one tuple per layer."""
    return [tuple(tensors[start : start + states]) for start in range(0, len(tensors), states)]


def flat(layers: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    """The inverse of `as_layers`."""
    return [tensor for layer in layers for tensor in layer]
