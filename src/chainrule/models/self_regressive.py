"""The self-regressive language model: a second LSTM reads the prediction of a first one before the final prediction.

    h_t = LSTM₁(e_t)        q_t = W [h_{t-1}; h_t] + b        p_t = softmax(E q_t)        E: the embedding table
    d_t = V LSTM₂(Eᵀ p_t)        g_t = σ(G [q_t; d_t])        features = g_t ⊙ q_t + (1 - g_t) ⊙ d_t

p_t is a first guess at the next token, and Eᵀ p_t the expected embedding under this guess.
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
    """Options of a self-regressive language model."""

    hidden: int = Field(200, ge=1, description="units of each of the two LSTMs")
    recurrent_dropout: float = Field(0.0, ge=0, lt=1, description="share of the recurrent weights dropped in a chunk")


class SelfRegressiveState(NamedTuple):
    """The states of both LSTMs, and the last output of the first."""

    first: State
    second: State
    last_B1U: Tensor


@language_model("sr", family="self-regressive")
class SelfRegressive(FeatureLayer):
    """A second LSTM reads the expected embedding under the prediction of the first."""

    Config = SelfRegressiveConfig

    def __init__(self, config: SelfRegressiveConfig, embedding: nn.Embedding) -> None:
        super().__init__(config, embedding)
        self._embedding = [embedding]  # in a list, so that the table is not registered a second time
        self.width, self.hidden = config.embedding, config.hidden
        self.first = Recurrence("lstm", config.embedding, config.hidden, recurrent_dropout=config.recurrent_dropout)
        self.second = Recurrence("lstm", config.embedding, config.hidden, recurrent_dropout=config.recurrent_dropout)
        self.guess = nn.Linear(2 * config.hidden, config.embedding)
        self.decide = nn.Linear(config.hidden, config.embedding)
        self.gate = nn.Linear(2 * config.embedding, config.embedding)

    def start(self, batch: int) -> SelfRegressiveState:
        last_B1U = self.guess.weight.new_zeros(batch, 1, self.hidden)
        return SelfRegressiveState(self.first.start(batch), self.second.start(batch), last_B1U)

    def forward(self, embedded_BTD: Tensor, state: SelfRegressiveState | None) -> tuple[Tensor, SelfRegressiveState]:
        state = state or self.start(embedded_BTD.shape[0])
        hidden_BTU, first = self.first(embedded_BTD, state.first)
        earlier_BTU = torch.cat([state.last_B1U, hidden_BTU[:, :-1]], 1)
        guess_BTD = self.guess(torch.cat([earlier_BTU, hidden_BTU], 2))
        second_BTU, second = self.second(expected_embedding(guess_BTD, self._embedding[0].weight), state.second)
        decided_BTD = self.decide(second_BTU)
        gate_BTD = torch.sigmoid(self.gate(torch.cat([guess_BTD, decided_BTD], 2)))
        merged_BTD = torch.lerp(decided_BTD, guess_BTD, gate_BTD)
        return merged_BTD, SelfRegressiveState(first, second, hidden_BTU[:, -1:])
