"""Encoders: what makes a vector of each token of a text, whatever is inside.

An encoder is built from its *shape*, a record whose `kind` says which it is, and gives states of its tokens:

    encoder = make_encoder(shape)
    encoder(tokens_BS, mask_BS)         -> states, BSP
    encoder.layers(tokens_BS, mask_BS)  -> those of every layer, the last one's last, BSP each

Every shape tells `kind`, `vocab_size`, `width` (P), `first` (a token that belongs before every text, such as [CLS], or
None) and `source_window` (the most tokens of a text besides that one, or None). Rows are padded at their end, where the
mask is False; padding changes nothing, and its own states mean nothing.
Legend: B batch, S places of the text, N = B·S, D width inside, P width of the states.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from torch import Tensor, nn
from torch.nn import functional as F

from chainrule.errors import ConfigError, unknown_name
from chainrule.layers.attention.positions import AddedPositions, Rotary
from chainrule.layers.attention.self_attention import attend
from chainrule.layers.attention.source_memory import source_mask
from chainrule.layers.blocks import Block, BlockShape, initialise
from chainrule.layers.dropout import drop
from chainrule.layers.encoders.bert import BertEncoder, BertShape
from chainrule.layers.encoders.elmo import ElmoEncoder, ElmoShape
from chainrule.layers.encoders.layered import Layered
from chainrule.layers.recurrent.stack import Bidirectional


class _Shape(BaseModel):
    """What the shapes below share."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    vocab_size: int = Field(ge=1)
    width: int = Field(200, ge=1, description="of what is given")
    dropout: float = Field(0.0, ge=0, lt=1)
    first: int | None = Field(None, ge=0, description="the token before every text")

    @property
    def source_window(self) -> int | None:
        """The most tokens of a text; None: any number."""
        return None

    def check_heads(self, heads: int) -> None:
        if self.width % heads:
            raise ConfigError(
                f"the encoder is {self.width} wide and has {heads} heads: the heads must divide the width evenly"
            )


class _Encoder(Layered):
    """A table of words, and what is walked through after it."""

    def __init__(self, shape: _Shape, width: int) -> None:
        super().__init__()
        self.word_table = nn.Embedding(shape.vocab_size, width)
        nn.init.normal_(self.word_table.weight, std=width**-0.5)


# A bag of vectors


class BagShape(_Shape):
    """A vector for each word, whatever stands around it: what word2vec makes."""

    kind: Literal["bag"] = "bag"


class BagEncoder(_Encoder):
    """A table."""

    def __init__(self, shape: BagShape) -> None:
        super().__init__(shape, shape.width)
        self.shape = shape

    def walk(self, tokens_BS: Tensor, mask_BS: Tensor) -> Iterator[Tensor]:
        yield drop(self.word_table(tokens_BS), self.shape.dropout, training=self.training)


# Recurrence in both directions


class LstmShape(_Shape):
    """Bidirectional LSTM layers, each of which reads both directions of the one below."""

    kind: Literal["lstm"] = "lstm"
    width: int = Field(200, ge=2, multiple_of=2, description="of both directions together")
    embedding: int = Field(200, ge=1, description="width of a token's vector")
    layers: int = Field(1, ge=1)


