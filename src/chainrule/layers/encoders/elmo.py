"""ELMo: two recurrent stacks, one from the left and one from the right, and a mix of what their layers say.

Peters et al., "Deep contextualized word representations", 2018. Each direction is the features of a language model;
neither sees the other, so each can be trained to predict. A second layer and those above it add to what they read.
Legend: B batch, S places of the text, E width of a direction, P = 2·E, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from chainrule.layers.dropout import drop
from chainrule.layers.encoders.char_convolution import CharacterShape, CharConvolution
from chainrule.layers.recurrent.stack import Recurrence, reverse
from chainrule.layers.recurrent.stack import State as LayerState

State = list[LayerState]
"""What a direction remembers: the state of each of its layers."""


class ElmoShape(BaseModel):
    """What an ELMo is like."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["elmo"] = "elmo"
    vocab_size: int = Field(ge=1)
    embedding: int = Field(200, ge=1, description="width of a token's vector, and of what each direction gives")
    hidden: int = Field(200, ge=1, description="width of the recurrent states; where it is another, they are projected")
    layers: int = Field(2, ge=1, description="recurrent layers of each direction")
    dropout: float = Field(0.0, ge=0, lt=1)
    variational: bool = Field(False, description="one dropout mask for all places")
    characters: CharacterShape | None = Field(None, description="how words are read by their spelling; None: a table")
    first: int | None = Field(None, ge=0, description="the token before every text")

    @property
    def width(self) -> int:
        """Of what both directions give together."""
        return 2 * self.embedding

    @property
    def source_window(self) -> None:
        """Any length can be read."""
        return None


class Direction(nn.Module):
    """A stack of LSTM layers that reads one way."""

    def __init__(self, shape: ElmoShape) -> None:
        super().__init__()
        self.shape, places = shape, range(shape.layers)
        self.stack = nn.ModuleList(Recurrence("lstm", shape.embedding, shape.hidden) for _ in places)
        narrowed = shape.hidden != shape.embedding
        self.narrow = nn.ModuleList(nn.Linear(shape.hidden, shape.embedding) for _ in places) if narrowed else None

    def start(self, batch: int) -> State:
        """The zero state of `batch` rows."""
        return [layer.start(batch) for layer in self.stack]  # type: ignore[operator]

    def forward(self, embedded_BSE: Tensor, state: State | None = None) -> tuple[list[Tensor], State]:
        """What is read, and the state before it (None: zeros) -> (every layer's features, BSE each, the state after).

        Layer k gives LSTM_k(x), and from the second on x + LSTM_k(x), x being what the layer below gives.
        """
        below_BSE, features, after = embedded_BSE, [], []
        for depth, layer in enumerate(self.stack):
            inputs_BSE = self._drop(below_BSE) if depth else below_BSE
            states_BSH, last = layer(inputs_BSE, None if state is None else state[depth])
            states_BSE = states_BSH if self.narrow is None else self.narrow[depth](states_BSH)
            below_BSE = below_BSE + states_BSE if depth else states_BSE
            features.append(below_BSE)
            after.append(last)
        return features, after

    def _drop(self, inputs_BSE: Tensor) -> Tensor:
        return drop(inputs_BSE, self.shape.dropout, training=self.training, locked=self.shape.variational)


class ElmoEncoder(nn.Module):
    """Tokens to the layers of both directions, or to their mean; `pieces` are the words, for reading their spelling."""

    def __init__(self, shape: ElmoShape, pieces: Sequence[str] | None = None) -> None:
        super().__init__()
        self.shape = shape
        self.word_table: nn.Embedding | CharConvolution
        if shape.characters is None:
            self.word_table = nn.Embedding(shape.vocab_size, shape.embedding)
            nn.init.normal_(self.word_table.weight, std=shape.embedding**-0.5)
        else:
            self.word_table = CharConvolution(shape.characters, shape.vocab_size, shape.embedding, pieces)
        self.rightward, self.leftward = Direction(shape), Direction(shape)

    def forward(self, tokens_BS: Tensor, mask_BS: Tensor) -> Tensor:
        """Tokens, and which of them are no padding -> the mean of all layers, BSP."""
        return torch.stack(self.layers(tokens_BS, mask_BS)).mean(0)

    def layers(self, tokens_BS: Tensor, mask_BS: Tensor) -> list[Tensor]:
        """The embedding, twice side by side as published, and each layer's two directions, BSP each."""
        embedded_BSE = self.word_table(tokens_BS)
        embedded_BSE = drop(embedded_BSE, self.shape.dropout, training=self.training, locked=self.shape.variational)
        right, _ = self.rightward(embedded_BSE)
        left = self.backwards(embedded_BSE, None if bool(mask_BS.all()) else mask_BS.sum(1))
        joined = [torch.cat(pair, 2) for pair in zip(right, left, strict=True)]
        return [torch.cat([embedded_BSE, embedded_BSE], 2), *joined]

    def backwards(self, embedded_BSE: Tensor, lengths_B: Tensor | None = None) -> list[Tensor]:
        """What the direction from the right makes of each place, BSE a layer; rows end after `lengths_B` places."""
        features, _ = self.leftward(reverse(embedded_BSE, lengths_B))
        return [reverse(layer_BSE, lengths_B) for layer_BSE in features]


class LayerMix(nn.Module):
    """γ Σ_k s_k h_k with s = softmax(w): what a task makes of an encoder's layers; at the start their mean."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(layers))
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, layers: Sequence[Tensor]) -> Tensor:
        """Layers of one shape -> their mix, of the same shape."""
        return self.scale * torch.einsum("k,k...->...", self.weights.softmax(0), torch.stack(list(layers)))
