"""A Transformer decoder as an encoder: the language model `transformer` without its output layer.

Radford et al., "Improving Language Understanding by Generative Pre-Training", 2018. The state of a token is that of the
language model after reading it, so a later token never changes an earlier state.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, Self

from pydantic import Field, model_validator
from torch import Tensor

from chainrule.errors import ConfigError
from chainrule.layers.blocks import BlockShape
from chainrule.layers.dropout import drop
from chainrule.layers.encoders.base import EncoderSizes, TableEncoder, TableShape, check_head_count, check_length
from chainrule.layers.transformer_stack import TransformerStack, initialise
from chainrule.registry import ENCODERS


class TransformerShape(TableShape):
    """The shape of a Transformer decoder."""

    kind: Literal["transformer"] = "transformer"
    layers: int = Field(4, ge=1, le=1 << 10)
    heads: int = Field(4, ge=1)
    inner: int = Field(512, ge=1, description="width of the feed-forward layers")
    context: int = Field(256, ge=2, description="largest number of tokens that can be read")
    positions: Literal["rotary", "sinusoidal", "learned", "none"] = "rotary"
    norm: Literal["pre", "post"] = "pre"
    activation: Literal["relu2", "gelu", "gelu-tanh", "relu"] = "relu2"
    bias: bool = False
    eps: float = Field(1e-5, gt=0, description="added to the variance by the norms")

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_head_count(self.width, self.heads)
        if self.positions == "rotary" and self.width // self.heads % 2:
            raise ConfigError(
                f"a head of the encoder is {self.width // self.heads} wide, but rotary positions need an even width; "
                "choose another number of heads or other positions"
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
            context=sizes.positions,
            dropout=sizes.dropout,
            first=sizes.first,
        )

    @property
    def source_window(self) -> int:
        return self.context - (self.first is not None)

    @property
    def block(self) -> BlockShape:
        """The shape of a block."""
        return BlockShape(
            width=self.width,
            heads=self.heads,
            inner=self.inner,
            activation=self.activation,
            pre=self.norm == "pre",
            bias=self.bias,
            dropout=self.dropout,
            attention_dropout=self.dropout,
            eps=self.eps,
        )


@ENCODERS.register("transformer")
class TransformerEncoder(TransformerStack, TableEncoder):
    """Embeddings with positions, then causal Transformer blocks."""

    Shape = TransformerShape
    bounded = True
    shape: TransformerShape

    def __init__(self, shape: TransformerShape) -> None:
        super().__init__(shape, shape.width)
        self.build_stack(shape.block, shape.layers, shape.context, shape.positions)
        initialise(self, shape.layers)

    def walk(self, tokens_BS: Tensor, mask_BS: Tensor) -> Iterator[Tensor]:
        check_length(tokens_BS.shape[1], self.shape.context)
        embedded_BSD = drop(self.word_table(tokens_BS), self.shape.dropout, training=self.training)
        stream_BSD = self.add_positions(embedded_BSD, 0)
        yield stream_BSD
        stream_ND, last = stream_BSD.flatten(0, 1), self.block_list[-1]
        for block in self.block_list:
            stream_ND, _ = block(stream_ND, len(tokens_BS))
            yield (self.norm(stream_ND) if block is last else stream_ND).view(stream_BSD.shape)
