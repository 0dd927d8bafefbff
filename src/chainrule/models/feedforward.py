"""The feed-forward language model: the last n-1 embeddings side by side, hidden layers, skip connections.

    h = tanh(W [e_{t-n+1}; …; e_{t-1}] + b) + U [e_{t-n+1}; …; e_{t-1}]

Bengio et al., "A Neural Probabilistic Language Model", 2003. X = (n-1)·D is the width of the embeddings side by side.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from chainrule.layers.dropout import drop
from chainrule.layers.fused.linear import Linear
from chainrule.models.feature_layer import FeatureLayer, LanguageModelConfig
from chainrule.models.language_model import language_model

ACTIVATIONS = {"tanh": torch.tanh, "relu": torch.relu}


class FeedforwardConfig(LanguageModelConfig):
    """Options of a feed-forward language model."""

    order: int = Field(5, ge=2, description="n: the next token is predicted from the last n-1")
    hidden: int = Field(256, ge=1, description="units of each hidden layer")
    layers: int = Field(1, ge=1, le=1 << 10, description="number of hidden layers")
    activation: Literal["tanh", "relu"] = Field("tanh", description="activation of the hidden layers")
    skip: bool = Field(True, description="residual connections, and one from the embeddings to the last hidden layer")


@language_model("feedforward", family="feedforward")
class Feedforward(FeatureLayer):
    """Hidden layers over the last n-1 tokens."""

    suggestions = (
        "model.order=8 for a longer context",
        "--output nce or --output sampled for large vocabularies",
    )

    Config = FeedforwardConfig

    def __init__(self, config: FeedforwardConfig, embedding: nn.Embedding) -> None:
        super().__init__(config, embedding)
        self.history, self.embedded, self.width = config.order - 1, config.embedding, config.hidden
        joined_width = self.history * config.embedding
        self.first = Linear(joined_width, config.hidden)
        self.rest = nn.ModuleList(Linear(config.hidden, config.hidden) for _ in range(config.layers - 1))
        self.skip = Linear(joined_width, config.hidden, bias=False) if config.skip else None
        self.activation, self.dropout = ACTIVATIONS[config.activation], config.dropout

    def start(self, batch: int) -> Tensor:
        """Zero vectors in place of the n-2 tokens before the next input -> BLD."""
        return self.first.weight.new_zeros(batch, self.history - 1, self.embedded)

    def forward(self, embedded_BTD: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor | None]:
        before_BLD = self.start(embedded_BTD.shape[0]) if state is None else state
        padded_BTD = torch.cat([before_BLD, embedded_BTD], 1)
        joined_BTX = padded_BTD.unfold(1, self.history, 1).transpose(2, 3).flatten(2)  # oldest token first
        hidden_BTU = self.activation(self.first(joined_BTX))
        for layer in self.rest:
            next_BTU = self.activation(layer(drop(hidden_BTU, self.dropout, training=self.training)))
            hidden_BTU = hidden_BTU + next_BTU if self.skip is not None else next_BTU
        if self.skip is not None:
            hidden_BTU = hidden_BTU + self.skip(joined_BTX)
        return hidden_BTU, None if state is None else padded_BTD[:, padded_BTD.shape[1] - self.history + 1 :]
