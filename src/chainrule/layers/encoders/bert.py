"""The encoder of BERT and its relatives: embeddings, then post-norm Transformer blocks that see the whole text.

Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding", 2019. RoBERTa (Liu et
al., 2019) counts positions from the id of the padding token plus one; DistilBERT (Sanh et al., 2019) has no types.

A pair of texts is read as [CLS] a [SEP] b [SEP], where the tokens of b and the [SEP] after it have type 1. The pooler
makes one vector of a text from the state of [CLS]: tanh(W h + b).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, Self

from pydantic import Field, model_validator
from torch import Tensor, nn

from chainrule.errors import ConfigError
from chainrule.layers.attention.source_memory import source_mask
from chainrule.layers.blocks import BlockShape
from chainrule.layers.dropout import drop
from chainrule.layers.encoders.base import BaseShape, Encoder, EncoderSizes, check_head_count, check_length
from chainrule.layers.fused.linear import Linear
from chainrule.layers.transformer_stack import TransformerStack, initialise
from chainrule.registry import ENCODERS


class BertShape(BaseShape):
    """The shape of a BERT encoder: everything needed to build it and to read with it."""

    kind: Literal["bert", "roberta", "distilbert"] = "bert"
    vocab_size: int = Field(ge=1)
    width: int = Field(768, ge=1)
    layers: int = Field(12, ge=1, le=1 << 10)
    heads: int = Field(12, ge=1)
    inner: int = Field(3072, ge=1, description="width of the feed-forward layers")
    positions: int = Field(512, ge=1, description="rows of the position table")
    types: int = Field(2, ge=0, description="rows of the table of token types; 0: no table")
    activation: Literal["gelu", "gelu-tanh", "relu", "swish"] = "gelu"
    eps: float = Field(1e-12, gt=0, description="added to the variance by the norms")
    pad: int = Field(0, ge=0, description="padding token")
    first: int | None = Field(None, ge=0, description="token before every text, such as [CLS]")
    dropout: float = Field(0.1, ge=0, lt=1)
    attention_dropout: float = Field(0.1, ge=0, lt=1)
    pooler: bool = Field(False, description="has a layer that makes one vector of the state of `first`")
    published_inputs: bool = Field(
        False,
        description="token types in pairs, and the state of `first` among the states; false in runs before 0.3",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_head_count(self.width, self.heads)
        if self.source_window < 1:
            raise ConfigError(
                f"the encoder has {self.positions} positions, which leaves none for a text: {self.kind} starts at "
                f"position {self.offset}"
            )
        return self

    @classmethod
    def from_sizes(cls, sizes: EncoderSizes) -> Self:
        return cls(
            vocab_size=sizes.vocab_size,
            width=sizes.width,
            layers=sizes.layers,
            heads=sizes.heads,
            inner=4 * sizes.width,
            positions=sizes.positions,
            types=0,
            dropout=sizes.dropout,
            attention_dropout=sizes.dropout,
            first=sizes.first,
        )

    @property
    def offset(self) -> int:
        """The row of the position table for the first token."""
        return self.pad + 1 if self.kind == "roberta" else 0

    @property
    def window(self) -> int:
        """Largest number of tokens that can be read, `first` included."""
        return self.positions - self.offset

    @property
    def source_window(self) -> int:
        return self.window - (self.first is not None)

    @property
    def reads_types(self) -> bool:
        return self.published_inputs and self.types > 1

    @property
    def keeps_first(self) -> bool:
        return self.published_inputs and self.first is not None

    @property
    def block(self) -> BlockShape:
        """The shape of a block."""
        return BlockShape(
            width=self.width,
            heads=self.heads,
            inner=self.inner,
            activation=self.activation,
            pre=False,
            bias=True,
            dropout=self.dropout,
            attention_dropout=self.attention_dropout,
            eps=self.eps,
        )


@ENCODERS.register("bert")
class BertEncoder(TransformerStack, Encoder):
    """Embeddings of words, positions and token types, a norm, then bidirectional Transformer blocks."""

    Shape = BertShape
    bounded = True
    shape: BertShape

    def __init__(self, shape: BertShape) -> None:
        super().__init__(shape)
        self.word_table = nn.Embedding(shape.vocab_size, shape.width)
        self.position_table = nn.Embedding(shape.positions, shape.width)
        self.type_table = nn.Embedding(shape.types, shape.width) if shape.types else None
        self.norm = nn.LayerNorm(shape.width, eps=shape.eps)  # of the embeddings; post-norm blocks need no final norm
        self.build_blocks(shape.block, shape.layers)
        self.pooler = Linear(shape.width, shape.width) if shape.pooler else None
        initialise(self)

    def encode_pairs(self, tokens_BS: Tensor, mask_BS: Tensor, types_BS: Tensor) -> Tensor:
        for states_BSD in self.walk(tokens_BS, mask_BS, types_BS):
            last_BSD = states_BSD
        return last_BSD

    def pool(self, first_BD: Tensor) -> Tensor | None:
        return None if self.pooler is None else self.pooler(first_BD).tanh()

    def walk(self, tokens_BS: Tensor, mask_BS: Tensor, types_BS: Tensor | None = None) -> Iterator[Tensor]:
        """The states of one layer after the other; without `types_BS` every token has type 0."""
        stream_BSD = self._embed(tokens_BS, types_BS)
        yield stream_BSD
        batch, mask_B11S = len(tokens_BS), source_mask(mask_BS)
        stream_ND = stream_BSD.flatten(0, 1)
        for block in self.block_list:
            stream_ND, _ = block(stream_ND, batch, mask=mask_B11S, causal=False)
            yield stream_ND.view(stream_BSD.shape)

    def _embed(self, tokens_BS: Tensor, types_BS: Tensor | None) -> Tensor:
        """The sum of word, position and token type, normalised, BSD."""
        shape, S = self.shape, tokens_BS.shape[1]
        check_length(S, shape.window)
        summed_BSD = self.word_table(tokens_BS) + self.position_table.weight[shape.offset : shape.offset + S]
        if self.type_table is not None:
            summed_BSD = summed_BSD + (self.type_table.weight[0] if types_BS is None else self.type_table(types_BS))
        return drop(self.norm(summed_BSD), shape.dropout, training=self.training)
