"""Training losses that use a sample of the vocabulary: the importance-sampled softmax, and noise contrast.

Both draw one set of K words for the whole batch, so that the scores are one small matrix product, and gather each of
the R distinct rows once. Evaluation uses the full softmax over the same scores.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from chainrule.layers.outputs.base import (
    OutputConfig,
    WordVectors,
    distinct,
    frequency_order,
    weighted_sum,
)
from chainrule.layers.outputs.fused import linear_cross_entropy
from chainrule.registry import OUTPUTS
from chainrule.types import Vocabulary


class SamplerConfig(OutputConfig):
    """The options of the sampled softmax."""

    samples: int = Field(default=1024, ge=1)
    proposal: Literal["log-uniform", "unigram"] = "log-uniform"
    power: float = Field(default=1.0, ge=0.0)  # exponent of the unigram counts: below 1 flattens the proposal


class NceConfig(SamplerConfig):
    """The options of noise-contrastive estimation."""

    proposal: Literal["log-uniform", "unigram"] = "unigram"


class Proposal(nn.Module):
    """A fixed distribution over the vocabulary, sampled by inverting its cumulative sum."""

    prob_V: Tensor
    cumulative_V: Tensor

    def __init__(self, config: SamplerConfig, vocabulary: Vocabulary) -> None:
        super().__init__()
        prob_V = log_uniform(vocabulary) if config.proposal == "log-uniform" else unigram(vocabulary, config.power)
        # Both follow from the counts, so checkpoints do not contain them.
        self.register_buffer("prob_V", prob_V.float(), persistent=False)
        self.register_buffer("cumulative_V", prob_V.cumsum(0), persistent=False)

    def draw(self, samples: int) -> Tensor:
        """Tokens drawn with replacement from the global generator of torch, K."""
        point_K = torch.rand(samples, dtype=self.cumulative_V.dtype, device=self.cumulative_V.device)
        return torch.searchsorted(self.cumulative_V, point_K, right=True).clamp_(max=len(self.cumulative_V) - 1)


def log_uniform(vocabulary: Vocabulary) -> Tensor:
    """q = log((r + 2) / (r + 1)) / log(V + 1) for the word of frequency rank r = 0, 1, …, in float64."""
    rank_V = torch.arange(vocabulary.size, dtype=torch.float64)
    prob_V = torch.empty_like(rank_V)
    prob_V[frequency_order(vocabulary)] = ((rank_V + 2) / (rank_V + 1)).log() / np.log(vocabulary.size + 1)
    return prob_V


def unigram(vocabulary: Vocabulary, power: float) -> Tensor:
    """q in proportion to count^power, unseen words counted once, in float64."""
    weight_V = torch.from_numpy(np.maximum(vocabulary.counts_V, 1).astype(np.float64) ** power)
    return weight_V / weight_V.sum()


class _SampledLayer(WordVectors):
    """What the two layers share: the proposal, and the rows that a batch needs."""

    config: SamplerConfig
    bias_V: nn.Parameter

    def __init__(self, config: SamplerConfig, width: int, vocabulary: Vocabulary) -> None:
        super().__init__(config, width, vocabulary)
        self.proposal = Proposal(config, vocabulary)

    def _rows(self, targets_N: Tensor, drawn_K: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """(rows_R of all words needed, their vectors RD, their biases R, the index in R of each word, V)."""
        rows_R, index_V = distinct(torch.cat([targets_N, drawn_K]), self.size)
        vectors_RD = functional.embedding(rows_R, self.weight_VD)
        return rows_R, vectors_RD, self.bias_V[rows_R], index_V


@OUTPUTS.register("sampled")
class Sampled(_SampledLayer):
    """The softmax whose normaliser is estimated from drawn words (Bengio & Senécal 2003; Jean et al. 2015).

    Z ≈ exp(s_target) + Σ exp(s_w) / π_w over the distinct drawn words other than the target, where
    π_w = 1 - (1 - q_w)^K is the probability that w is among K draws. The estimate of Z is unbiased, and exact once
    every word is drawn.
    """

    Config = SamplerConfig
    name = "sampled"

    def loss(self, hidden_ND: Tensor, targets_N: Tensor, weights_N: Tensor | None = None) -> Tensor:
        drawn_K = self.proposal.draw(self.config.samples)
        _, vectors_RD, bias_R, index_V = self._rows(targets_N, drawn_K)
        # A row that is present only as the target of another position has no part in this estimate.
        offset_R = torch.full_like(bias_R, -torch.inf, requires_grad=False)
        index_K = index_V[drawn_K]
        chance_K = -torch.expm1(self.config.samples * torch.log1p(-self.proposal.prob_V[drawn_K]))
        offset_R[index_K] = -chance_K.log()
        return linear_cross_entropy(hidden_ND, vectors_RD, bias_R, index_V[targets_N], weights_N, offset_V=offset_R)


@OUTPUTS.register("nce")
class Nce(_SampledLayer):
    """Noise-contrastive estimation (Gutmann & Hyvärinen 2010; Mnih & Teh 2012): separate the target from k noise words.

    The score is taken as a log-probability, Z = 1, so the odds that a word is the target are exp(s_w) / (k·q_w).
    """

    Config = NceConfig
    name = "nce"

    def loss(self, hidden_ND: Tensor, targets_N: Tensor, weights_N: Tensor | None = None) -> Tensor:
        drawn_K = self.proposal.draw(self.config.samples)
        rows_R, vectors_RD, bias_R, index_V = self._rows(targets_N, drawn_K)
        times_R = torch.bincount(index_V[drawn_K], minlength=len(rows_R)).to(vectors_RD.dtype)
        log_noise_R = (self.config.samples * self.proposal.prob_V[rows_R]).log()
        odds_NR = functional.linear(hidden_ND, vectors_RD, bias_R - log_noise_R).to(vectors_RD.dtype)
        text_N = functional.softplus(-odds_NR.gather(1, index_V[targets_N][:, None])[:, 0])
        noise_N = (functional.softplus(odds_NR) * times_R).sum(1)
        return weighted_sum(text_N + noise_N, weights_N)
