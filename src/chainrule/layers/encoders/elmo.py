"""ELMo: two recurrent stacks, one from the left and one from the right, and a learned mix of their layers.

Peters et al., "Deep contextualized word representations", 2018. Each direction consists of the features of a language
model; neither sees the other, so each can be trained to predict. From the second layer on, layers have a residual
connection. E is the width of a direction, D = 2·E that of the states.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, Self

import torch
from pydantic import Field
from torch import Tensor, nn

from chainrule.layers.dropout import drop
from chainrule.layers.encoders.base import BaseShape, Encoder, EncoderSizes, check_directions
from chainrule.layers.encoders.char_convolution import CharacterShape, CharConvolution
from chainrule.layers.fused.linear import Linear
from chainrule.layers.recurrent.stack import Recurrence, reverse
from chainrule.layers.recurrent.stack import State as LayerState
from chainrule.registry import ENCODERS

State = list[LayerState]
"""The state of a direction: that of each of its layers."""


class ElmoShape(BaseShape):
    """The shape of an ELMo."""

    kind: Literal["elmo"] = "elmo"
    vocab_size: int = Field(ge=1)
    embedding: int = Field(200, ge=1, description="width of a token's vector, and of the output of each direction")
    hidden: int = Field(200, ge=1, description="width of the recurrent states; projected if it is not the embedding's")
    layers: int = Field(2, ge=1, le=1 << 10, description="recurrent layers of each direction")
    dropout: float = Field(0.0, ge=0, lt=1)
    variational: bool = Field(False, description="one dropout mask for all positions")
    characters: CharacterShape | None = Field(None, description="read words by their spelling; None: from a table")
    first: int | None = Field(None, ge=0, description="token before every text")

    @classmethod
    def from_sizes(cls, sizes: EncoderSizes) -> Self:
        check_directions("elmo", sizes.width)
        return cls(
            vocab_size=sizes.vocab_size,
            embedding=sizes.width // 2,
            hidden=sizes.width // 2,
            layers=sizes.layers,
            dropout=sizes.dropout,
            first=sizes.first,
        )

    @property
    def width(self) -> int:
        """The width of both directions together."""
        return 2 * self.embedding


class Direction(nn.Module):
    """A stack of LSTM layers that reads in one direction."""

    def __init__(self, shape: ElmoShape) -> None:
        super().__init__()
        self.shape, depths = shape, range(shape.layers)
        self.stack = nn.ModuleList(Recurrence("lstm", shape.embedding, shape.hidden) for _ in depths)
        narrowed = shape.hidden != shape.embedding
        self.narrow = nn.ModuleList(Linear(shape.hidden, shape.embedding) for _ in depths) if narrowed else None

    def start(self, batch: int) -> State:
        """The zero state of `batch` rows."""
        return [layer.start(batch) for layer in self.stack]  # type: ignore[operator]

    def forward(self, embedded_BSE: Tensor, state: State | None = None) -> tuple[list[Tensor], State]:
        """Embeddings and the state before them (None: zeros) -> (features of every layer, BSE each, the state after).

        Layer 1 gives LSTM_1(x), and layer k from the second on x + LSTM_k(x), where x is the output of the layer below.
        """
        below_BSE, features, after = embedded_BSE, [], []
        for depth, layer in enumerate(self.stack):
            inputs_BSE = self._drop(below_BSE) if depth else below_BSE
            states_BSU, last = layer(inputs_BSE, None if state is None else state[depth])
            states_BSE = states_BSU if self.narrow is None else self.narrow[depth](states_BSU)
            below_BSE = below_BSE + states_BSE if depth else states_BSE
            features.append(below_BSE)
            after.append(last)
        return features, after

    def _drop(self, inputs_BSE: Tensor) -> Tensor:
        return drop(inputs_BSE, self.shape.dropout, training=self.training, locked=self.shape.variational)


@ENCODERS.register("elmo")
class ElmoEncoder(Encoder):
    """Tokens to the layers of both directions, or to their mean."""

    Shape = ElmoShape
    shape: ElmoShape
    word_table: nn.Embedding | CharConvolution

    def __init__(self, shape: ElmoShape, pieces: Sequence[str] | None = None) -> None:
        """`pieces` are the words of the vocabulary, for reading their spelling."""
        super().__init__(shape)
        if shape.characters is None:
            self.word_table = nn.Embedding(shape.vocab_size, shape.embedding)
            nn.init.normal_(self.word_table.weight, std=shape.embedding**-0.5)
        else:
            self.word_table = CharConvolution(shape.characters, shape.vocab_size, shape.embedding, pieces)
        self.rightward, self.leftward = Direction(shape), Direction(shape)

    def forward(self, tokens_BS: Tensor, mask_BS: Tensor) -> Tensor:
        """Tokens, and a mask that is False at padding -> the mean of all layers, BSD."""
        return torch.stack(self.layers(tokens_BS, mask_BS)).mean(0)

    def walk(self, tokens_BS: Tensor, mask_BS: Tensor) -> Iterator[Tensor]:
        """The embedding, twice side by side as published, and both directions of each layer."""
        embedded_BSE = self.word_table(tokens_BS)
        embedded_BSE = drop(embedded_BSE, self.shape.dropout, training=self.training, locked=self.shape.variational)
        right, _ = self.rightward(embedded_BSE)
        left = self.read_leftward(embedded_BSE, None if bool(mask_BS.all()) else mask_BS.sum(1))
        yield torch.cat([embedded_BSE, embedded_BSE], 2)
        for pair in zip(right, left, strict=True):
            yield torch.cat(pair, 2)

    def read_leftward(self, embedded_BSE: Tensor, lengths_B: Tensor | None = None) -> list[Tensor]:
        """The features of the direction from the right, BSE per layer; rows end after `lengths_B` positions."""
        features, _ = self.leftward(reverse(embedded_BSE, lengths_B))
        return [reverse(layer_BSE, lengths_B) for layer_BSE in features]

    def make_layer_mix(self) -> LayerMix:
        return LayerMix(self.shape.layers + 1)


class LayerMix(nn.Module):
    """γ Σ_k s_k h_k with s = softmax(w): a learned mix of the layers of an encoder, initially their mean."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(layers))
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, layers: Sequence[Tensor]) -> Tensor:
        """Layers of one shape -> their mix, of the same shape."""
        return self.scale * torch.einsum("k,k...->...", self.weights.softmax(0), torch.stack(list(layers)))
