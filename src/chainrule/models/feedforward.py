"""The feed-forward language model: the last N-1 embeddings side by side, hidden layers, skip connections.

Bengio et al., "A Neural Probabilistic Language Model", 2003.
Legend: B batch, T time, D width of an embedding, N order.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from chainrule.layers.dropout import drop
from chainrule.models.language_model import FeatureLayer, LanguageModelConfig, language_model

ACTIVATIONS = {"tanh": torch.tanh, "relu": torch.relu}


class FeedforwardConfig(LanguageModelConfig):
    """The shape of a feed-forward language model."""

    order: int = Field(5, ge=2, description="N: the next word is predicted from the last N-1")
    hidden: int = Field(256, ge=1)
    layers: int = Field(1, ge=1)
    activation: Literal["tanh", "relu"] = "tanh"
    skip: bool = Field(True, description="connect the embeddings to the last layer directly, and layer to layer")


@language_model("feedforward", family="feedforward")
class Feedforward(FeatureLayer):
    """The last N-1 words through hidden layers."""

    Config = FeedforwardConfig

    def __init__(self, config: FeedforwardConfig, embedding: nn.Embedding) -> None:
        super().__init__(config, embedding)
        self.seen, self.embedded, self.width = config.order - 1, config.embedding, config.hidden
        joined = self.seen * config.embedding
        self.first = nn.Linear(joined, config.hidden)
        self.rest = nn.ModuleList(nn.Linear(config.hidden, config.hidden) for _ in range(config.layers - 1))
        self.skip = nn.Linear(joined, config.hidden, bias=False) if config.skip else None
        self.activation, self.dropout = ACTIVATIONS[config.activation], config.dropout

    def start(self, batch: int) -> Tensor:
        """Before the first word stand zero vectors -> (B, N-2, D)."""
        return self.first.weight.new_zeros(batch, self.seen - 1, self.embedded)

    def forward(self, embedded_BTD: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor | None]:
        before = self.start(embedded_BTD.shape[0]) if state is None else state
        padded_BTD = torch.cat([before, embedded_BTD], 1)
        joined = padded_BTD.unfold(1, self.seen, 1).transpose(2, 3).flatten(2)  # (B, T, (N-1)D), oldest first
        hidden_BTD = self.activation(self.first(joined))
        for layer in self.rest:
            further_BTD = self.activation(layer(drop(hidden_BTD, self.dropout, training=self.training)))
            hidden_BTD = hidden_BTD + further_BTD if self.skip is not None else further_BTD
        if self.skip is not None:
            hidden_BTD = hidden_BTD + self.skip(joined)
        return hidden_BTD, None if state is None else padded_BTD[:, padded_BTD.shape[1] - self.seen + 1 :]
