"""Words between white space, or words and punctuation by their Unicode category.

With `split="unicode"` the usual gap is one space before a word and none before any other character. A mark on the token
records an unusual gap: `￭word` follows without a space, `␣(` follows a space. A marked token has at least two
characters, and neither mark can be part of a word, so marks are never mistaken for text.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache, cached_property, lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from chainrule.base.lazy import LazyKernels
from chainrule.errors import ConfigError, unknown_name
from chainrule.registry import TOKENIZERS
from chainrule.text.readers import Texts
from chainrule.text.tokenizers.base import EncodedBlock, Ids
from chainrule.text.tokenizers.spans import Span
from chainrule.text.tokenizers.vocabulary import (
    EOS,
    MAX_TYPES,
    UNK,
    UNK_PIECE,
    VocabularyTokenizer,
    count_parts,
    refuse_options,
)

if TYPE_CHECKING:
    from chainrule.text.tokenizers.word_table import TokenIndex

_kernels = LazyKernels("chainrule.text.tokenizers.word_table", budget=1 << 18)  # characters; 0.05 s or less

GLUED, SPACED = "￭", "␣"


class Spacing(NamedTuple):
    """The white space of a line that the tokens do not determine."""

    lead: str = ""
    inner: tuple[str, ...] | None = None  # the white space between words; None if it is always one space
    trail: str = ""


@TOKENIZERS.register("word", summary="words between white space, or by Unicode kind (split=unicode)")
class WordTokenizer(VocabularyTokenizer):
    """Whole words; rare ones are unknown. `<unk>` written in the text is the unknown token, unless `unk` is "text"."""

    kind = "word"
    word_tokens = True
    residue_kind = "spacing"
    whole_words = True

    def __init__(self, parts: Sequence[str], *, split: str = "space", unk: str = "token") -> None:
        super().__init__(parts)
        self._split, self._split_name, self._unk = _splitter(split, unk), split, unk
        self.concurrent = split == "space"

    @classmethod
    def count(
        cls,
        texts: Texts,
        *,
        min_count: int = 1,
        max_types: int = MAX_TYPES,
        split: str = "space",
        unk: str = "token",
        **options: Any,
    ) -> Counter[str]:
        refuse_options(cls.kind, options)
        blocks, parts_of = texts.strings(whole_words=True), _splitter(split, unk)
        if split != "space":
            return count_parts((chain.from_iterable(map(parts_of, block.split("\n"))) for block in blocks), max_types)
        from chainrule.base.devices import physical_cores
        from chainrule.text.tokenizers.word_table import count_words

        return count_words(blocks, max_types=max_types, threads=physical_cores(), min_count=min_count)

    def state(self) -> dict[str, Any]:
        unk = {} if self._unk == "token" else {"unk": self._unk}  # left out, so that older tokenisers keep their name
        return {"split": self._split_name, **unk, **super().state()}

    def split(self, line: str) -> list[str]:
        return self._split(line)

    def line_spans(self, line: str) -> list[Span]:
        found: list[Span] = []
        place = 0
        for part in self.split(line):
            bare = part[1:] if self._split_name == "unicode" and _mark(part) else part
            begin = line.index(bare, place)  # after white space alone: the parts are all the rest
            place = begin + len(bare)
            found.append((begin, place))
        return found

    def encode_block(self, block: str) -> Ids:
        if self._compiled(block) is None:
            return super().encode_block(block)
        return self.encode_bytes(block.encode(errors="surrogatepass"))

    def encode_words(self, block: str) -> EncodedBlock:
        word_table = self._compiled(block)
        if word_table is None:
            return super().encode_words(block)
        words = word_table.Words.of(block.encode(errors="surrogatepass"))
        return EncodedBlock(block, self._table.ids_of(words), words)

    def _compiled(self, block: str) -> Any:
        """The module that encodes a block; None if that is left to Python."""
        return _kernels.after(len(block)) if self._split_name == "space" else None

    def encode_bytes(self, data: bytes) -> Ids:
        """The ids of a text given in UTF-8, int32; every newline is eos. Several threads may call it at once."""
        if self._split_name == "space":
            return self._table.encode(data)
        return super().encode_block(data.decode())

    @cached_property
    def _table(self) -> TokenIndex:
        from chainrule.text.tokenizers.word_table import TokenIndex  # numba takes a while to import

        tokens = [""] * self.vocab_size
        for part, token in self._index.items():
            tokens[token] = part
        tokens[UNK], tokens[EOS] = "", "\n"  # a literal <unk> is looked up like any word outside the vocabulary
        return TokenIndex(tokens, missing=UNK)

    def join(self, parts: Sequence[str]) -> str:
        return self.restore(parts, Spacing())

    def spacing(self, line: str) -> Spacing:
        """The white space that `restore` needs besides the parts to rebuild the line."""
        core = line.strip()
        lead = line[: len(line) - len(line.lstrip())] if core else line
        trail = line[len(lead) + len(core) :]
        if core == " ".join(core.split()):
            return Spacing(lead, None, trail)
        return Spacing(lead, tuple(re.findall(r"\s+", core)), trail)

    def restore(self, parts: Sequence[str], spacing: Spacing) -> str:
        """The line with these parts and this white space; the inverse of `split` and `spacing`."""
        gapped, bare = self._gapped(parts), parts
        if self._split_name == "unicode":
            bare = [part[1:] if _mark(part) else part for part in parts]
        inner = iter(spacing.inner or ())
        spaced = (next(inner, " ") + part if gap else part for gap, part in zip(gapped, bare, strict=True))
        return f"{spacing.lead}{''.join(spaced)}{spacing.trail}"

    def gaps(self, parts: Sequence[str]) -> int:
        """The number of places between the parts of a line that have white space."""
        return sum(self._gapped(parts))

    def _gapped(self, parts: Sequence[str]) -> list[bool]:
        """Whether there is white space before each part; False for the first."""
        if self._split_name == "space":
            return [number > 0 for number in range(len(parts))]
        return [number > 0 and _follows_space(part) for number, part in enumerate(parts)]


def _splitter(split: str, unk: str) -> Callable[[str], list[str]]:
    if split not in _SPLITS:
        raise unknown_name("word split", split, _SPLITS)
    if unk not in _SPLITS[split]:
        raise ConfigError(
            f"tokenizer.unk is '{unk}', but with tokenizer.split = '{split}' it must be {' or '.join(_SPLITS[split])}: "
            "<unk> between spaces is the unknown token; add --set tokenizer.split=unicode"
        )
    return _SPLITS[split][unk]


def _split_unicode(line: str) -> list[str]:
    """The tokens of a line, marked where the gap before them is unusual; `<unk>` is one of them."""
    return _begin(list(chain.from_iterable(map(_marked, line.split()))))


def _split_unicode_text(line: str) -> list[str]:
    """The same, where `<unk>` is three tokens like any other word between angle brackets."""
    return _begin(list(chain.from_iterable(map(_marked_text, line.split()))))


def _begin(parts: list[str]) -> list[str]:
    """The tokens of a line, of which the first needs no mark."""
    if parts and _mark(parts[0]):
        parts[0] = parts[0][1:]
    return parts


_SPLITS: dict[str, dict[str, Callable[[str], list[str]]]] = {
    "space": {"token": str.split},
    "unicode": {"token": _split_unicode, "text": _split_unicode_text},
}
"""How a line is split, by `split` and by what `<unk>` is."""


@lru_cache(1 << 17)
def _marked(chunk: str) -> tuple[str, ...]:
    """The tokens of a chunk between white space, marked as inside a line."""
    return _with_marks(_unicode_parts(f"{UNK_PIECE}|").findall(chunk))


@lru_cache(1 << 17)
def _marked_text(chunk: str) -> tuple[str, ...]:
    """The same, where `<unk>` is text like any other."""
    return _with_marks(_unicode_parts("").findall(chunk))


def _with_marks(parts: Sequence[str]) -> tuple[str, ...]:
    first, *others = parts
    glued = (GLUED + part if _is_word(part) else part for part in others)
    return (first if _is_word(first) else SPACED + first, *glued)


@cache
def _unicode_parts(before: str) -> re.Pattern[str]:
    """The pattern of a token: one of `before`, a word with inner apostrophes and hyphens, or one other character.

    Combining marks (an accent, a Devanagari vowel) belong to words, but are not matched by `\\w`.
    """
    marks = (chr(code) for code in range(sys.maxunicode + 1) if unicodedata.category(chr(code)).startswith("M"))
    letter = f"[\\w{''.join(map(re.escape, marks))}]"
    return re.compile(f"{before}{letter}+(?:['’\\-]{letter}+)*|\\S")


def _is_word(part: str) -> bool:
    return len(part) > 1 or part.isalnum() or part == "_" or unicodedata.category(part).startswith("M")


def _mark(part: str) -> str:
    """The mark of a token, "" if it has none."""
    return part[0] if len(part) > 1 and part[0] in (GLUED, SPACED) else ""


def _follows_space(part: str) -> bool:
    return _mark(part) == SPACED or (not _mark(part) and _is_word(part))
