"""One vector of many: what a text is, by the states of its tokens.

    attention   Σ_s α_s h_s,  α = softmax_s(q · tanh(W h_s + b) / √D),  q learned
    mean        the mean of the states       max   the largest of each component       first   the first token's state

Yang et al., "Hierarchical Attention Networks for Document Classification", 2016, pool so; padding has no part in it.
Legend: B batch, S places of the text, D width.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

PoolingKind = Literal["attention", "mean", "max", "first"]


class AttentionPooling(nn.Module):
    """A learned query that asks each state how much it matters."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.key = nn.Linear(width, width)
        self.query_D = nn.Parameter(torch.empty(width).normal_(std=width**-0.5))

    def weights(self, states_BSD: Tensor, mask_BS: Tensor) -> Tensor:
        """How much each state matters, BS: a distribution over the places that are no padding."""
        scores_BS = self.key(states_BSD).tanh() @ self.query_D / math.sqrt(len(self.query_D))
        weights_BS: Tensor = scores_BS.masked_fill(~mask_BS, -math.inf).softmax(1)
        return weights_BS

    def forward(self, states_BSD: Tensor, mask_BS: Tensor) -> Tensor:
        """The states of each token, and which are no padding -> one vector a text, BD."""
        pooled_B1D = self.weights(states_BSD, mask_BS)[:, None] @ _without_padding(states_BSD, mask_BS)
        return pooled_B1D[:, 0]


class MeanPooling(nn.Module):
    """The mean of the states."""

    def forward(self, states_BSD: Tensor, mask_BS: Tensor) -> Tensor:
        """The states of each token, and which are no padding -> one vector a text, BD."""
        return _without_padding(states_BSD, mask_BS).sum(1) / mask_BS.sum(1, keepdim=True)


class MaxPooling(nn.Module):
    """The largest of each component."""

    def forward(self, states_BSD: Tensor, mask_BS: Tensor) -> Tensor:
        """The states of each token, and which are no padding -> one vector a text, BD."""
        return states_BSD.masked_fill(~mask_BS[:, :, None], -math.inf).amax(1)


class FirstPooling(nn.Module):
    """The state of the first token."""

    def forward(self, states_BSD: Tensor, mask_BS: Tensor) -> Tensor:
        """The states of each token -> one vector a text, BD."""
        return states_BSD[:, 0]


def make_pooling(kind: PoolingKind, width: int) -> nn.Module:
    """The pooling of a kind, for states of a width."""
    if kind == "attention":
        return AttentionPooling(width)
    return {"mean": MeanPooling, "max": MaxPooling, "first": FirstPooling}[kind]()


def _without_padding(states_BSD: Tensor, mask_BS: Tensor) -> Tensor:
    """States with zeros for padding, whose own may be anything."""
    return states_BSD.masked_fill(~mask_BS[:, :, None], 0.0)
