"""Text as a stream of lines, read any number of times in bounded memory.

A text is a sequence of lines in bytes, each ended by a newline; the last may lack it. Nothing else has a meaning:
carriage returns are ordinary characters. Byte-order marks are removed, unless the exact bytes are wanted. Several
sources are read as one text; where a source lacks its last newline, one is inserted before the next source.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from chainrule.base.known_files import FileState, joined
from chainrule.errors import DataError
from chainrule.text.encodings import utf16_by_zeros
from chainrule.text.sources import TextSource, find_sources, name_of

MEASURED = "size and fingerprint of a text 1"
_MEASURED = re.compile("([0-9]+) ([0-9a-f]{32})")

BLOCK = 1 << 19
"""Bytes of a block at most: a longer line comes in several blocks."""


class Piece(NamedTuple):
    """A line without its newline, or a part of a line that is too long for one piece."""

    text: bytes
    ends_line: bool


class TextBlock(NamedTuple):
    """Whole lines with their newlines; without a final newline, a part of a long line or the last line of the text."""

    data: bytes
    offset: int  # of its first byte in the whole text
    inside_word: bool = False  # cut inside a word, as there was no white space


class Texts:
    """Sources read as one text. Every method starts from the beginning."""

    def __init__(self, sources: Sequence[TextSource], *, block: int = BLOCK) -> None:
        self.sources = list(sources)
        self._block = block
        self._starts: list[tuple[int, str]] = []

    @property
    def name(self) -> str:
        """The name of this text in messages."""
        return name_of(self.sources)

    @property
    def size(self) -> int:
        """Bytes, uncompressed."""
        return self._measured[0]

    def fingerprint(self) -> str:
        """32 hexadecimal digits that depend on every byte of the text."""
        return self._measured[1]

    @property
    def state(self) -> FileState | None:
        """The state of the files of this text; None if it does not come from files alone."""
        return joined(source.state() for source in self.sources)

    @cached_property
    def _measured(self) -> tuple[int, str]:
        state = self.state
        if state and (known := _MEASURED.fullmatch(state.recall(MEASURED) or "")):
            return int(known[1]), known[2]
        digest, size = hashlib.blake2b(digest_size=16), 0
        for chunk in self._chunks():
            digest.update(chunk)
            size += len(chunk)
        if state and state == self.state:
            state.note(MEASURED, f"{size} {digest.hexdigest()}")
        return size, digest.hexdigest()

    def blocks(self) -> Iterator[TextBlock]:
        """The text in blocks of about half a MiB, cut after a line if possible, else after a space, else anywhere."""
        buffer, offset = bytearray(), 0
        for chunk in self._chunks():
            for start in range(0, len(chunk), self._block):
                buffer += chunk[start : start + self._block]
                while len(buffer) > self._block:  # one byte more, to see whether a character ends there
                    cut, inside_word = _cut(buffer, self._block)
                    yield TextBlock(bytes(buffer[:cut]), offset, inside_word)
                    del buffer[:cut]
                    offset += cut
        if buffer:
            yield TextBlock(bytes(buffer), offset)

    def pieces(self) -> Iterator[Piece]:
        """The lines without their newlines, long ones in several pieces."""
        for block in self.blocks():
            *lines, rest = block.data.split(b"\n")
            for line in lines:
                yield Piece(line, ends_line=True)
            if rest:
                yield Piece(rest, ends_line=False)

    def strings(self, *, any_bytes: bool = False, whole_words: bool = False) -> Iterator[str]:
        """The blocks as strings.

        `any_bytes` accepts NUL and bytes that are not UTF-8 (as surrogate escapes); otherwise they are errors.
        `whole_words` makes a word that is too long for a block an error.
        """
        for block in self.blocks():
            if whole_words and block.inside_word:
                raise DataError(
                    f"{self._place(block.offset)}: a word longer than {self._block} bytes; expected white space "
                    "between words; use --tokenizer char."
                )
            yield block.data.decode(errors="surrogateescape") if any_bytes else self._decode(block)

    def _decode(self, block: TextBlock) -> str:
        try:
            text, nul = block.data.decode(), block.data.find(0)
        except UnicodeDecodeError as error:
            nul = block.data.find(0, 0, error.start)
            if nul < 0:
                raise DataError(
                    f"{self._place(block.offset + error.start)} is 0x{block.data[error.start]:02x}; "
                    "expected UTF-8 text; convert the file (iconv -f latin1 -t utf-8) or use --tokenizer byte."
                ) from error
        if nul >= 0:
            raise DataError(
                f"{self._place(block.offset + nul)} is NUL, so this looks like a binary or UTF-16 file; expected UTF-8 "
                f"text; convert the file (iconv -f {utf16_by_zeros(block.offset + nul)} -t utf-8) or use --tokenizer "
                "byte."
            )
        return text

    def _chunks(self) -> Iterator[bytes]:
        """All bytes; the start of each source is recorded, so that an error can name the file."""
        self._starts = []
        offset, last = 0, b"\n"
        for source in self.sources:
            begun = False
            for chunk in source.chunks():
                if not chunk:
                    continue
                if not begun and last != b"\n":
                    offset += 1
                    yield b"\n"
                if not begun:
                    self._starts.append((offset, source.name))
                begun, last = True, chunk[-1:]
                offset += len(chunk)
                yield chunk
        if offset == 0:
            raise DataError(f"{self.name} is empty: expected text; give a file with at least one line.")

    def _place(self, offset: int) -> str:
        start, name = [(start, name) for start, name in self._starts if start <= offset][-1]
        return f"{name}: byte {offset - start}"


def open_texts(sources: Sequence[str | Path], *, field: str = "text", exact: bool = False) -> Texts:
    """The text of files, folders, "-" (standard input) or "hf:NAME:SPLIT"; `field` holds the text in JSON records.

    `exact`: every byte of the files, byte-order marks included.
    """
    if isinstance(sources, str | Path):
        sources = [sources]
    found = [one for source in sources for one in find_sources(source, field, exact=exact)]
    if not found:
        raise DataError("no text was given: expected a file, a folder, '-' or hf:NAME:SPLIT; name at least one.")
    return Texts(found)


def lines_in(texts: Texts, *, any_bytes: bool = False) -> Iterator[str]:
    """The lines of a text, each whole, however long."""
    parts: list[str] = []
    for block in texts.strings(any_bytes=any_bytes):
        *whole, last = block.split("\n")
        for line in whole:
            yield "".join([*parts, line]) if parts else line
            parts = []
        if last:
            parts.append(last)
    if parts:
        yield "".join(parts)


def join_texts(*texts: Texts) -> Texts:
    """Several texts as one."""
    return Texts([source for text in texts for source in text.sources])


def text_of(data: str | bytes, name: str = "text") -> Texts:
    """A text given in memory."""
    try:
        content = data.encode() if isinstance(data, str) else data
    except UnicodeEncodeError:
        raise not_unicode(str(data)) from None
    return Texts([TextSource(name, lambda: iter([content]))])


def not_unicode(text: str) -> DataError:
    """The error for a text with lone surrogates, which stand for bytes that are not UTF-8."""
    place = next((place for place, sign in enumerate(text) if "\ud800" <= sign <= "\udfff"), 0)
    return DataError(
        f"character {place + 1} of the text stands for a byte that is not UTF-8; convert the text first: "
        "iconv -f latin1 -t utf-8"
    )


def _cut(buffer: bytearray, limit: int) -> tuple[int, bool]:
    """Where to end a block within the first `limit` bytes, and whether that splits a word."""
    cut = buffer.rfind(b"\n", 0, limit) + 1
    if not cut:
        cut = max(buffer.rfind(b" ", 0, limit), buffer.rfind(b"\t", 0, limit)) + 1
    if cut:
        return cut, False
    # A UTF-8 character has at most three continuation bytes; with more it is not UTF-8, and any cut is as good.
    boundary = next((cut for cut in range(limit, limit - 4, -1) if _starts_character(buffer, cut)), limit)
    return boundary or limit, True


def _starts_character(buffer: bytearray, index: int) -> bool:
    return buffer[index] & 0xC0 != 0x80
