"""The interface of tokenisers: lines to ids, ids to text, and a folder to save to.

A text is a sequence of lines. A tokeniser encodes a line without its newline; the newline is the token `eos` for
every kind. So a text is ids(line 1) eos ids(line 2) eos …, without the last eos if the last newline is missing.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from chainrule.base.files import write_atomically
from chainrule.text.readers import Texts
from chainrule.text.tokenizers.spans import Span, spans_by_search

if TYPE_CHECKING:
    from chainrule.text.coding.speller import Speller
    from chainrule.text.tokenizers.word_table import Words

Ids = NDArray[np.integer[Any]]
FILE = "tokenizer.json"
VERSION = 1

ResidueKind = Literal["nothing", "unknowns", "spacing", "lines"]
"""What the ids of a line leave open: nothing; the spelling of unknown tokens; that and the white space; anything."""


class EncodedBlock(NamedTuple):
    """A text with newlines and its ids."""

    text: str
    ids: Ids
    words: Words | None = None  # where the token of each id is, if encoding has found that


class Tokenizer(ABC):
    """Lines of text to ids and back."""

    kind: ClassVar[str]
    ends_lines: ClassVar[bool] = True  # eos is the newline; otherwise it only comes before whole texts
    residue_kind: ClassVar[ResidueKind] = "nothing"
    any_bytes: ClassVar[bool] = False  # accepts text that is not UTF-8
    whole_words: ClassVar[bool] = False  # a word must not be split between two blocks
    joins_spaces: ClassVar[bool] = False  # the space before a word is part of the word's token
    word_tokens: ClassVar[bool] = False  # every token is a whole word, and a line is usually a sentence
    drops_rare: ClassVar[bool] = False  # takes min_count: rarer parts become <unk>

    vocab_size: int
    eos: int
    unk: int | None = None
    exact: bool = True  # decode(encode(line)) == line for every line
    concurrent: bool = False  # several threads may encode blocks at once, and are faster than one

    @classmethod
    @abstractmethod
    def train(cls, texts: Texts, *, vocab_size: int | None, min_count: int, **options: Any) -> Self:
        """Fit to a text. `vocab_size` includes the special tokens; what is rarer than `min_count` is unknown."""

    @abstractmethod
    def encode(self, line: str) -> list[int]:
        """The ids of one line (which has no newline), without eos."""

    @abstractmethod
    def decode(self, ids: Iterable[int]) -> str:
        """The text of some ids; eos is a newline."""

    @abstractmethod
    def piece(self, token: int) -> str:
        """The token as it is displayed."""

    def written_pieces(self, line: str) -> list[str]:
        """The tokens of a line as they are displayed, but unknown ones as they are written in the line."""
        return [self.piece(token) for token in self.encode(line)]

    def text_pieces(self, text: str) -> list[str]:
        """The tokens of `encode_block(text)` as they are displayed, unknown ones as they are written."""
        *lines, rest = text.split("\n")
        end = self.piece(self.eos)
        pieces = [piece for line in lines for piece in (*self.written_pieces(line), end)]
        return [*pieces, *self.written_pieces(rest)] if rest else pieces

    def spans(self, text: str) -> list[Span]:
        """Where each token of `encode_block(text)` is in the text: begin and end in characters."""
        found: list[Span] = []
        place = 0
        for line in text.split("\n"):
            found += [(place + begin, place + end) for begin, end in self.line_spans(line)]
            place += len(line) + 1
            found.append((place - 1, place))  # the newline
        return found[:-1]

    def line_spans(self, line: str) -> list[Span]:
        """The spans of the tokens of one line, which has no newline."""
        return spans_by_search(line, self.written_pieces(line))

    @abstractmethod
    def to_id(self, piece: str) -> int | None:
        """The id of a token, None if there is no such token."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Everything that defines this tokeniser besides `blobs`, as JSON values."""

    @classmethod
    @abstractmethod
    def from_state(cls, state: dict[str, Any], blobs: dict[str, bytes]) -> Self:
        """The inverse of `state` and `blobs`."""

    @abstractmethod
    def types(self) -> Iterator[bytes]:
        """The spellings of the ordinary tokens; the speller of unknown tokens is fitted to them."""

    def blobs(self) -> dict[str, bytes]:
        """Files that belong to the tokeniser besides its JSON, by name."""
        return {}

    def encode_lines(self, lines: Sequence[str]) -> Sequence[Sequence[int]]:
        """The ids of many lines."""
        return [self.encode(line) for line in lines]

    def encode_block(self, block: str) -> Ids:
        """The ids of a text with newlines: every newline is eos."""
        *lines, rest = block.split("\n")
        ids = self.encode_lines([*lines, rest] if rest else lines)
        end = (self.eos,)
        parts = chain.from_iterable(chain(line_ids, end) for line_ids in ids)
        encoded = np.fromiter(parts, np.int32, sum(map(len, ids)) + len(ids))
        return encoded[:-1] if rest else encoded

    def encode_words(self, block: str) -> EncodedBlock:
        """`encode_block` with all that it finds."""
        return EncodedBlock(block, self.encode_block(block))

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """The bytes of some ids; they differ from `decode` where they are not UTF-8."""
        return self.decode(ids).encode()

    def blocks(self, texts: Texts) -> Iterator[str]:
        """The text in blocks that this tokeniser can encode; errors name the file and the byte."""
        return texts.strings(any_bytes=self.any_bytes, whole_words=self.whole_words)

    @cached_property
    def spaces_matter(self) -> bool:
        """Whether a word inside a line has the ids that it has after a space, and other ids by itself."""
        first = self.encode("a")
        return self.encode("a b")[len(first) :] == self.encode(" b") != self.encode("b")

    @cached_property
    def speller(self) -> Speller:
        """The model of how this tokeniser's tokens are spelled; computed from the vocabulary, not saved."""
        from chainrule.text.coding.speller import Speller

        return Speller(self.types())

    @cached_property
    def fingerprint(self) -> str:
        """32 hexadecimal digits: equal for tokenisers that encode equally."""
        return digest_of(self._json().encode(), self.blobs())

    def save(self, folder: Path) -> None:
        """Write the blobs and `tokenizer.json`; the JSON comes last, so that it never refers to missing files."""
        blobs, content = self.blobs(), self._json().encode()
        for name, data in blobs.items():
            write_atomically(folder / name, data)
        write_atomically(folder / FILE, content)
        self.__dict__.setdefault("fingerprint", digest_of(content, blobs))  # the JSON of many words takes a while

    def _json(self) -> str:
        content = {"kind": self.kind, "version": VERSION, **self.state(), "files": sorted(self.blobs())}
        return _in_lines(content)

    def lines_of(self, ids: Iterable[int]) -> Iterator[list[int]]:
        """The ids between the newlines; what follows the last newline is the last line, maybe empty."""
        line: list[int] = []
        for token in ids:
            if token == self.eos:
                yield line
                line = []
            else:
                line.append(int(token))
        yield line


def digest_of(content: bytes, blobs: Mapping[str, bytes]) -> str:
    """The fingerprint of a tokeniser whose files have these contents."""
    digest = hashlib.blake2b(content, digest_size=16)
    for name, data in sorted(blobs.items()):
        digest.update(name.encode() + b"\0" + data)
    return digest.hexdigest()


SEPARATORS = (",\n", ": ")


def _in_lines(content: dict[str, Any]) -> str:
    """`json.dumps` with an indent of 0. The compiled encoder knows no indent, so it gets long lists by themselves."""

    def write(value: Any) -> str:
        if isinstance(value, list) and value and set(map(type, value)) == {str}:
            return f"[\n{json.dumps(value, ensure_ascii=False, separators=SEPARATORS)[1:-1]}\n]"
        return json.dumps(value, ensure_ascii=False, indent=0)

    entries = [f"{write(name)}: {write(value)}" for name, value in content.items()]
    return "{\n" + ",\n".join(entries) + "\n}"
