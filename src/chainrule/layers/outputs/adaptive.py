"""The adaptive softmax (Grave et al. 2017): frequent words in a short list, rare ones in bands of narrower vectors.

The head is a softmax over C classes: the words of the short list and the bands. The vectors of a band are E wide.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from chainrule.errors import ConfigError
from chainrule.layers.fused.linear import Linear
from chainrule.layers.outputs.base import OutputConfig, OutputLayer, frequency_order
from chainrule.layers.outputs.fused import linear_cross_entropy
from chainrule.registry import OUTPUTS
from chainrule.types import Vocabulary

COVERAGE = (0.7, 0.95)
"""Shares of the running text that the short list alone, and together with the first band, cover."""


class AdaptiveConfig(OutputConfig):
    """The options of the adaptive softmax."""

    cutoffs: tuple[int, ...] = ()  # frequency ranks at which bands begin; empty: chosen by coverage
    div_value: float = Field(default=4.0, ge=1.0)  # ratio of the widths of neighbouring bands


@OUTPUTS.register("adaptive")
class Adaptive(OutputLayer):
    """p(w) = p_head(w) for frequent words, p_head(band) p_band(w) for the others, by frequency rank."""

    Config = AdaptiveConfig
    name = "adaptive"
    rank_V: Tensor
    cutoffs: Tensor

    def __init__(self, config: AdaptiveConfig, width: int, vocabulary: Vocabulary) -> None:
        super().__init__(config, width, vocabulary)
        cutoffs = config.cutoffs or default_cutoffs(vocabulary, width, config.div_value)
        _check(cutoffs, width, vocabulary.size, config.div_value)
        self.ends = [*cutoffs, vocabulary.size]
        self.head = Linear(width, cutoffs[0] + len(cutoffs))
        widths = [int(width // config.div_value ** (band + 1)) for band in range(len(cutoffs))]
        self.projects = nn.ModuleList(Linear(width, narrow, bias=False) for narrow in widths)
        sizes = [end - begin for begin, end in pairwise(self.ends)]
        self.bands = nn.ModuleList(Linear(narrow, size) for narrow, size in zip(widths, sizes, strict=True))
        self.register_buffer("rank_V", torch.argsort(frequency_order(vocabulary)))
        self.register_buffer("cutoffs", torch.tensor(cutoffs), persistent=False)
        self._set_frequency_biases(vocabulary)

    @torch.no_grad()
    def _set_frequency_biases(self, vocabulary: Vocabulary) -> None:
        """Set the biases so that training starts from the frequencies of the words within their band."""
        by_rank_V = torch.from_numpy(np.sort(np.asarray(vocabulary.counts_V, dtype=np.float64) + 1)[::-1].copy())
        short, *bands = by_rank_V.tensor_split(self.ends[:-1])
        self.head.bias.copy_(torch.cat([short, *(band.sum()[None] for band in bands)]).log())
        self.head.bias.sub_(self.head.bias.logsumexp(0))
        for layer, band in zip(self.bands, bands, strict=True):
            layer.bias.copy_((band / band.sum()).log())  # type: ignore[operator]

    def loss(self, hidden_ND: Tensor, targets_N: Tensor, weights_N: Tensor | None = None) -> Tensor:
        weights_N = hidden_ND.new_ones(len(targets_N)) if weights_N is None else weights_N
        rank_N = self.rank_V[targets_N]
        # The class of a word is the word itself if it is in the short list, otherwise its band.
        band_N = torch.bucketize(rank_N, self.cutoffs, right=True)
        class_N = torch.where(band_N == 0, rank_N, self.ends[0] + band_N - 1)
        loss = linear_cross_entropy(hidden_ND, self.head.weight, self.head.bias, class_N, weights_N)
        for number, (project, band) in enumerate(zip(self.projects, self.bands, strict=True)):
            members_M = (band_N == number + 1).nonzero()[:, 0]
            within_M = rank_N[members_M] - self.ends[number]
            narrow_ME = project(hidden_ND[members_M])
            loss = loss + linear_cross_entropy(narrow_ME, band.weight, band.bias, within_M, weights_N[members_M])  # type: ignore[arg-type]
        return loss

    def log_probs(self, hidden_ND: Tensor) -> Tensor:
        head_NC = self.head(hidden_ND).to(self.head.weight.dtype).log_softmax(-1)
        parts = [head_NC[:, : self.ends[0]]]
        for number, (project, band) in enumerate(zip(self.projects, self.bands, strict=True)):
            chosen_N1 = head_NC[:, self.ends[0] + number, None]
            parts.append(chosen_N1 + band(project(hidden_ND)).to(self.head.weight.dtype).log_softmax(-1))
        return torch.cat(parts, 1)[:, self.rank_V]


def default_cutoffs(vocabulary: Vocabulary, width: int, div_value: float) -> tuple[int, ...]:
    """Cutoffs by coverage of the text: as many bands as the width allows, at least one."""
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
            f"output.cutoffs = {list(cutoffs)}: expected increasing ranks between 1 and {size - 1} "
            f"for a vocabulary of {size}; leave them out to choose them by coverage"
        )
    if width // div_value ** len(cutoffs) < 1:
        raise ConfigError(
            f"the last of {len(cutoffs)} adaptive bands would be {width}/{div_value:g}^{len(cutoffs)} < 1 wide: "
            "use a wider model, a lower output.div_value or fewer output.cutoffs"
        )
