"""The interface of output layers, and what the layers with one vector per word share."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from chainrule.base.parameters import HasTables
from chainrule.engines.decode.weights import Linear
from chainrule.errors import ConfigError
from chainrule.layers.expectation import softmax_expectation
from chainrule.types import Vocabulary

CHUNK_BYTES = 32 * 2**20
"""Largest table of positions by words that is computed at once when only some entries are needed."""


class OutputConfig(BaseModel):
    """The options of an output layer."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class OutputLayer(HasTables, nn.Module):
    """hidden_ND to p(. | position), built as `Layer(config, width, vocabulary)`.

    `loss` is minimised in training: the negative log-likelihood, or an estimate that is cheaper for a large vocabulary.
    `log_prob` and `log_probs` are always exact and normalised.
    """

    Config: ClassVar[type[OutputConfig]] = OutputConfig
    only_tables = True
    tieable: ClassVar[bool] = False
    has_word_vectors: ClassVar[bool] = False  # whether `weight_VD` and `bias_V` score words as w·h + b_w
    name: ClassVar[str]

    def __init__(self, config: OutputConfig, width: int, vocabulary: Vocabulary) -> None:
        super().__init__()
        if vocabulary.size < 2:
            raise ConfigError(
                f"an output layer needs a vocabulary of at least 2 tokens, but this one has {vocabulary.size}: "
                "train on a longer text or with another tokenizer"
            )
        self.config, self.width, self.size = config, width, vocabulary.size

    @abstractmethod
    def loss(self, hidden_ND: Tensor, targets_N: Tensor, weights_N: Tensor | None = None) -> Tensor:
        """The training loss in nats, summed over the positions, each multiplied by its weight."""

    @abstractmethod
    def log_probs(self, hidden_ND: Tensor) -> Tensor:
        """log p of every token as NV, normalised."""

    def log_prob(self, hidden_ND: Tensor, targets_N: Tensor) -> Tensor:
        """log p of the targets as N, normalised, in bounded memory."""
        rows = max(1, CHUNK_BYTES // (4 * self.size))
        chunks = zip(hidden_ND.split(rows), targets_N.split(rows), strict=True)
        return torch.cat([self.log_probs(hidden_MD).gather(1, targets_M[:, None]) for hidden_MD, targets_M in chunks])[
            :, 0
        ]

    def forward(self, hidden_ND: Tensor) -> Tensor:
        """The same as `log_probs`."""
        return self.log_probs(hidden_ND)

    def expect(self, hidden_ND: Tensor, table_VE: Tensor, targets_N: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Σ_v p(v | hidden) table_v as NE, and log p of the targets as N if they are given.

        The parameters of the layer and the table are constants: only `hidden_ND` gets a gradient.
        """
        constants = {name: parameter.detach() for name, parameter in self.named_parameters()}
        log_probs_NV = functional_call(self, constants, (hidden_ND,))
        expected_NE = log_probs_NV.exp() @ table_VE.detach()
        return expected_NE, None if targets_N is None else log_probs_NV.gather(1, targets_N[:, None])[:, 0]

    @property
    def compiled(self) -> Linear | None:
        """The linear layer whose normalised exponentials are this distribution; None: it is of another kind."""
        return None

    def tie(self, weight_VD: nn.Parameter) -> None:
        """Use the embedding as the word vectors of this layer."""
        raise ConfigError(
            f"the output layer '{self.name}' has no vector per word, so it cannot share the embedding: "
            "set model.tied=false, or choose softmax, sampled or nce"
        )


class WordVectors(OutputLayer):
    """The layers whose scores are s(w, h) = w·h + b_w: one vector and one bias per word."""

    tieable = True
    has_word_vectors = True

    def __init__(self, config: OutputConfig, width: int, vocabulary: Vocabulary) -> None:
        super().__init__(config, width, vocabulary)
        self.weight_VD = nn.Parameter(torch.empty(vocabulary.size, width).uniform_(-(width**-0.5), width**-0.5))
        self.bias_V: nn.Parameter | None
        # Starting from the word frequencies saves the first steps, and nce may assume that exp(s) sums to one.
        self.bias_V = nn.Parameter(log_unigram(vocabulary))

    def tie(self, weight_VD: nn.Parameter) -> None:
        if weight_VD.shape != self.weight_VD.shape:
            raise ConfigError(
                f"cannot tie an embedding of shape {tuple(weight_VD.shape)} to output vectors of shape "
                f"{tuple(self.weight_VD.shape)}: make the embedding as wide as the last layer, or set model.tied=false"
            )
        self.weight_VD = weight_VD

    @property
    def compiled(self) -> Linear | None:
        bias = None if self.bias_V is None else self.bias_V.detach().numpy()
        return Linear(self.weight_VD.detach().numpy(), bias)

    def log_probs(self, hidden_ND: Tensor) -> Tensor:
        scores_NV = functional.linear(hidden_ND, self.weight_VD, self.bias_V)
        return scores_NV.to(self.weight_VD.dtype).log_softmax(1)  # under mixed precision the scores are half precision

    def expect(self, hidden_ND: Tensor, table_VE: Tensor, targets_N: Tensor | None) -> tuple[Tensor, Tensor | None]:
        expected_NE, log_total_N = softmax_expectation(hidden_ND, self.weight_VD, self.bias_V, table_VE)
        if targets_N is None:
            return expected_NE, None
        score_N = (hidden_ND * self.weight_VD.detach()[targets_N]).sum(1)
        if self.bias_V is not None:
            score_N = score_N + self.bias_V.detach()[targets_N]
        return expected_NE, score_N - log_total_N


def log_unigram(vocabulary: Vocabulary) -> Tensor:
    """The logarithm of the add-one smoothed relative frequencies, V."""
    counts_V = np.asarray(vocabulary.counts_V, dtype=np.float64) + 1
    return torch.from_numpy(np.log(counts_V / counts_V.sum())).float()


def frequency_order(vocabulary: Vocabulary) -> Tensor:
    """Token ids from the most frequent to the rarest, V."""
    return torch.from_numpy(np.argsort(-np.asarray(vocabulary.counts_V, dtype=np.int64), kind="stable"))


def distinct(ids: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Ids below `size` in any shape -> (the distinct ids in ascending order, R; the index in R of every id).

    Two passes over a table of the vocabulary, which is faster than sorting the ids. The index of an id that does not
    occur is undefined.
    """
    seen = torch.zeros(size, dtype=torch.bool, device=ids.device)
    seen[ids] = True
    return seen.nonzero()[:, 0], seen.cumsum(0).sub_(1)


def weighted_sum(values_N: Tensor, weights_N: Tensor | None) -> Tensor:
    """Σ weight · value, a scalar; None: all weights are one."""
    return values_N.sum() if weights_N is None else (values_N * weights_N).sum()
