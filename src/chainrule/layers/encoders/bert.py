"""The encoder of BERT and its kin: embeddings, then Transformer blocks that see the whole text, norms after the sums.

Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding", 2019. RoBERTa (Liu et
al., 2019) counts its positions from behind the padding's number on; DistilBERT (Sanh et al., 2019) has no token types.
Legend: B batch, S places of the text, N = B·S, D width.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor, nn

from chainrule.errors import ConfigError
from chainrule.layers.attention.source_memory import source_mask
from chainrule.layers.blocks import Block, BlockShape
from chainrule.layers.dropout import drop
from chainrule.layers.encoders.layered import Layered


class BertShape(BaseModel):
    """What an encoder is like: all that must be known to build it and to read with it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["bert", "roberta", "distilbert"] = "bert"
    vocab_size: int = Field(ge=1)
    width: int = Field(768, ge=1)
    layers: int = Field(12, ge=1)
    heads: int = Field(12, ge=1)
    inner: int = Field(3072, ge=1, description="width of the feed-forward layers")
    positions: int = Field(512, ge=1, description="rows of the table of positions")
    types: int = Field(2, ge=0, description="rows of the table of token types; 0: there is none")
    activation: Literal["gelu", "gelu-tanh", "relu", "swish"] = "gelu"
    eps: float = Field(1e-12, gt=0, description="of the norms")
    pad: int = Field(0, ge=0, description="the token that fills up a row")
    first: int | None = Field(None, ge=0, description="the token before every text, such as [CLS]")
    dropout: float = Field(0.1, ge=0, lt=1)
    attention_dropout: float = Field(0.1, ge=0, lt=1)

    @model_validator(mode="after")
    def _check(self) -> BertShape:
        if self.width % self.heads:
            raise ConfigError(
                f"the encoder is {self.width} wide and has {self.heads} heads: the heads must divide the width evenly"
            )
        if self.source_window < 1:
            raise ConfigError(
                f"the encoder has {self.positions} positions, which leaves none for a text: {self.kind} begins at "
                f"number {self.offset}"
            )
        return self

    @property
    def offset(self) -> int:
        """The row of the table of positions that belongs to the first place."""
        return self.pad + 1 if self.kind == "roberta" else 0

    @property
    def window(self) -> int:
        """The most tokens that can be read, the one before every text among them."""
        return self.positions - self.offset

    @property
    def source_window(self) -> int:
        """The same without that one."""
        return self.window - (self.first is not None)

    @property
    def block(self) -> BlockShape:
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


class BertEncoder(Layered):
    """Tokens to vectors that know the whole text."""

    def __init__(self, shape: BertShape) -> None:
        super().__init__()
        self.shape = shape
        self.word_table = nn.Embedding(shape.vocab_size, shape.width)
        self.position_table = nn.Embedding(shape.positions, shape.width)
        self.type_table = nn.Embedding(shape.types, shape.width) if shape.types else None
        self.norm = nn.LayerNorm(shape.width, eps=shape.eps)
        self.blocks = nn.ModuleList(Block(shape.block) for _ in range(shape.layers))
        for name, parameter in self.named_parameters():  # as published
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def walk(self, tokens_BS: Tensor, mask_BS: Tensor) -> Iterator[Tensor]:
        stream_BSD = self._embed(tokens_BS)
        yield stream_BSD
        batch, seen_B11S = len(tokens_BS), source_mask(mask_BS)
        stream_ND = stream_BSD.flatten(0, 1)
        for block in self.blocks:
            stream_ND, _ = block(stream_ND, batch, mask=seen_B11S, causal=False)
            yield stream_ND.view(stream_BSD.shape)

    def _embed(self, tokens_BS: Tensor) -> Tensor:
        """Word, position and first token type, normed, BSD."""
        shape, S = self.shape, tokens_BS.shape[1]
        if shape.window < S:
            raise ConfigError(
                f"got {S} tokens, but the encoder has places for {shape.window}; shorten the text, or take an encoder "
                "with more positions"
            )
        summed_BSD = self.word_table(tokens_BS) + self.position_table.weight[shape.offset : shape.offset + S]
        if self.type_table is not None:
            summed_BSD = summed_BSD + self.type_table.weight[0]
        return drop(self.norm(summed_BSD), shape.dropout, training=self.training)
