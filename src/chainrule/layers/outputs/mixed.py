"""A mixture of two predictions of one position, p = (1-γ)·p_first + γ·p_second, over any output layer.

Features are packed as [first D | second D | log γ/(1-γ)]: a model passes one tensor to its output layer, and
objectives, scorers and caches do not depend on the mixture. Features of the plain width D are not mixed.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from chainrule.layers.outputs.base import OutputLayer, WordVectors

NEVER = -1e4
"""The log-odds of a branch without weight: its exp is 0 in every precision, and unlike -inf it can be multiplied."""


def log_odds(gamma: float) -> float:
    """log γ/(1-γ), finite at both ends."""
    if gamma <= 0:
        return NEVER
    return -NEVER if gamma >= 1 else math.log(gamma) - math.log1p(-gamma)


def mix(first: Tensor, second: Tensor, odds: Tensor) -> Tensor:
    """log((1-γ)·exp(first) + γ·exp(second)) for γ = sigmoid(odds)."""
    return torch.logaddexp(first + functional.logsigmoid(-odds), second + functional.logsigmoid(odds))


def pack(first_BTD: Tensor, second_BTD: Tensor, odds_BT: Tensor) -> Tensor:
    """The features of both predictions and the log-odds of the second -> (B, T, 2D + 1)."""
    return torch.cat([first_BTD, second_BTD, odds_BT.unsqueeze(-1)], -1)


class MixedOutput(nn.Module):
    """An output layer for packed features; `loss` is the loss of the first prediction alone."""

    def __init__(self, base: OutputLayer) -> None:
        super().__init__()
        self.base = base
        self.config, self.name, self.tieable = base.config, base.name, base.tieable
        self.width, self.size = base.width, base.size

    def loss(self, hidden_ND: Tensor, targets_N: Tensor, weights_N: Tensor | None = None) -> Tensor:
        """The training loss of the first prediction in nats, summed over the positions."""
        return self.base.loss(hidden_ND[:, : self.width], targets_N, weights_N)

    def log_probs(self, hidden_ND: Tensor) -> Tensor:
        """log p of every token as NV, normalised."""
        if hidden_ND.shape[1] == self.width:
            return self.base.log_probs(hidden_ND)
        first_ND, second_ND, odds_N1 = self.unpack(hidden_ND)
        return mix(self.base.log_probs(first_ND), self.base.log_probs(second_ND), odds_N1)

    def log_prob(self, hidden_ND: Tensor, targets_N: Tensor) -> Tensor:
        """log p of the targets as N, normalised, in bounded memory."""
        if hidden_ND.shape[1] == self.width:
            return self.base.log_prob(hidden_ND, targets_N)
        first_ND, second_ND, odds_N1 = self.unpack(hidden_ND)
        return mix(
            self.base.log_prob(first_ND, targets_N), self.base.log_prob(second_ND, targets_N), odds_N1.squeeze(1)
        )

    def unpack(self, hidden_ND: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Packed features -> first ND, second ND, odds N1."""
        first_ND, second_ND, odds_N1 = hidden_ND.split([self.width, self.width, 1], 1)
        return first_ND, second_ND, odds_N1

    def scores(self, hidden_ND: Tensor) -> Tensor:
        """log p of all tokens by one prediction, NV, up to a constant per row, which is faster to compute."""
        if isinstance(self.base, WordVectors):
            return functional.linear(hidden_ND, self.base.weight_VD, self.base.bias_V)
        return self.base.log_probs(hidden_ND)

    def tie(self, weight_VD: nn.Parameter) -> None:
        """Use the embedding as the word vectors of the layer."""
        self.base.tie(weight_VD)
