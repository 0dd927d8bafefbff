"""What every tokeniser does: lines to ids, ids to text, and a folder to live in.

A text is a sequence of lines. A tokeniser encodes a line without its newline; the newline is the token `eos` for
every kind. So a text is ids(line 1) eos ids(line 2) eos ..., without the last eos if the last newline is missing.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray

from chainrule.base.files import write_atomically
from chainrule.text.readers import Texts

if TYPE_CHECKING:
    from chainrule.text.coding.speller import Speller

Ids = NDArray[np.integer[Any]]
FILE = "tokenizer.json"
VERSION = 1

Remainder = Literal["nothing", "unknowns", "spacing", "lines"]
"""What the ids of a line leave untold: nothing; how unknown tokens are spelled; that and the white space; anything."""


class Tokenizer(ABC):
    """Lines of text to ids and back."""

    kind: ClassVar[str]
    ends_lines: ClassVar[bool] = True  # whether eos is the newline; otherwise it stands before whole texts alone
    remainder: ClassVar[Remainder] = "nothing"
    any_bytes: ClassVar[bool] = False  # takes what is not UTF-8
    whole_words: ClassVar[bool] = False  # cannot take a word in two pieces

    vocab_size: int
    eos: int
    unk: int | None = None
    exact: bool = True  # decode(encode(line)) == line for every line
    concurrent: bool = False  # several threads may encode blocks at once, and are quicker than one

    @classmethod
    @abstractmethod
    def train(cls, texts: Texts, *, vocab_size: int | None, min_count: int, **options: Any) -> Self:
        """Fit to a text. `vocab_size` counts the special tokens; what is rarer than `min_count` is left out."""

    @abstractmethod
    def encode(self, line: str) -> list[int]:
        """The ids of one line (which has no newline), without eos."""

    @abstractmethod
    def decode(self, ids: Iterable[int]) -> str:
        """The text of some ids; eos is a newline."""

    @abstractmethod
    def piece(self, token: int) -> str:
        """The token as it is shown to people."""

    @abstractmethod
    def to_id(self, piece: str) -> int | None:
        """The id of a token, None if there is no such token."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Everything that makes this tokeniser, as JSON values, besides `blobs`."""

    @classmethod
    @abstractmethod
    def from_state(cls, state: dict[str, Any], blobs: dict[str, bytes]) -> Self:
        """The inverse of `state` and `blobs`."""

    @abstractmethod
    def types(self) -> Iterator[bytes]:
        """The spellings of the ordinary tokens, from which the spelling of unknown ones is learned."""

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

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """The bytes that some ids stand for; differs from `decode` where the bytes are not UTF-8."""
        return self.decode(ids).encode()

    def blocks(self, texts: Texts) -> Iterator[str]:
        """The text in blocks that this tokeniser can encode; errors name the file and the byte."""
        return texts.strings(any_bytes=self.any_bytes, whole_words=self.whole_words)

    @cached_property
    def speller(self) -> Speller:
        """The model of how this tokeniser's tokens are spelled; rebuilt from the vocabulary, so never stored."""
        from chainrule.text.coding.speller import Speller

        return Speller(self.types())

    @cached_property
    def fingerprint(self) -> str:
        """32 hexadecimal digits: equal for tokenisers that encode alike."""
        digest = hashlib.blake2b(self._json().encode(), digest_size=16)
        for name, data in sorted(self.blobs().items()):
            digest.update(name.encode() + b"\0" + data)
        return digest.hexdigest()

    def save(self, folder: Path) -> None:
        """Write `tokenizer.json` and what belongs to it; the JSON comes last, so it never points at missing files."""
        for name, data in self.blobs().items():
            write_atomically(folder / name, data)
        write_atomically(folder / FILE, self._json().encode())

    def _json(self) -> str:
        content = {"kind": self.kind, "version": VERSION, **self.state(), "files": sorted(self.blobs())}
        return json.dumps(content, ensure_ascii=False, indent=0)

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
