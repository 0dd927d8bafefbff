"""The adaptive softmax (Grave et al. 2017): frequent words in a short list, rare ones in bands of narrower vectors.

Shapes: N positions, M positions whose target is in a band, D width, P width of a band, V vocabulary, C words of a band.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

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
        self.head = nn.Linear(width, cutoffs[0] + len(cutoffs))
        widths = [int(width // config.div_value ** (band + 1)) for band in range(len(cutoffs))]
        self.projects = nn.ModuleList(nn.Linear(width, narrow, bias=False) for narrow in widths)
        sizes = [end - begin for begin, end in pairwise(self.ends)]
        self.bands = nn.ModuleList(nn.Linear(narrow, size) for narrow, size in zip(widths, sizes, strict=True))
        self.register_buffer("rank_V", torch.argsort(frequency_order(vocabulary)))
        self.register_buffer("cutoffs", torch.tensor(cutoffs), persistent=False)
        self._start_from_frequencies(vocabulary)

    @torch.no_grad()
    def _start_from_frequencies(self, vocabulary: Vocabulary) -> None:
        """Biases that make the frequencies of the words, within their band, where training begins."""
        by_rank_V = torch.from_numpy(np.sort(np.asarray(vocabulary.counts_V, dtype=np.float64) + 1)[::-1].copy())
        short, *bands = by_rank_V.tensor_split(self.ends[:-1])
        self.head.bias.copy_(torch.cat([short, *(band.sum()[None] for band in bands)]).log())
        self.head.bias.sub_(self.head.bias.logsumexp(0))
        for layer, band in zip(self.bands, bands, strict=True):
            layer.bias.copy_((band / band.sum()).log())  # type: ignore[operator]

    def loss(self, hidden_ND: Tensor, targets_N: Tensor, weights_N: Tensor | None = None) -> Tensor:
        weights_N = hidden_ND.new_ones(len(targets_N)) if weights_N is None else weights_N
        rank_N = self.rank_V[targets_N]
        # In the head a word of the short list stands for itself, any other for its band.
        band_N = torch.bucketize(rank_N, self.cutoffs, right=True)
        choice_N = torch.where(band_N == 0, rank_N, self.ends[0] + band_N - 1)
        loss = linear_cross_entropy(hidden_ND, self.head.weight, self.head.bias, choice_N, weights_N)
        for number, (project, band) in enumerate(zip(self.projects, self.bands, strict=True)):
            here_M = (band_N == number + 1).nonzero()[:, 0]
            within_M = rank_N[here_M] - self.ends[number]
            narrow_MP = project(hidden_ND[here_M])
            loss = loss + linear_cross_entropy(narrow_MP, band.weight, band.bias, within_M, weights_N[here_M])  # type: ignore[arg-type]
        return loss

    def log_probs(self, hidden_ND: Tensor) -> Tensor:
        head_NC = self.head(hidden_ND).to(self.head.weight.dtype).log_softmax(-1)
        parts = [head_NC[:, : self.ends[0]]]
        for number, (project, band) in enumerate(zip(self.projects, self.bands, strict=True)):
            chosen_N1 = head_NC[:, self.ends[0] + number, None]
            parts.append(chosen_N1 + band(project(hidden_ND)).to(self.head.weight.dtype).log_softmax(-1))
        return torch.cat(parts, 1)[:, self.rank_V]


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
