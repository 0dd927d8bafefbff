"""What every output layer answers, and what the layers with one vector a word share.

Shapes: N positions, D width, V vocabulary, R distinct rows, C positions of a chunk.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor, nn
from torch.nn import functional

from chainrule.errors import ConfigError
from chainrule.types import Vocabulary

CHUNK_BYTES = 32 * 2**20
"""The most that one table of positions by words may take when only some of its entries are wanted."""


class OutputConfig(BaseModel):
    """The options of an output layer."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class OutputLayer(nn.Module):
    """hidden_ND to p(. | position), built as `Layer(config, width, vocabulary)`.

    `loss` is what training lowers: the negative log-likelihood itself, or an estimate that is cheaper on a large
    vocabulary. `log_prob` and `log_probs` are always exact and normalised.
    """

    Config: ClassVar[type[OutputConfig]] = OutputConfig
    tieable: ClassVar[bool] = False
    name: ClassVar[str]

    def __init__(self, config: OutputConfig, width: int, vocabulary: Vocabulary) -> None:
        super().__init__()
        if vocabulary.size < 2:
            raise ConfigError(
                f"an output layer needs at least 2 tokens to choose from, but the vocabulary has {vocabulary.size}: "
                "train on a longer text or with another tokenizer"
            )
        self.config, self.width, self.size = config, width, vocabulary.size

    @abstractmethod
    def loss(self, hidden_ND: Tensor, targets_N: Tensor, weights_N: Tensor | None = None) -> Tensor:
        """The training loss in nats, summed over the positions, each times its weight."""

    @abstractmethod
    def log_probs(self, hidden_ND: Tensor) -> Tensor:
        """log p of every token as NV, normalised."""

    def log_prob(self, hidden_ND: Tensor, targets_N: Tensor) -> Tensor:
        """log p of the targets as N, normalised, in bounded memory."""
        rows = max(1, CHUNK_BYTES // (4 * self.size))
        chunks = zip(hidden_ND.split(rows), targets_N.split(rows), strict=True)
        return torch.cat([self.log_probs(hidden_CD).gather(1, targets_C[:, None]) for hidden_CD, targets_C in chunks])[
            :, 0
        ]

    def tie(self, weight_VD: nn.Parameter) -> None:
        """Use the embedding as the word vectors of this layer."""
        raise ConfigError(
            f"the output layer '{self.name}' has no vector for each word, so it cannot share the embedding: "
            "turn tying off or choose softmax, sampled or nce"
        )


class WordVectors(OutputLayer):
    """The layers whose scores are s(w, h) = w·h + b_w: one vector and one bias a word."""

    tieable = True

    def __init__(self, config: OutputConfig, width: int, vocabulary: Vocabulary) -> None:
        super().__init__(config, width, vocabulary)
        self.weight_VD = nn.Parameter(torch.empty(vocabulary.size, width).uniform_(-(width**-0.5), width**-0.5))
        self.bias_V: nn.Parameter | None
        # Starting from the word frequencies spares the first steps, and lets nce take the sum of exp(s) as one.
        self.bias_V = nn.Parameter(log_unigram(vocabulary))

    def tie(self, weight_VD: nn.Parameter) -> None:
        if weight_VD.shape != self.weight_VD.shape:
            raise ConfigError(
                f"cannot tie an embedding of shape {tuple(weight_VD.shape)} to output vectors of shape "
                f"{tuple(self.weight_VD.shape)}: make the embedding as wide as the last layer, or turn tying off"
            )
        self.weight_VD = weight_VD

    def log_probs(self, hidden_ND: Tensor) -> Tensor:
        scores_NV = functional.linear(hidden_ND, self.weight_VD, self.bias_V)
        return scores_NV.to(self.weight_VD.dtype).log_softmax(1)  # under mixed precision the scores come in half


def log_unigram(vocabulary: Vocabulary) -> Tensor:
    """log of the add-one smoothed relative frequencies, V."""
    counts_V = np.asarray(vocabulary.counts_V, dtype=np.float64) + 1
    return torch.from_numpy(np.log(counts_V / counts_V.sum())).float()


def frequency_order(vocabulary: Vocabulary) -> Tensor:
    """Token ids from the most frequent to the rarest, V."""
    return torch.from_numpy(np.argsort(-np.asarray(vocabulary.counts_V, dtype=np.int64), kind="stable"))


def distinct(ids: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Ids below `size` in any shape -> (the distinct ones ascending, R; where in those each id of 0..size-1 is).

    Two passes over a table of the vocabulary, which is quicker than sorting the ids. Entries of the second result for
    ids that do not occur mean nothing.
    """
    seen = torch.zeros(size, dtype=torch.bool, device=ids.device)
    seen[ids] = True
    return seen.nonzero()[:, 0], seen.cumsum(0).sub_(1)


def weighted_sum(values_N: Tensor, weights_N: Tensor | None) -> Tensor:
    """Σ weight · value, a scalar; no weights are ones."""
    return values_N.sum() if weights_N is None else (values_N * weights_N).sum()
