"""The tokens of a text with their places and their bits: the record that heat maps draw."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from chainrule.base.results import json_value, make_frame
from chainrule.inference.inspect import TokenDetails


@dataclass(frozen=True)
class PlacedToken(TokenDetails):
    """A token of a text, the distribution that predicted it, and where it is."""

    begin: int  # in characters; equal to `end` for a token without text of its own
    end: int
    spelling_bits: float  # the part of `bits` that spells an unknown word


@dataclass(frozen=True)
class TextBits:
    """The bits of a text under one run."""

    run: str  # folder and model
    tokenizer: str  # its kind
    text: str
    bytes: int
    tokens: list[PlacedToken]
    formatting_bits: float
    normalised: bool  # False: the model gives scores that do not sum to one, so that bits are no code length

    @property
    def bits(self) -> float:
        """All bits: those of the tokens and of the formatting."""
        return math.fsum(one.bits for one in self.tokens) + self.formatting_bits

    @property
    def residue_bits(self) -> float:
        """The bits beyond log p of the tokens: spellings of unknown words, and formatting."""
        return math.fsum(one.spelling_bits for one in self.tokens) + self.formatting_bits

    @property
    def bits_per_byte(self) -> float:
        """All bits per byte of the text, as `eval` prints it; NaN for an empty text."""
        return self.bits / self.bytes if self.bytes and self.normalised else math.nan

    def to_dict(self) -> dict[str, Any]:
        """All values for JSON, infinite bits as None."""
        return {
            "run": self.run,
            "tokenizer": self.tokenizer,
            "text": self.text,
            "bytes": self.bytes,
            "bits": json_value(self.bits),
            "bits_per_byte": json_value(self.bits_per_byte),
            "residue_bits": self.residue_bits,
            "formatting_bits": self.formatting_bits,
            "tokens": [json_value(one.to_dict()) for one in self.tokens],
        }

    def to_pandas(self) -> Any:
        """One row per token."""
        return make_frame([{**one.to_dict(), "best": one.best} for one in self.tokens])
