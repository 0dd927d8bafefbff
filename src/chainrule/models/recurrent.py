"""Recurrent language models: a state of fixed size is updated with every token.

    rnn              h_t = tanh(W x_t + U h_{t-1} + b)
    lstm             c_t = f ⊙ c_{t-1} + i ⊙ g,  h_t = o ⊙ tanh c_t,  gates i, f, o = σ(W x_t + U h_{t-1} + b)
    lstm-peephole    the gates also depend on the cell c
    lstm-coupled     f = 1 - i
    gru              h_t = z ⊙ h_{t-1} + (1 - z) ⊙ tanh(W x_t + U (r ⊙ h_{t-1}) + b)

Elman, "Finding Structure in Time", 1990 (rnn); Hochreiter & Schmidhuber, "Long Short-Term Memory", 1997 (lstm); Gers &
Schmidhuber, "Recurrent Nets that Time and Count", 2000 (lstm-peephole); Greff et al., "LSTM: A Search Space Odyssey",
2015 (lstm-coupled); Cho et al., "Learning Phrase Representations using RNN Encoder-Decoder", 2014 (gru). The cells are
in `layers/recurrent/cells.py`.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field
from torch import Tensor, nn

from chainrule.engines.decode.recurrent_weights import RecurrentWeights
from chainrule.engines.decode.weights import Linear
from chainrule.layers.compiled_recurrence import recurrence_weights
from chainrule.layers.recurrent.stack import Recurrence
from chainrule.models.feature_layer import FeatureLayer, LanguageModelConfig
from chainrule.models.language_model import language_model
from chainrule.types import State


class RecurrentConfig(LanguageModelConfig):
    """Options of a recurrent language model."""

    hidden: int = Field(200, ge=1, description="units of each layer")
    layers: int = Field(2, ge=1, le=1 << 10, description="number of recurrent layers")
    recurrent_dropout: float = Field(0.0, ge=0, lt=1, description="share of the recurrent weights dropped in a chunk")


class RnnConfig(RecurrentConfig):
    """Options of an Elman network."""

    activation: Literal["tanh", "relu"] = Field("tanh", description="activation of the recurrent units")


class Recurrent(FeatureLayer):
    """A stack of recurrent layers; subclasses choose the cell."""

    suggestions = (
        "model.hidden=650 with model.dropout=0.5 on a megabyte of text or more",
        "model.variational=true and model.recurrent_dropout=0.3 against overfitting",
        "--output adaptive for vocabularies above 20,000 words",
    )

    Config: ClassVar[type[LanguageModelConfig]] = RecurrentConfig
    kind: ClassVar[str]

    def __init__(self, config: RecurrentConfig, embedding: nn.Embedding) -> None:
        super().__init__(config, embedding)
        self.width = config.hidden
        self.recurrence = Recurrence(
            self.kind,
            config.embedding,
            config.hidden,
            layers=config.layers,
            dropout=config.dropout,
            variational=config.variational,
            recurrent_dropout=config.recurrent_dropout,
            activation=config.activation if isinstance(config, RnnConfig) else "tanh",
        )

    def compiled(self, embedding: nn.Embedding, bridge: Linear | None, output: Linear | None) -> RecurrentWeights:
        return recurrence_weights(self.recurrence, embedding, bridge=bridge, output=output)

    def start(self, batch: int) -> State:
        return self.recurrence.start(batch)

    def forward(self, embedded_BTD: Tensor, state: State) -> tuple[Tensor, State]:
        hidden_BTU, state = self.recurrence(embedded_BTD, state)
        return hidden_BTU, state


@language_model("rnn", family="recurrent")
class Rnn(Recurrent):
    """The Elman network."""

    Config = RnnConfig
    kind = "rnn"


@language_model("lstm", family="recurrent")
class Lstm(Recurrent):
    """Long short-term memory."""

    kind = "lstm"


@language_model("lstm-peephole", family="recurrent")
class LstmPeephole(Recurrent):
    """LSTM whose gates also depend on the memory cell."""

    kind = "lstm-peephole"


@language_model("lstm-coupled", family="recurrent")
class LstmCoupled(Recurrent):
    """LSTM whose forget gate is one minus its input gate."""

    kind = "lstm-coupled"


@language_model("gru", family="recurrent")
class Gru(Recurrent):
    """Gated recurrent unit."""

    kind = "gru"
