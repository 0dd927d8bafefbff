"""Chinese words by jieba, with its hidden Markov model for words outside its dictionary."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Sequence
from functools import cache
from itertools import chain
from typing import Any

from chainrule.errors import TokenizerError
from chainrule.registry import TOKENIZERS
from chainrule.text.readers import Texts
from chainrule.text.tokenizers.vocabulary import (
    MAX_TYPES,
    UNK_PIECE,
    VocabularyTokenizer,
    count_parts,
    refuse_options,
)


@TOKENIZERS.register("jieba", summary="Chinese words, by jieba")
class JiebaTokenizer(VocabularyTokenizer):
    """Words that give the line when joined; a literal `<unk>` is the unknown token."""

    kind = "jieba"
    word_tokens = True
    residue_kind = "unknowns"

    @classmethod
    def count(cls, texts: Texts, *, min_count: int = 1, max_types: int = MAX_TYPES, **options: Any) -> Counter[str]:
        refuse_options(cls.kind, options)
        parts = (chain.from_iterable(map(_cut, block.split("\n"))) for block in texts.strings())
        return count_parts(parts, max_types)

    def split(self, line: str) -> list[str]:
        return _cut(line)

    def join(self, parts: Sequence[str]) -> str:
        return "".join(parts)


def _cut(line: str) -> list[str]:
    if UNK_PIECE not in line:
        return _words(line)
    around = re.split(f"({UNK_PIECE})", line)
    return [word for part in around for word in ([part] if part == UNK_PIECE else _words(part))]


def _words(text: str) -> list[str]:
    words: list[str] = _jieba().lcut(text)
    return words


@cache
def _jieba() -> Any:
    """A separate segmenter, so that changes to jieba's global one do not change the tokens."""
    try:
        import jieba
    except ImportError as error:
        raise TokenizerError("the jieba tokeniser needs the jieba library: pip install 'chainrule[zh]'.") from error
    jieba.setLogLevel(logging.WARNING)
    return jieba.Tokenizer()
