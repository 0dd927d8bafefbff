"""The self-regressive language model of seed 001, section 3.1: guess the next word, read the guess, decide.

A first LSTM gives p_t = softmax(E (W h_{t-1} + U h_t)) over the vocabulary, E being the embedding table. The expected
embedding under p_t feeds a second LSTM. A gate merges the first stage's features with the second's.
Legend: B batch, T time, D width of an embedding, V vocabulary.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn

from chainrule.layers.expectation import expected_embedding
from chainrule.layers.recurrent.stack import Recurrence
from chainrule.models.language_model import FeatureLayer, LanguageModelConfig, language_model
from chainrule.types import State


class SelfRegressiveConfig(LanguageModelConfig):
    """The shape of a self-regressive language model."""

    hidden: int = Field(200, ge=1, description="width of both LSTMs")
    recurrent_dropout: float = Field(0.0, ge=0, lt=1, description="share of the recurrent weights dropped for a chunk")


class Stages(NamedTuple):
    """The states of both LSTMs, and the first one's last output."""

    first: State
    second: State
    last_B1D: Tensor


@language_model("sr", family="self-regressive")
class SelfRegressive(FeatureLayer):
    """An LSTM's own prediction, embedded, feeds a second LSTM."""

    Config = SelfRegressiveConfig

    def __init__(self, config: SelfRegressiveConfig, embedding: nn.Embedding) -> None:
        super().__init__(config, embedding)
        self._embedding = [embedding]  # in a list, so that the table is not this module's parameter a second time
        self.width, self.hidden = config.embedding, config.hidden
        self.first = Recurrence("lstm", config.embedding, config.hidden, recurrent_dropout=config.recurrent_dropout)
        self.second = Recurrence("lstm", config.embedding, config.hidden, recurrent_dropout=config.recurrent_dropout)
        self.guess = nn.Linear(2 * config.hidden, config.embedding)
        self.decide = nn.Linear(config.hidden, config.embedding)
        self.gate = nn.Linear(2 * config.embedding, config.embedding)

    def start(self, batch: int) -> Stages:
        last = self.guess.weight.new_zeros(batch, 1, self.hidden)
        return Stages(self.first.start(batch), self.second.start(batch), last)

    def forward(self, embedded_BTD: Tensor, state: Stages | None) -> tuple[Tensor, Stages]:
        state = state or self.start(embedded_BTD.shape[0])
        hidden_BTD, first = self.first(embedded_BTD, state.first)
        earlier_BTD = torch.cat([state.last_B1D, hidden_BTD[:, :-1]], 1)
        guess_BTD = self.guess(torch.cat([earlier_BTD, hidden_BTD], 2))
        further_BTD, second = self.second(expected_embedding(guess_BTD, self._embedding[0].weight), state.second)
        decided_BTD = self.decide(further_BTD)
        gate_BTD = torch.sigmoid(self.gate(torch.cat([guess_BTD, decided_BTD], 2)))
        merged_BTD = torch.lerp(decided_BTD, guess_BTD, gate_BTD)
        return merged_BTD, Stages(first, second, hidden_BTD[:, -1:])
