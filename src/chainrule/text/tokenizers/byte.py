"""Bytes: 256 tokens, no training, no unknown tokens, any file. The newline, byte 10, is eos."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Self

import numpy as np

from chainrule.errors import ConfigError
from chainrule.registry import TOKENIZERS
from chainrule.text.readers import Texts
from chainrule.text.tokenizers.base import Ids, Tokenizer
from chainrule.text.tokenizers.spans import Span, spans_by_bytes
from chainrule.text.tokenizers.vocabulary import refuse_min_count, refuse_options


@TOKENIZERS.register("byte", summary="bytes; takes any file")
class ByteTokenizer(Tokenizer):
    """An id is a byte."""

    kind = "byte"
    any_bytes = True
    vocab_size = 256
    eos = ord("\n")

    @classmethod
    def train(cls, texts: Texts, *, vocab_size: int | None, min_count: int, **options: Any) -> Self:
        refuse_options(cls.kind, options)
        refuse_min_count(cls.kind, min_count)
        if vocab_size not in (None, cls.vocab_size):
            raise ConfigError(f"got a vocab_size of {vocab_size}: the byte tokeniser has 256 tokens; leave it out.")
        return cls()

    def encode(self, line: str) -> list[int]:
        return list(_bytes(line))

    def encode_block(self, block: str) -> Ids:
        return np.frombuffer(_bytes(block), np.uint8)

    def decode(self, ids: Iterable[int]) -> str:
        return self.decode_bytes(ids).decode(errors="replace")

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        return bytes(int(token) for token in ids)

    def piece(self, token: int) -> str:
        character = chr(token)
        return character if character.isascii() and character.isprintable() else f"<0x{token:02X}>"

    def line_spans(self, line: str) -> list[Span]:
        return spans_by_bytes(line, [1] * len(_bytes(line)))

    def to_id(self, piece: str) -> int | None:
        return next((token for token in range(256) if self.piece(token) == piece), None)

    def types(self) -> Iterator[bytes]:
        return (bytes([token]) for token in range(256))

    def state(self) -> dict[str, Any]:
        return {}

    @classmethod
    def from_state(cls, state: dict[str, Any], blobs: dict[str, bytes]) -> Self:
        return cls()


def _bytes(text: str) -> bytes:
    """The bytes of a text, where surrogate escapes stand for bytes that are not UTF-8."""
    return text.encode(errors="surrogateescape")
