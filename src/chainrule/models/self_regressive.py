"""The self-regressive language model: a second LSTM reads the prediction of a first one before the final prediction.

    h_t = LSTM₁(e_t)        q_t = W [h_{t-1}; h_t] + b        p_t = output(q_t)        x_t = Σ_v p_t(v) E_v
    d_t = V LSTM₂(x_t) + b'        g_t = σ(G [q_t; d_t] + b'')        features = g_t ⊙ q_t + (1 - g_t) ⊙ d_t

p_t is a first guess at the next token, by the output layer that also makes the final prediction; x_t is the expected
embedding under it, with E the embedding table. Training adds `guess_loss` times the loss of p_t to that of the final
prediction. Related: Xia et al., "Deliberation Networks: Sequence Generation Beyond One-Pass Decoding", 2017.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn

from chainrule.layers.fused.linear import Linear
from chainrule.layers.outputs.base import weighted_sum
from chainrule.layers.recurrent.stack import Recurrence
from chainrule.models.feature_layer import FeatureLayer, LanguageModelConfig
from chainrule.models.language_model import LanguageModel, Prefix
from chainrule.registry import MODELS
from chainrule.types import Batch, Outputs, State


class SelfRegressiveConfig(LanguageModelConfig):
    """Options of a self-regressive language model."""

    hidden: int = Field(200, ge=1, description="units of each of the two LSTMs")
    recurrent_dropout: float = Field(0.0, ge=0, lt=1, description="share of the recurrent weights dropped in a chunk")
    guess_loss: float = Field(0.2, ge=0, description="weight of the loss of the first prediction; 0: it has no loss")
    guess_gradient: bool = Field(
        False, description="train the first prediction also through the expected embedding that the second LSTM reads"
    )


class SelfRegressiveState(NamedTuple):
    """The states of both LSTMs, and the last output of the first."""

    first: State
    second: State
    last_B1U: Tensor


class TwoStages(FeatureLayer):
    """The two LSTMs of the model, without the output layer between them."""

    def __init__(self, config: SelfRegressiveConfig, embedding: nn.Embedding) -> None:
        super().__init__(config, embedding)
        self.width, self.hidden = config.embedding, config.hidden
        self.first = Recurrence("lstm", config.embedding, config.hidden, recurrent_dropout=config.recurrent_dropout)
        self.second = Recurrence("lstm", config.embedding, config.hidden, recurrent_dropout=config.recurrent_dropout)
        self.query = Linear(2 * config.hidden, config.embedding)
        self.decide = Linear(config.hidden, config.embedding)
        self.gate = Linear(2 * config.embedding, config.embedding)

    def start(self, batch: int) -> SelfRegressiveState:
        last_B1U = self.query.weight.new_zeros(batch, 1, self.hidden)
        return SelfRegressiveState(self.first.start(batch), self.second.start(batch), last_B1U)

    def guess(self, embedded_BTD: Tensor, state: SelfRegressiveState) -> tuple[Tensor, SelfRegressiveState]:
        """The features of the first prediction, BTD, and the state after the first stage."""
        hidden_BTU, first = self.first(embedded_BTD, state.first)
        earlier_BTU = torch.cat([state.last_B1U, hidden_BTU[:, :-1]], 1)
        query_BTD = self.query(torch.cat([earlier_BTU, hidden_BTU], 2))
        return query_BTD, state._replace(first=first, last_B1U=hidden_BTU[:, -1:])

    def merge(
        self, query_BTD: Tensor, expected_BTD: Tensor, state: SelfRegressiveState
    ) -> tuple[Tensor, SelfRegressiveState]:
        """The features of the final prediction, BTD, and the state after both stages."""
        hidden_BTU, second = self.second(expected_BTD, state.second)
        decided_BTD = self.decide(hidden_BTU)
        gate_BTD = torch.sigmoid(self.gate(torch.cat([query_BTD, decided_BTD], 2)))
        return torch.lerp(decided_BTD, query_BTD, gate_BTD), state._replace(second=second)


@MODELS.register("sr", family="self-regressive", task="lm")
class SelfRegressive(LanguageModel):
    """A second LSTM reads the expected embedding under the prediction of the first."""

    suggestions = (
        "model.guess_loss=0 with model.guess_gradient=true: slightly better on characters",
        "chainrule compare TEXT --models sr,lstm",
    )

    Features = TwoStages
    Config = SelfRegressiveConfig
    config: SelfRegressiveConfig
    features: TwoStages

    def forward(self, batch: Batch, state: Prefix | None = None) -> Outputs:
        """Read the inputs of a batch -> hidden_BTD that predict its targets, the state, the loss of the guess."""
        before = None if state is None else state.features
        has_loss = self.training and self.config.guess_loss > 0
        targets_N = batch.targets_BT.flatten() if has_loss else None
        hidden_BTD, after, log_prob_N = self._read_stages(batch.inputs_BT, before, targets_N)
        extra = None
        if log_prob_N is not None:
            weights_N = None if batch.weights_BT is None else batch.weights_BT.flatten()
            extra = -self.config.guess_loss * weighted_sum(log_prob_N, weights_N)
        return Outputs(hidden_BTD, None if state is None else Prefix(after, None, None), extra)

    def _read(self, tokens_BT: Tensor, features: State) -> tuple[Tensor, State]:
        hidden_BTD, features, _ = self._read_stages(tokens_BT, features, None)
        return hidden_BTD, features

    def _read_stages(
        self, tokens_BT: Tensor, state: SelfRegressiveState | None, targets_N: Tensor | None
    ) -> tuple[Tensor, SelfRegressiveState, Tensor | None]:
        """Read tokens -> hidden_BTD, the state after them, and log p of the targets by the first prediction, N."""
        query_BTD, state = self.features.guess(self._embed(tokens_BT), state or self.features.start(len(tokens_BT)))
        query_ND = self._drop(query_BTD).flatten(0, 1)
        expected_ND, log_prob_N = self.output.expect(query_ND, self.embedding.weight, targets_N)
        if not self.config.guess_gradient:
            expected_ND = expected_ND.detach()
        expected_BTD = self._drop(expected_ND.view(query_BTD.shape))
        hidden_BTD, state = self.features.merge(query_BTD, expected_BTD, state)
        return self._drop(hidden_BTD), state, log_prob_N

    @classmethod
    def outdated(cls, names: Collection[str]) -> str | None:
        if "features.guess.weight" not in names:
            return None
        return (
            "this 'sr' run is of chainrule 0.2 or older, whose first prediction used the embedding table instead of "
            "the output layer, so its weights do not fit; train it again"
        )
