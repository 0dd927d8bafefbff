"""Pooling: one vector per text from the states of its tokens.

    attention               Σ_s α_s h_s,  α = softmax_s(q · tanh(W h_s + b) / √D),  q learned
    attention-from-pooled   the same with q = tanh(U p + c), where p is the encoder's pooled output of the text
    mean                    the mean of the states
    max                     the largest of each component
    first                   the first state: that of [CLS], if the encoder has one

Attention pooling is that of Yang et al., "Hierarchical Attention Networks for Document Classification", 2016. Padding
is ignored.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

from chainrule.layers.fused.linear import Linear

PoolingKind = Literal["attention", "attention-from-pooled", "mean", "max", "first"]


class Pooling(nn.Module):
    """One vector per text."""

    def forward(self, states_BSD: Tensor, mask_BS: Tensor, pooled_BE: Tensor) -> Tensor:
        """States, a mask that is False at padding, and the encoder's pooled output -> one vector per text, BD."""
        raise TypeError(f"{type(self).__name__} must define forward")

    def weights(self, states_BSD: Tensor, mask_BS: Tensor, pooled_BE: Tensor) -> Tensor | None:
        """The weight of each state, BS: a distribution over the positions that are not padding; None: no attention."""
        return None


class AttentionPooling(Pooling):
    """The mean of the states, weighted by their similarity to a learned query."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.key = Linear(width, width)
        self.query_D = nn.Parameter(torch.empty(width).normal_(std=width**-0.5))

    def weights(self, states_BSD: Tensor, mask_BS: Tensor, pooled_BE: Tensor) -> Tensor:
        """The weight of each state, BS: a distribution over the positions that are not padding."""
        return _weights(self.key(states_BSD).tanh() @ self.query_D, mask_BS, len(self.query_D))

    def forward(self, states_BSD: Tensor, mask_BS: Tensor, pooled_BE: Tensor) -> Tensor:
        return _weighted_sum(self.weights(states_BSD, mask_BS, pooled_BE), states_BSD, mask_BS)


class PooledAttention(Pooling):
    """The mean of the states, weighted by their similarity to a query from the pooled output."""

    def __init__(self, width: int, pooled_width: int) -> None:
        super().__init__()
        self.query = Linear(pooled_width, width)
        self.key = Linear(width, width)

    def weights(self, states_BSD: Tensor, mask_BS: Tensor, pooled_BE: Tensor) -> Tensor:
        """The weight of each state, BS: a distribution over the positions that are not padding."""
        query_BD1 = self.query(pooled_BE).tanh()[:, :, None]
        scores_BS1 = self.key(states_BSD).tanh() @ query_BD1
        return _weights(scores_BS1[:, :, 0], mask_BS, states_BSD.shape[2])

    def forward(self, states_BSD: Tensor, mask_BS: Tensor, pooled_BE: Tensor) -> Tensor:
        return _weighted_sum(self.weights(states_BSD, mask_BS, pooled_BE), states_BSD, mask_BS)


class MeanPooling(Pooling):
    """The mean of the states."""

    def forward(self, states_BSD: Tensor, mask_BS: Tensor, pooled_BE: Tensor) -> Tensor:
        return _zero_padding(states_BSD, mask_BS).sum(1) / mask_BS.sum(1, keepdim=True)


class MaxPooling(Pooling):
    """The largest value of each component."""

    def forward(self, states_BSD: Tensor, mask_BS: Tensor, pooled_BE: Tensor) -> Tensor:
        return states_BSD.masked_fill(~mask_BS[:, :, None], -math.inf).amax(1)


class FirstPooling(Pooling):
    """The first state."""

    def forward(self, states_BSD: Tensor, mask_BS: Tensor, pooled_BE: Tensor) -> Tensor:
        return states_BSD[:, 0]


def make_pooling(kind: PoolingKind, width: int, pooled_width: int) -> Pooling:
    """The pooling of a kind, for states and pooled outputs of these widths."""
    if kind == "attention":
        return AttentionPooling(width)
    if kind == "attention-from-pooled":
        return PooledAttention(width, pooled_width)
    return {"mean": MeanPooling, "max": MaxPooling, "first": FirstPooling}[kind]()


def _weights(scores_BS: Tensor, mask_BS: Tensor, width: int) -> Tensor:
    """The softmax of scaled scores over the positions that are not padding, BS."""
    return (scores_BS / math.sqrt(width)).masked_fill(~mask_BS, -math.inf).softmax(1)


def _weighted_sum(weights_BS: Tensor, states_BSD: Tensor, mask_BS: Tensor) -> Tensor:
    """Σ_s α_s h_s, BD."""
    return (weights_BS[:, None] @ _zero_padding(states_BSD, mask_BS))[:, 0]


def _zero_padding(states_BSD: Tensor, mask_BS: Tensor) -> Tensor:
    """The states with zeros at padding, where they are undefined."""
    return states_BSD.masked_fill(~mask_BS[:, :, None], 0.0)
