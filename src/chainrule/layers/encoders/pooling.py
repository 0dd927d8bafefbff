"""Pooling: one vector per text from the states of its tokens.

    attention   Σ_s α_s h_s,  α = softmax_s(q · tanh(W h_s + b) / √D),  q learned
    mean        the mean of the states       max   the largest of each component       first   the first token's state

Attention pooling is that of Yang et al., "Hierarchical Attention Networks for Document Classification", 2016. Padding
is ignored.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

PoolingKind = Literal["attention", "mean", "max", "first"]


class AttentionPooling(nn.Module):
    """The mean of the states, weighted by their similarity to a learned query."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.key = nn.Linear(width, width)
        self.query_D = nn.Parameter(torch.empty(width).normal_(std=width**-0.5))

    def weights(self, states_BSD: Tensor, mask_BS: Tensor) -> Tensor:
        """The weight of each state, BS: a distribution over the positions that are not padding."""
        scores_BS = self.key(states_BSD).tanh() @ self.query_D / math.sqrt(len(self.query_D))
        weights_BS: Tensor = scores_BS.masked_fill(~mask_BS, -math.inf).softmax(1)
        return weights_BS

    def forward(self, states_BSD: Tensor, mask_BS: Tensor) -> Tensor:
        """States, and a mask that is False at padding -> one vector per text, BD."""
        pooled_B1D = self.weights(states_BSD, mask_BS)[:, None] @ _zero_padding(states_BSD, mask_BS)
        return pooled_B1D[:, 0]


class MeanPooling(nn.Module):
    """The mean of the states."""

    def forward(self, states_BSD: Tensor, mask_BS: Tensor) -> Tensor:
        """States, and a mask that is False at padding -> one vector per text, BD."""
        return _zero_padding(states_BSD, mask_BS).sum(1) / mask_BS.sum(1, keepdim=True)


class MaxPooling(nn.Module):
    """The largest value of each component."""

    def forward(self, states_BSD: Tensor, mask_BS: Tensor) -> Tensor:
        """States, and a mask that is False at padding -> one vector per text, BD."""
        return states_BSD.masked_fill(~mask_BS[:, :, None], -math.inf).amax(1)


class FirstPooling(nn.Module):
    """The state of the first token."""

    def forward(self, states_BSD: Tensor, mask_BS: Tensor) -> Tensor:
        """States -> one vector per text, BD."""
        return states_BSD[:, 0]


def make_pooling(kind: PoolingKind, width: int) -> nn.Module:
    """The pooling of a kind, for states of this width."""
    if kind == "attention":
        return AttentionPooling(width)
    return {"mean": MeanPooling, "max": MaxPooling, "first": FirstPooling}[kind]()


def _zero_padding(states_BSD: Tensor, mask_BS: Tensor) -> Tensor:
    """The states with zeros at padding, where they are undefined."""
    return states_BSD.masked_fill(~mask_BS[:, :, None], 0.0)
