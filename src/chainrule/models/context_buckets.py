"""Buckets of contexts: a mixture may have separate weights for each.

SingleBucket    one set of weights for all contexts
DepthBuckets    by the length of the longest context that an n-gram part has seen in training
CountBuckets    by the number of occurrences of the last token in the training text
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from chainrule.types import ContextDepths, State, SteppingModel

MAX_BUCKETS = 12
"""Longer or more frequent contexts share the last bucket."""


class SingleBucket(nn.Module):
    """The same weights for all contexts."""

    count = 1

    def bucket_tokens(
        self, parts: Sequence[SteppingModel], tokens_BT: Tensor, previous_BT: Tensor, states: Sequence[State]
    ) -> Tensor:
        """The bucket of the context of each token, given the states of the parts before them -> int64 BT."""
        return torch.zeros_like(tokens_BT)

    def bucket_prefixes(
        self, parts: Sequence[SteppingModel], tokens_BT: Tensor, states: Sequence[State], first: bool
    ) -> Tensor:
        """The bucket of the prefix that ends with each token -> int64 BT. `first`: it begins with the `eos` before."""
        return torch.zeros_like(tokens_BT)

    def bucket_prefix(self, parts: Sequence[SteppingModel], newest_B: Tensor, states: Sequence[State]) -> Tensor:
        """The bucket of a prefix, given its last token and the states of the parts after it -> int64 B."""
        return torch.zeros_like(newest_B)


class DepthBuckets(nn.Module):
    """Buckets by the length of the longest context that an n-gram part has seen in training."""

    count = MAX_BUCKETS

    def __init__(self, part: int) -> None:
        super().__init__()
        self.part = part

    def bucket_tokens(
        self, parts: Sequence[SteppingModel], tokens_BT: Tensor, previous_BT: Tensor, states: Sequence[State]
    ) -> Tensor:
        depth_BT = self._context_depths(parts).depths(tokens_BT, states[self.part])
        return depth_BT.clamp(max=self.count - 1).to(tokens_BT.device)

    def bucket_prefixes(
        self, parts: Sequence[SteppingModel], tokens_BT: Tensor, states: Sequence[State], first: bool
    ) -> Tensor:
        # The depth before a token is that of the prefix without it, so any token may follow the last one.
        longer_BT = torch.cat([tokens_BT, tokens_BT[:, -1:]], 1)
        if first:  # the `eos` before a text is implied
            return self.bucket_tokens(parts, longer_BT[:, 1:], longer_BT[:, :-1], states)
        return self.bucket_tokens(parts, longer_BT, longer_BT, states)[:, 1:]

    def bucket_prefix(self, parts: Sequence[SteppingModel], newest_B: Tensor, states: Sequence[State]) -> Tensor:
        depth_B = self._context_depths(parts).depth_rows(states[self.part])
        return depth_B.clamp(max=self.count - 1).to(newest_B.device)

    def _context_depths(self, parts: Sequence[SteppingModel]) -> ContextDepths:
        depths = parts[self.part].context_depths
        assert depths is not None
        return depths


class CountBuckets(nn.Module):
    """Buckets by the number of occurrences of the last token in the training text: ⌊log2(1 + count)⌋."""

    count = MAX_BUCKETS
    bucket_V: Tensor

    def __init__(self, counts_V: Tensor) -> None:
        super().__init__()
        most = 1 << (self.count - 1)
        exponent_V = torch.frexp((1 + counts_V).clamp(max=most).double()).exponent.long() - 1
        self.register_buffer("bucket_V", exponent_V, persistent=False)

    def bucket_tokens(
        self, parts: Sequence[SteppingModel], tokens_BT: Tensor, previous_BT: Tensor, states: Sequence[State]
    ) -> Tensor:
        return self.bucket_V[previous_BT]

    def bucket_prefixes(
        self, parts: Sequence[SteppingModel], tokens_BT: Tensor, states: Sequence[State], first: bool
    ) -> Tensor:
        return self.bucket_V[tokens_BT]

    def bucket_prefix(self, parts: Sequence[SteppingModel], newest_B: Tensor, states: Sequence[State]) -> Tensor:
        return self.bucket_V[newest_B]


def choose_bucketing(parts: Sequence[SteppingModel], counts_V: Tensor) -> DepthBuckets | CountBuckets:
    """By the depth of the first part that knows it, otherwise by the count of the last token."""
    for number, part in enumerate(parts):
        if part.context_depths is not None:
            return DepthBuckets(number)
    return CountBuckets(counts_V)
