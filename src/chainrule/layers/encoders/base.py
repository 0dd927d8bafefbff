"""What all encoders share: a shape to build them from, and a walk through their layers.

An encoder makes a vector of each token of a text. Its *shape* is a record of options whose `kind` names the encoder:

    encoder = make_encoder(shape)
    encoder(tokens_BS, mask_BS)         -> the states of each token, BSD
    encoder.layers(tokens_BS, mask_BS)  -> those of every layer, the last layer last, BSD each

Rows are padded at their end, where the mask is False. Padding has no effect on other states, and its own states are
undefined. A new kind of encoder is one file with a shape, and an encoder that is registered:

    @ENCODERS.register("bag")
    class BagEncoder(TableEncoder):
        Shape = BagShape
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self, get_args

from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from chainrule.errors import ConfigError


@dataclass(frozen=True)
class EncoderSizes:
    """Sizes of an encoder to train from scratch; each kind uses those that apply to it."""

    vocab_size: int
    width: int = 128  # of the states; even for lstm and elmo
    layers: int = 2
    heads: int = 4
    dropout: float = 0.1
    positions: int = 512  # limit of the tokens per text, for encoders that are `bounded`
    first: int | None = None  # token before every text


class BaseShape(BaseModel):
    """The shape of an encoder. Subclasses declare `kind` as a Literal of the kinds that they describe."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    if TYPE_CHECKING:  # declared here for users of any shape; subclasses define them as fields or properties

        @property
        def kind(self) -> str: ...

        @property
        def vocab_size(self) -> int: ...

        @property
        def width(self) -> int:
            """Width of the states."""

        @property
        def first(self) -> int | None:
            """A token that belongs before every text, such as [CLS]; None: there is none."""

    @property
    def source_window(self) -> int | None:
        """Largest number of tokens of a text, without `first`; None: any number."""
        return None

    @property
    def reads_types(self) -> bool:
        """Whether the tokens of the second text of a pair have another type than those of the first."""
        return False

    @property
    def keeps_first(self) -> bool:
        """Whether the state of `first` represents the whole text and belongs to the result, as that of [CLS]."""
        return False

    @classmethod
    def kinds(cls) -> tuple[str, ...]:
        """The kinds that this shape describes."""
        return get_args(cls.model_fields["kind"].annotation)

    @classmethod
    def from_sizes(cls, sizes: EncoderSizes) -> Self:
        """The shape of an encoder to train from scratch."""
        raise TypeError(f"{cls.__name__} must define from_sizes")


class TableShape(BaseShape):
    """The options of encoders that begin with a table of word vectors."""

    vocab_size: int = Field(ge=1)
    width: int = Field(200, ge=1, description="width of the states")
    dropout: float = Field(0.0, ge=0, lt=1)
    first: int | None = Field(None, ge=0, description="token before every text")


class Encoder(nn.Module):
    """Tokens to vectors, layer by layer. Subclasses define `walk`."""

    Shape: ClassVar[type[BaseShape]]
    bounded: ClassVar[bool] = False  # whether it reads at most `EncoderSizes.positions` tokens

    shape: Any  # of the type `Shape`
    word_table: nn.Module

    def __init__(self, shape: BaseShape) -> None:
        super().__init__()
        self.shape = shape

    def forward(self, tokens_BS: Tensor, mask_BS: Tensor) -> Tensor:
        """Tokens, and a mask that is False at padding -> the states of the last layer, BSD."""
        for states_BSD in self.walk(tokens_BS, mask_BS):
            last_BSD = states_BSD
        return last_BSD

    def layers(self, tokens_BS: Tensor, mask_BS: Tensor) -> list[Tensor]:
        """The states of every layer, BSD each; in some encoders the embeddings are the first layer."""
        return list(self.walk(tokens_BS, mask_BS))

    def walk(self, tokens_BS: Tensor, mask_BS: Tensor) -> Iterator[Tensor]:
        """The states of one layer after the other."""
        raise TypeError(f"{type(self).__name__} must define walk")

    def encode_pairs(self, tokens_BS: Tensor, mask_BS: Tensor, types_BS: Tensor) -> Tensor:
        """The states of the last layer of tokens with types, BSD; only for shapes with `reads_types`."""
        raise TypeError(f"{type(self).__name__} has no token types")

    def pool(self, first_BD: Tensor) -> Tensor | None:
        """The pooled output of texts from the states of their first tokens, BD; None: it has no pooler."""
        return None

    def make_layer_mix(self) -> nn.Module | None:
        """A module that mixes the layers to features for another model; None: the last layer is used."""
        return None


class TableEncoder(Encoder):
    """An encoder that begins with a table of word vectors."""

    def __init__(self, shape: TableShape, width: int) -> None:
        """`width` is the width of the table."""
        super().__init__(shape)
        self.word_table = nn.Embedding(shape.vocab_size, width)
        nn.init.normal_(self.word_table.weight, std=width**-0.5)


def check_head_count(width: int, heads: int) -> None:
    """Reject heads that do not divide the width."""
    if width % heads:
        raise ConfigError(f"the encoder is {width} wide and has {heads} heads: the heads must divide the width evenly")


def check_directions(kind: str, width: int) -> None:
    """Reject a width that two directions cannot share."""
    if width % 2:
        raise ConfigError(
            f"the encoder is {width} wide, but {kind} joins two directions of equal width; choose an even width"
        )


def check_length(length: int, window: int) -> None:
    """Reject a text that is longer than an encoder can read."""
    if length > window:
        raise ConfigError(
            f"got {length} tokens, but the encoder reads at most {window}; shorten the text or use an encoder with "
            "more positions"
        )