class LstmEncoder(_Encoder):
    """Embeddings, then layers of an LSTM from the left and one from the right."""

    def __init__(self, shape: LstmShape) -> None:
        super().__init__(shape, shape.embedding)
        self.shape = shape
        widths = [shape.embedding] + [shape.width] * (shape.layers - 1)
        self.stack = nn.ModuleList(Bidirectional("lstm", width, shape.width // 2) for width in widths)

    def walk(self, tokens_BS: Tensor, mask_BS: Tensor) -> Iterator[Tensor]:
        lengths_B = None if bool(mask_BS.all()) else mask_BS.sum(1).clamp_min(1)
        states_BSP = self.word_table(tokens_BS)
        for layer in self.stack:
            states_BSP, _ = layer(drop(states_BSP, self.shape.dropout, training=self.training), lengths_B)
            yield states_BSP


# Convolutions and attention


class ConvAttentionShape(_Shape):
    """Convolutions for the near field, self-attention for the far one, then a fully connected layer."""

    kind: Literal["conv-attention"] = "conv-attention"
    convolutions: int = Field(3, ge=1, description="convolution layers; each doubles the reach of the last")
    kernel: int = Field(3, ge=2, description="places one convolution sees")
    heads: int = Field(4, ge=1)

    @model_validator(mode="after")
    def _check(self) -> ConvAttentionShape:
        self.check_heads(self.heads)
        return self


class Convolution(nn.Module):
    """A gated, dilated convolution that sees both sides, around a residual."""

    def __init__(self, width: int, kernel: int, dilation: int) -> None:
        super().__init__()
        reach = (kernel - 1) * dilation
        self.before, self.after = reach // 2, reach - reach // 2
        self.norm = nn.LayerNorm(width)
        self.conv = nn.Conv1d(width, 2 * width, kernel, dilation=dilation)

    def forward(self, inputs_BSD: Tensor, kept_BS1: Tensor) -> Tensor:
        """`kept_BS1` is 0 at padding, which is to be seen as what lies outside the text, as zeros."""
        normed_BDS = (self.norm(inputs_BSD) * kept_BS1).transpose(1, 2)
        mixed_BDS = F.glu(self.conv(F.pad(normed_BDS, (self.before, self.after))), dim=1)
        return inputs_BSD + mixed_BDS.transpose(1, 2)


class ConvAttentionEncoder(_Encoder):
    """The layers of the language model of that name, without its mask: every place sees the whole text."""

    def __init__(self, shape: ConvAttentionShape) -> None:
        super().__init__(shape, shape.width)
        self.shape, width = shape, shape.width
        self.convolutions = nn.ModuleList(
            Convolution(width, shape.kernel, 2**depth) for depth in range(shape.convolutions)
        )
        self.norm = nn.LayerNorm(width)
        self.project_in, self.project_out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.connected = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def walk(self, tokens_BS: Tensor, mask_BS: Tensor) -> Iterator[Tensor]:
        states_BSD = self._drop(self.word_table(tokens_BS))
        kept_BS1 = mask_BS[:, :, None].to(states_BSD.dtype)
        for layer in self.convolutions:
            states_BSD = layer(states_BSD, kept_BS1)
            yield states_BSD
        projected_NX = self.project_in(self.norm(states_BSD)).flatten(0, 1)
        rate = self.shape.dropout if self.training else 0.0
        mixed_ND, _ = attend(
            projected_NX,
            len(tokens_BS),
            self.shape.heads,
            None,
            dropout=rate,
            mask=source_mask(mask_BS),
            causal=False,
        )
        states_BSD = states_BSD + self._drop(self.project_out(mixed_ND.view(states_BSD.shape)))
        yield states_BSD + self._drop(self.connected(states_BSD))

    def _drop(self, inputs_BSD: Tensor) -> Tensor:
        return drop(inputs_BSD, self.shape.dropout, training=self.training)


# A language model's features


class TransformerShape(_Shape):
    """A Transformer decoder: a token's state is what the language model knows after reading it."""

    kind: Literal["transformer"] = "transformer"
    layers: int = Field(4, ge=1)
    heads: int = Field(4, ge=1)
    inner: int = Field(512, ge=1, description="width of the feed-forward layers")
    context: int = Field(256, ge=2, description="most tokens that can be read")
    positions: Literal["rotary", "sinusoidal", "learned", "none"] = "rotary"
    norm: Literal["pre", "post"] = "pre"
    activation: Literal["relu2", "gelu", "gelu-tanh", "relu"] = "relu2"
    bias: bool = False
    eps: float = Field(1e-5, gt=0, description="of the norms")

    @model_validator(mode="after")
    def _check(self) -> TransformerShape:
        self.check_heads(self.heads)
        if self.positions == "rotary" and self.width // self.heads % 2:
            raise ConfigError(
                f"a head of the encoder is {self.width // self.heads} wide, but rotary positions turn pairs; choose "
                "heads of an even width, or other positions"
            )
        return self

    @property
    def source_window(self) -> int:
        return self.context - (self.first is not None)

    @property
    def block(self) -> BlockShape:
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


class TransformerEncoder(_Encoder):
    """The language model `transformer` without its output layer; a later token never changes an earlier state."""

    def __init__(self, shape: TransformerShape) -> None:
        super().__init__(shape, shape.width)
        self.shape, width = shape, shape.width
        rotary = Rotary(shape.context, width // shape.heads) if shape.positions == "rotary" else None
        added = shape.positions in ("learned", "sinusoidal")
        self.positions = AddedPositions(shape.positions, shape.context, width) if added else None
        self.scale = math.sqrt(width) if shape.positions == "sinusoidal" else 1.0
        self.blocks = nn.ModuleList(Block(shape.block, rotary) for _ in range(shape.layers))
        self.norm = shape.block.make_norm() if shape.norm == "pre" else nn.Identity()
        initialise(self, shape.layers)

    def walk(self, tokens_BS: Tensor, mask_BS: Tensor) -> Iterator[Tensor]:
        if tokens_BS.shape[1] > self.shape.context:
            raise ConfigError(
                f"got {tokens_BS.shape[1]} tokens, but the encoder has places for {self.shape.context}; shorten the "
                "text, or take an encoder with more positions"
            )
        stream_BSD = drop(self.word_table(tokens_BS), self.shape.dropout, training=self.training) * self.scale
        stream_BSD = stream_BSD if self.positions is None else self.positions(stream_BSD, 0)
        yield stream_BSD
        stream_ND = stream_BSD.flatten(0, 1)
        for number, block in enumerate(self.blocks, 1):
            stream_ND, _ = block(stream_ND, len(tokens_BS))
            last = number == len(self.blocks)
            yield (self.norm(stream_ND) if last else stream_ND).view(stream_BSD.shape)


# All of them

SHAPES = (BagShape, BertShape, ConvAttentionShape, ElmoShape, LstmShape, TransformerShape)

Encoder = BagEncoder | BertEncoder | ConvAttentionEncoder | ElmoEncoder | LstmEncoder | TransformerEncoder


def _named(shape: Any) -> Any:
    """A shape that does not say its kind is a BERT's, as all were once."""
    return {"kind": "bert", **shape} if isinstance(shape, dict) else shape


EncoderShape = Annotated[
    Annotated[
        BagShape | BertShape | ConvAttentionShape | ElmoShape | LstmShape | TransformerShape,
        Field(discriminator="kind"),
    ],
    BeforeValidator(_named),
]
"""The shape of any encoder, told apart by its `kind`."""


def make_encoder(shape: EncoderShape) -> Encoder:
    """The encoder of a shape, freshly initialised."""
    match shape:
        case BagShape():
            return BagEncoder(shape)
        case BertShape():
            return BertEncoder(shape)
        case ConvAttentionShape():
            return ConvAttentionEncoder(shape)
        case ElmoShape():
            return ElmoEncoder(shape)
        case LstmShape():
            return LstmEncoder(shape)
        case TransformerShape():
            return TransformerEncoder(shape)


KINDS = ("bag", "bert", "conv-attention", "elmo", "lstm", "transformer")
"""Encoders that can be trained from scratch."""


def shape_of(
    kind: str,
    vocab_size: int,
    *,
    width: int = 128,
    layers: int = 2,
    heads: int = 4,
    dropout: float = 0.1,
    positions: int = 512,
    first: int | None = None,
) -> EncoderShape:
    """The shape of an encoder to be trained from scratch; a kind takes what it has.

    `width` is that of the states, even for lstm and elmo, `positions` the most tokens that are read where a kind is
    bounded, `first` the token that is to stand before every text.
    """
    if kind in ("elmo", "lstm") and width % 2:
        raise ConfigError(
            f"the encoder is {width} wide, but {kind} joins two directions of one width; choose an even width"
        )
    usual: dict[str, Any] = {"vocab_size": vocab_size, "dropout": dropout, "first": first}
    match kind:
        case "bag":
            return BagShape(**usual, width=width)
        case "lstm":
            return LstmShape(**usual, width=width, embedding=width, layers=layers)
        case "conv-attention":
            return ConvAttentionShape(**usual, width=width, convolutions=layers + 1, heads=heads)
        case "elmo":
            return ElmoShape(**usual, embedding=width // 2, hidden=width // 2, layers=layers)
        case "transformer":
            return TransformerShape(
                **usual, width=width, layers=layers, heads=heads, inner=4 * width, context=positions
            )
        case "bert":
            return BertShape(
                **usual,
                width=width,
                layers=layers,
                heads=heads,
                inner=4 * width,
                positions=positions,
                types=0,
                attention_dropout=dropout,
            )
    raise unknown_name("encoder", kind, KINDS)
