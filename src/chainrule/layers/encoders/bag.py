"""A bag of vectors: one vector per word, independent of its context, as word2vec trains them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, Self

from torch import Tensor

from chainrule.layers.dropout import drop
from chainrule.layers.encoders.base import EncoderSizes, TableEncoder, TableShape
from chainrule.registry import ENCODERS


class BagShape(TableShape):
    """The shape of a table of word vectors."""

    kind: Literal["bag"] = "bag"

    @classmethod
    def from_sizes(cls, sizes: EncoderSizes) -> Self:
        return cls(vocab_size=sizes.vocab_size, width=sizes.width, dropout=sizes.dropout, first=sizes.first)


@ENCODERS.register("bag")
class BagEncoder(TableEncoder):
    """A table of word vectors."""

    Shape = BagShape
    shape: BagShape

    def __init__(self, shape: BagShape) -> None:
        super().__init__(shape, shape.width)

    def walk(self, tokens_BS: Tensor, mask_BS: Tensor) -> Iterator[Tensor]:
        yield drop(self.word_table(tokens_BS), self.shape.dropout, training=self.training)
