"""Characters: every Unicode character of the training text is a token."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from chainrule.registry import TOKENIZERS
from chainrule.text.readers import Texts, not_unicode
from chainrule.text.tokenizers.base import Ids
from chainrule.text.tokenizers.vocabulary import EOS, MAX_TYPES, UNK, VocabularyTokenizer, refuse_options


@TOKENIZERS.register("char", summary="Unicode characters")
class CharTokenizer(VocabularyTokenizer):
    """One token per character; decoding is exact for text without unknown characters."""

    kind = "char"
    residue_kind = "unknowns"

    @classmethod
    def count(cls, texts: Texts, *, min_count: int = 1, max_types: int = MAX_TYPES, **options: Any) -> Counter[str]:
        refuse_options(cls.kind, options)
        totals = np.zeros(sys.maxunicode + 1, np.int64)
        for block in texts.strings():
            counts = np.bincount(_code_points(block))
            totals[: len(counts)] += counts
        totals[ord("\n")] = 0
        return Counter({chr(code): int(totals[code]) for code in np.flatnonzero(totals)})

    @classmethod
    def from_state(cls, state: dict[str, Any], blobs: dict[str, bytes]) -> Self:
        if any(len(piece) != 1 for piece in state["pieces"]):
            raise ValueError("its pieces are not all characters")
        return super().from_state(state, blobs)

    def split(self, line: str) -> list[str]:
        return list(line)

    def join(self, parts: Sequence[str]) -> str:
        return "".join(parts)

    def encode(self, line: str) -> list[int]:
        ids: list[int] = self.encode_block(line).tolist()
        return ids

    def encode_block(self, block: str) -> Ids:
        return self._table[_code_points(block)]

    @cached_property
    def _table(self) -> Ids:
        """Code point -> id."""
        table = np.full(sys.maxunicode + 1, UNK, np.int32)
        table[ord("\n")] = EOS
        table[[ord(part) for part in self.parts]] = np.arange(2, self.vocab_size)
        return table


def _code_points(text: str) -> NDArray[np.uint32]:
    try:
        return np.frombuffer(text.encode("utf-32-le"), np.uint32)
    except UnicodeEncodeError:
        raise not_unicode(text) from None
