"""Positions told as distances: what attention adds to the score of a query and a key that stand so far apart.

Raffel et al., "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer", 2020. Near distances
have a bucket each, far ones share buckets that widen with the logarithm of the distance, and all from `distance` on
share the last. A bucket has one number a head, learned.
Legend: T new positions, L positions so far, H heads, U buckets, R relative positions, C the longest window.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from chainrule.errors import ConfigError


def relative_bucket(relative: Tensor, buckets: int, distance: int, *, both_ways: bool) -> Tensor:
    """The bucket of each relative position, key minus query, in any shape.

    `both_ways` gives the second half of the buckets to keys that come after the query; otherwise those count as 0 away.
    """
    first = torch.zeros_like(relative)
    if both_ways:
        buckets //= 2
        first = (relative > 0).long() * buckets
        away = relative.abs()
    else:
        away = (-relative).clamp(min=0)
    near = buckets // 2
    # In float32 and in this order, as published weights were trained: a border may fall between two floats.
    far = torch.log(away.clamp(min=1).float() / near) / math.log(distance / near) * (buckets - near)
    return first + torch.where(away < near, away, (near + far.long()).clamp(max=buckets - 1))


def check_buckets(buckets: int, distance: int) -> None:
    """Refuses a distance so short that no bucket would be left for it."""
    if distance <= buckets // 2:
        raise ConfigError(
            f"model.distance is {distance} and model.buckets is {buckets}: half of the buckets hold one distance each, "
            f"so the distance must be above {buckets // 2}; raise model.distance or lower model.buckets"
        )


class RelativePositions(nn.Module):
    """A learned number for each bucket and head, laid out as what is added to the scores of one side's attention."""

    bucket_R: Tensor

    def __init__(self, heads: int, buckets: int, distance: int, window: int, *, both_ways: bool) -> None:
        """Without `both_ways`, a position sees none that come after it."""
        super().__init__()
        check_buckets(buckets, distance)
        self.window, self.both_ways = window, both_ways
        self.table_UH = nn.Parameter(torch.zeros(buckets, heads))
        relative_R = torch.arange(1 - window, window if both_ways else 1)
        bucket_R = relative_bucket(relative_R, buckets, distance, both_ways=both_ways)
        self.register_buffer("bucket_R", bucket_R, persistent=False)

    def forward(self, new: int, before: int) -> Tensor:
        """What is added to the scores of T = `new` positions after `before` others, 1HTL; -inf: it may not look."""
        length, here = before + new, self.window - 1
        # A row is the one above it shifted by one place, so all are windows on the numbers of one row of distances:
        # from that of the last query to the first key, up to that of the first query to the last key.
        ahead = new - 1 if self.both_ways else 0
        row_RH = F.embedding(self.bucket_R[here - length + 1 : here + 1 + ahead], self.table_UH)
        row_HR = row_RH.T.contiguous()
        if new == 1:
            return row_HR[None, :, None]
        if not self.both_ways:
            row_HR = F.pad(row_HR, (0, new - 1), value=-math.inf)
        return row_HR.unfold(1, length, 1).flip(1)[None]
