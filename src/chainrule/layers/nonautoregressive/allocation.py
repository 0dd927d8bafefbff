"""Which source words each place of a target is made of, and how long the target will be, before any of it is known.

    A_ts = softmax_s(q_t·k_s / √D + b_(t-s))        aligned_t = Σ_s A_ts v_s

The query q_t comes from the number t alone, keys and values from the encoded source, and b is a bias by the distance
of the two places, so the row of A for a place needs neither the target nor its length. Weights below a threshold take
no part: they become 0, and what is left of the row is made to sum to one again.

Legend: B batch, T target places, S source time, D width, E width of the encoder's states, L lengths, K kept ones.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from chainrule.layers.attention.positions import sinusoidal_table

REACH = 32
"""Distances beyond this share one bias on either side."""

PLACES = 512
"""Places whose sinusoids are kept from the start; more are made when they are needed."""


class Sinusoids(nn.Module):
    """The sinusoidal vector of any number from 0 on."""

    table_CD: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.register_buffer("table_CD", sinusoidal_table(PLACES, width), persistent=False)

    def first(self, count: int) -> Tensor:
        """The vectors of 0, 1, …, at least count - 1 -> CD."""
        if count > len(self.table_CD):
            longer_CD = sinusoidal_table(max(count, 2 * len(self.table_CD)), self.width)
            self.table_CD = longer_CD.to(self.table_CD)
        return self.table_CD


class Aligned(NamedTuple):
    """What the allocation needs to know of a source."""

    keys_BSD: Tensor
    values_BSD: Tensor
    bias_B1S: Tensor | None  # -inf at padding


class Allocation(nn.Module):
    """The time-step allocation matrix A and the features that it gives to the places of a target."""

    def __init__(self, encoded: int, width: int) -> None:
        super().__init__()
        self.scale = width**-0.5
        self.sinusoids = Sinusoids(width)
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(encoded, width, bias=False)
        self.value = nn.Linear(encoded, width)
        # Words tend to stand in about the same order, so that is where learning begins.
        self.distance_bias = nn.Parameter(-0.5 * torch.arange(-REACH, REACH + 1).abs().float())

    def of(self, encoded_BSE: Tensor, bias_B1S: Tensor | None) -> Aligned:
        """Keys and values of encoded sources; `bias_B1S` is -inf at padding."""
        return Aligned(self.key(encoded_BSE), self.value(encoded_BSE), bias_B1S)

    def weights(self, source: Aligned, first: int, count: int, threshold: float) -> Tensor:
        """The rows of A for `count` places from `first` on -> BTS, each row summing to one."""
        query_TD = self.query(self.sinusoids.first(first + count)[first : first + count]) * self.scale
        S = source.keys_BSD.shape[1]
        scores_BTS = query_TD @ source.keys_BSD.transpose(1, 2) + self._distances(first, count, S)
        if source.bias_B1S is not None:
            scores_BTS = scores_BTS + source.bias_B1S
        return thinned(scores_BTS.softmax(2), threshold)

    def forward(self, source: Aligned, first: int, count: int, threshold: float) -> Tensor:
        """The features of `count` places from `first` on -> BTD."""
        return self.weights(source, first, count, threshold) @ source.values_BSD

    def _distances(self, first: int, count: int, S: int) -> Tensor:
        """The bias of place t and source word s by t - s -> TS, a view of one line of biases."""
        distance_N = torch.arange(first - S + 1, first + count, device=self.distance_bias.device)
        bias_N = self.distance_bias[distance_N.clamp_(-REACH, REACH).add_(REACH)]
        return bias_N.unfold(0, S, 1).flip(1)


def thinned(weights_BTS: Tensor, threshold: float) -> Tensor:
    """Rows without the weights below a threshold, the largest apart, that sum to one again -> BTS."""
    if threshold <= 0:
        return weights_BTS
    least_BT1 = weights_BTS.detach().amax(2, keepdim=True).clamp(max=threshold)
    kept_BTS = weights_BTS.masked_fill(weights_BTS < least_BT1, 0.0)
    return kept_BTS / kept_BTS.sum(2, keepdim=True)


class LengthGuess(nn.Module):
    """p(target length | source) as a choice among differences of the two lengths, from -reach to reach."""

    def __init__(self, encoded: int, reach: int) -> None:
        super().__init__()
        self.reach = reach
        self.choose = nn.Linear(encoded, 2 * reach + 1)

    def forward(self, encoded_BSE: Tensor, mask_BS: Tensor | None) -> Tensor:
        """Encoded sources and what of them is no padding (None: all) -> scores of the differences, BL."""
        if mask_BS is None:
            mean_BE = encoded_BSE.mean(1)
        else:
            share_BS = mask_BS.to(encoded_BSE.dtype) / mask_BS.sum(1, keepdim=True)
            mean_BE = (share_BS.unsqueeze(1) @ encoded_BSE).squeeze(1)
        scores_BL: Tensor = self.choose(mean_BE)
        return scores_BL

    def loss(self, scores_BL: Tensor, source_B: Tensor, target_B: Tensor) -> Tensor:
        """-log p of the true lengths, those out of reach counted as the nearest within, as a sum."""
        difference_B = (target_B - source_B).clamp(-self.reach, self.reach) + self.reach
        return nn.functional.cross_entropy(scores_BL, difference_B, reduction="sum")

    def best(self, scores_BL: Tensor, source_B: Tensor, count: int = 1) -> Tensor:
        """The `count` most probable lengths, the best first -> BK, none below 0.

        Of a short source the smallest differences all mean 0; asking for more than there are lengths gives some twice.
        """
        if count == 1:
            place_BK = scores_BL.argmax(1, keepdim=True)
        else:
            place_BK = scores_BL.topk(min(count, scores_BL.shape[1]), 1).indices
        return (place_BK + (source_B[:, None] - self.reach)).clamp(min=0)
