"""What inference works on: a trained model with its tokenisers."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from chainrule.base.devices import device_of
from chainrule.base.lazy import torch
from chainrule.text.tokenizers import Tokenizer
from chainrule.text.tokenizers.vocabulary import VocabularyTokenizer


@dataclass(frozen=True)
class TextModel:
    """A model and its tokeniser. `name` is for messages, for example "runs/book (lstm)"."""

    model: Any
    tokenizer: Tokenizer
    name: str

    @property
    def device(self) -> torch.device:
        """Where the model computes."""
        return device_of(self.model)

    @property
    def source_tokenizer(self) -> Tokenizer:
        """The tokeniser of the text that the model reads."""
        return self.tokenizer

    @property
    def source_prefix(self) -> str:
        """Text before everything that the model reads."""
        return ""


@dataclass(frozen=True)
class TranslationModel(TextModel):
    """A translator; `tokenizer` is that of the target."""

    read_tokenizer: Tokenizer
    prefix: str

    @property
    def source_tokenizer(self) -> Tokenizer:
        return self.read_tokenizer

    @property
    def source_prefix(self) -> str:
        return self.prefix

    def encode_source(self, line: str, number: int = 1) -> list[int]:
        """A line as source tokens, cut with a warning where the model cannot read more."""
        tokens = self.read_tokenizer.encode(self.prefix + line)
        limit = len(tokens) if self.model.window is None else self.model.window - 1
        if len(tokens) > limit:
            warn_cut(number, len(tokens), limit)
        return tokens[:limit]

    def source_pieces(self, line: str, tokens: Sequence[int]) -> list[str]:
        """The source tokens as text: the exact words of the line where tokens are words."""
        tokenizer = self.read_tokenizer
        if isinstance(tokenizer, VocabularyTokenizer):
            words = tokenizer.split(self.prefix + line)[: len(tokens)]
            return [tokenizer.join([word]) for word in words]  # without the marks of the tokeniser
        return [tokenizer.piece(token) for token in tokens]


def warn_cut(number: int, tokens: int, limit: int) -> None:
    """Warn that a line is longer than the model can read."""
    warnings.warn(
        f"line {number} has {tokens} tokens, but the model reads {limit}: the rest is missing from the translation",
        stacklevel=2,
    )
