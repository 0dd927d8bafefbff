"""A bidirectional LSTM: every layer reads both directions of the layer below.

Graves and Schmidhuber, "Framewise Phoneme Classification with Bidirectional LSTM", 2005.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, Self

from pydantic import Field
from torch import Tensor, nn

from chainrule.layers.dropout import drop
from chainrule.layers.encoders.base import EncoderSizes, TableEncoder, TableShape, check_directions
from chainrule.layers.recurrent.bidirectional import Bidirectional
from chainrule.registry import ENCODERS


class LstmShape(TableShape):
    """The shape of a bidirectional LSTM."""

    kind: Literal["lstm"] = "lstm"
    width: int = Field(200, ge=2, multiple_of=2, description="width of both directions together")
    embedding: int = Field(200, ge=1, description="width of a token's vector")
    layers: int = Field(1, ge=1, le=1 << 10)

    @classmethod
    def from_sizes(cls, sizes: EncoderSizes) -> Self:
        check_directions("lstm", sizes.width)
        return cls(
            vocab_size=sizes.vocab_size,
            width=sizes.width,
            embedding=sizes.width,
            layers=sizes.layers,
            dropout=sizes.dropout,
            first=sizes.first,
        )


@ENCODERS.register("lstm")
class LstmEncoder(TableEncoder):
    """Embeddings, then layers of one LSTM from the left and one from the right."""

    Shape = LstmShape
    shape: LstmShape

    def __init__(self, shape: LstmShape) -> None:
        super().__init__(shape, shape.embedding)
        widths = [shape.embedding] + [shape.width] * (shape.layers - 1)
        self.stack = nn.ModuleList(Bidirectional("lstm", width, shape.width // 2) for width in widths)

    def walk(self, tokens_BS: Tensor, mask_BS: Tensor) -> Iterator[Tensor]:
        lengths_B = None if bool(mask_BS.all()) else mask_BS.sum(1).clamp_min(1)
        states_BSD = self.word_table(tokens_BS)
        for layer in self.stack:
            states_BSD, _ = layer(drop(states_BSD, self.shape.dropout, training=self.training), lengths_B)
            yield states_BSD
