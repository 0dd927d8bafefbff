"""Relative positions: a learned number, by head and distance, added to the score of a query and a key.

Raffel et al., "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer", 2020. Each short
distance has a bucket; long distances share buckets that widen with the logarithm of the distance, and all distances
from `distance` on share the last bucket. Every bucket has one number per head.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from chainrule.base.parameters import HasTables
from chainrule.errors import ConfigError


def relative_bucket(relative: Tensor, buckets: int, distance: int, *, bidirectional: bool) -> Tensor:
    """The bucket of each relative position, key minus query, in any shape.

    `bidirectional`: the second half of the buckets is for keys after the query. Otherwise these count as distance 0.
    """
    first = torch.zeros_like(relative)
    if bidirectional:
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
    """Reject a distance so short that no bucket is left for longer ones."""
    if distance <= buckets // 2:
        raise ConfigError(
            f"model.distance is {distance} and model.buckets is {buckets}: half of the buckets hold one distance each, "
            f"so the distance must be above {buckets // 2}; raise model.distance or lower model.buckets"
        )


class RelativePositions(HasTables, nn.Module):
    """A learned number for each bucket and head, as the mask that is added to the scores of self-attention."""

    tables = ("table_UH",)
    bucket_R: Tensor  # of every relative position of the window

    def __init__(self, heads: int, buckets: int, distance: int, window: int, *, bidirectional: bool) -> None:
        """Unless `bidirectional`, no position sees those after it."""
        super().__init__()
        check_buckets(buckets, distance)
        self.window, self.bidirectional = window, bidirectional
        self.table_UH = nn.Parameter(torch.zeros(buckets, heads))
        relative_R = torch.arange(1 - window, window if bidirectional else 1)
        bucket_R = relative_bucket(relative_R, buckets, distance, bidirectional=bidirectional)
        self.register_buffer("bucket_R", bucket_R, persistent=False)

    def forward(self, new: int, before: int) -> Tensor:
        """The mask to add to the scores of T = `new` positions after `before` others, 1HTL; -inf: not visible."""
        length, here = before + new, self.window - 1
        # Each row of the mask is the one above it shifted by one position, so all rows are windows on one row of
        # distances: from the last query and the first key up to the first query and the last key.
        ahead = new - 1 if self.bidirectional else 0
        row_RH = F.embedding(self.bucket_R[here - length + 1 : here + 1 + ahead], self.table_UH)
        row_HR = row_RH.T.contiguous()
        if new == 1:
            return row_HR[None, :, None]
        if not self.bidirectional:
            row_HR = F.pad(row_HR, (0, new - 1), value=-math.inf)
        return row_HR.unfold(1, length, 1).flip(1)[None]
