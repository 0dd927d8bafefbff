"""The adaptive softmax (Grave et al. 2017): frequent words in a short list, rare ones in bands of narrower vectors.

Shapes: N positions, M positions whose target is in a band, D width, P width of a band, V vocabulary, C words of a band.
"""

from __future__ import annotations

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from chainrule.errors import ConfigError
from chainrule.layers.outputs.base import OutputConfig, OutputLayer, frequency_order
from chainrule.layers.outputs.fused import linear_cross_entropy
from chainrule.registry import OUTPUTS
from chainrule.types import Vocabulary

COVERAGE = (0.7, 0.95)
"""The shares of the running text that end the short list and the first band."""


class AdaptiveConfig(OutputConfig):
    cutoffs: tuple[int, ...] = ()  # frequency ranks at which bands begin; empty: chosen by coverage
    div_value: float = Field(default=4.0, ge=1.0)  # each band's vectors are this many times narrower than the last's


@OUTPUTS.register("adaptive")
class Adaptive(OutputLayer):
    """torch's adaptive softmax over frequency ranks, with the ids translated."""

    Config = AdaptiveConfig
    name = "adaptive"
    rank_V: Tensor
    cutoffs: Tensor

    def __init__(self, config: AdaptiveConfig, width: int, vocabulary: Vocabulary) -> None:
        super().__init__(config, width, vocabulary)
        cutoffs = config.cutoffs or default_cutoffs(vocabulary, width, config.div_value)
        _check(cutoffs, width, vocabulary.size, config.div_value)
        self.softmax = nn.AdaptiveLogSoftmaxWithLoss(
            width, vocabulary.size, list(cutoffs), div_value=config.div_value, head_bias=True
        )
        self.register_buffer("rank_V", torch.argsort(frequency_order(vocabulary)))
        self.register_buffer("cutoffs", torch.tensor(cutoffs), persistent=False)

    def loss(self, hidden_ND: Tensor, targets_N: Tensor, weights_N: Tensor | None = None) -> Tensor:
        weights_N = hidden_ND.new_ones(len(targets_N)) if weights_N is None else weights_N
        head, cutoffs, rank_N = self.softmax.head, self.softmax.cutoffs, self.rank_V[targets_N]
        # In the head a word of the short list stands for itself, any other for its band.
        band_N = torch.bucketize(rank_N, self.cutoffs, right=True)
        choice_N = torch.where(band_N == 0, rank_N, cutoffs[0] + band_N - 1)
        loss = linear_cross_entropy(hidden_ND, head.weight, head.bias, choice_N, weights_N)
        for band, layers in enumerate(self.softmax.tail):
            project_PD, vectors_CP = layers.parameters()
            here_M = (band_N == band + 1).nonzero()[:, 0]
            narrow_MP = functional.linear(hidden_ND[here_M], project_PD)
            within_M = rank_N[here_M] - cutoffs[band]
            loss = loss + linear_cross_entropy(narrow_MP, vectors_CP, None, within_M, weights_N[here_M])
        return loss

    def log_prob(self, hidden_ND: Tensor, targets_N: Tensor) -> Tensor:
        log_prob_N: Tensor = self.softmax(hidden_ND, self.rank_V[targets_N]).output
        return log_prob_N

    def log_probs(self, hidden_ND: Tensor) -> Tensor:
        return self.softmax.log_prob(hidden_ND)[:, self.rank_V]


def default_cutoffs(vocabulary: Vocabulary, width: int, div_value: float) -> tuple[int, ...]:
    """Bands by coverage of the text, as many as the width can still divide, always at least one."""
    counts_V = np.sort(np.asarray(vocabulary.counts_V, dtype=np.float64) + 1)[::-1]
    covered_V = np.cumsum(counts_V) / counts_V.sum()
    ranks = np.searchsorted(covered_V, COVERAGE) + 1
    cutoffs = sorted({int(np.clip(rank, 1, vocabulary.size - 1)) for rank in ranks})
    while len(cutoffs) > 1 and width // div_value ** len(cutoffs) < 1:
        cutoffs.pop()
    return tuple(cutoffs)


def _check(cutoffs: tuple[int, ...], width: int, size: int, div_value: float) -> None:
    if list(cutoffs) != sorted(set(cutoffs)) or cutoffs[0] < 1 or cutoffs[-1] >= size:
        raise ConfigError(
            f"the adaptive cutoffs are {list(cutoffs)}, but they must rise between 1 and {size - 1} "
            f"for a vocabulary of {size}: leave them out to have them chosen"
        )
    if width // div_value ** len(cutoffs) < 1:
        raise ConfigError(
            f"the last of {len(cutoffs)} adaptive bands would be {width}/{div_value:g}^{len(cutoffs)} < 1 wide: "
            "widen the model, lower div_value or give fewer cutoffs"
        )
