"""What a language model is made of, besides its output layer: common options, and the layer that computes features.

A feature layer either carries a state through text of any length (`window` is None) or sees at most `window` tokens. In
the second case `language_model.py` extends it to text of any length.
"""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from chainrule.engines.decode.recurrent_weights import RecurrentWeights
from chainrule.engines.decode.weights import Linear, StackWeights
from chainrule.types import Preferences, State


class LanguageModelConfig(BaseModel):
    """Options of all neural language models."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    embedding: int = Field(200, ge=1, description="width of the token embeddings")
    dropout: float = Field(
        0.0, ge=0, lt=1, description="dropout rate of the embeddings, between layers and before the output"
    )
    variational: bool = Field(False, description="use one dropout mask for all time steps of a chunk")
    word_dropout: float = Field(
        0.0, ge=0, lt=1, description="share of the vocabulary dropped from the input of a batch"
    )
    tied: bool = Field(True, description="share one matrix between embedding and output layer, where possible")


class FeatureLayer(nn.Module):
    """h_t from the embeddings of x_<t. Subclasses set `width`, and `window` if their context is limited."""

    Config: ClassVar[type[LanguageModelConfig]] = LanguageModelConfig
    width: int
    window: int | None = None
    prefers: ClassVar[Preferences] = Preferences()
    suggestions: ClassVar[tuple[str, ...]] = ()
    encodes: ClassVar[bool] = False  # whether it can be the pretrained encoder of another model
    shardable: ClassVar[bool] = False  # whether its weights can be divided among processes
    rewinds: ClassVar[bool] = False  # whether `rewind` is supported; only for layers with a window

    def __init__(self, config: Any, embedding: nn.Embedding) -> None:
        super().__init__()

    def start(self, batch: int) -> State:
        """The state before the first token."""
        raise TypeError(f"{type(self).__name__} must define start")

    def forward(self, embedded_BTD: Tensor, state: State) -> tuple[Tensor, State]:
        """Read T more embeddings -> features BTD and the state after them. None: no past, and no state is needed."""
        raise TypeError(f"{type(self).__name__} must define forward")

    def newer(self, embedded_BTD: Tensor, keep: int) -> Tensor:
        """The features at the positions after the first `keep`, without a past."""
        features_BTD: Tensor = self(embedded_BTD, None)[0][:, keep:]
        return features_BTD

    def attention_weights(self, embedded_BTD: Tensor) -> list[Tensor] | None:
        """The weights of causal attention in each layer, for whole rows, BHTT each; None: it has no attention."""
        return None

    @classmethod
    def encoder_shape(cls, config: Any, vocab_size: int, eos: int) -> Any:
        """The shape of an encoder that computes these features."""
        raise TypeError(f"{cls.__name__} is not an encoder")

    def compiled(
        self, embedding: nn.Embedding, bridge: Linear | None, output: Linear | None
    ) -> StackWeights | RecurrentWeights | None:
        """The parameters for the decoding engine, with the layers after the features; None: torch computes them."""
        return None

    def rewind(self, state: State, count: int) -> State:
        """The state without its last `count` positions."""
        raise TypeError(f"{type(self).__name__} cannot rewind")
