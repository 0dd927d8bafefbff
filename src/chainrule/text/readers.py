"""Text as a stream of lines, read again and again in bounded memory.

A text is bytes, a sequence of lines each ended by a newline; the last may lack it. Nothing else has a meaning: a
carriage return is a character, a byte order mark is a character. Several sources are one text, and a newline is
supplied between two of them where the first lacks its last one, so that lines never run together.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from chainrule.errors import DataError
from chainrule.text.sources import Source, find_sources

BLOCK = 1 << 19
"""Bytes a block may hold: a line longer than this comes in several."""


class Piece(NamedTuple):
    """A line without its newline, or a part of one that is too long for one piece."""

    text: bytes
    ends_line: bool


class Block(NamedTuple):
    """Whole lines with their newlines; or, without a newline at its end, a part of a long line or the text's last."""

    data: bytes
    offset: int  # of its first byte in the whole text
    inside_word: bool = False  # cut where there was no white space to cut at


class Texts:
    """Some sources read as one text. Every method starts from the beginning."""

    def __init__(self, sources: Sequence[Source], *, block: int = BLOCK) -> None:
        self.sources = list(sources)
        self._block = block
        self._starts: list[tuple[int, str]] = []

    @property
    def name(self) -> str:
        """What to call this text in a message."""
        others = len(self.sources) - 1
        return self.sources[0].name + (f" and {others} more" if others else "")

    @property
    def size(self) -> int:
        """Bytes, uncompressed."""
        return self._measured[0]

    def fingerprint(self) -> str:
        """32 hexadecimal digits that change when any byte of the text does."""
        return self._measured[1]

    @cached_property
    def _measured(self) -> tuple[int, str]:
        digest, size = hashlib.blake2b(digest_size=16), 0
        for chunk in self._chunks():
            digest.update(chunk)
            size += len(chunk)
        return size, digest.hexdigest()

    def blocks(self) -> Iterator[Block]:
        """The text in blocks of about half a MiB, cut after a line where possible, else after a space or a letter."""
        buffer, offset = bytearray(), 0
        for chunk in self._chunks():
            for start in range(0, len(chunk), self._block):
                buffer += chunk[start : start + self._block]
                while len(buffer) > self._block:  # one byte more, to see whether a character ends there
                    cut, inside_word = _cut(buffer, self._block)
                    yield Block(bytes(buffer[:cut]), offset, inside_word)
                    del buffer[:cut]
                    offset += cut
        if buffer:
            yield Block(bytes(buffer), offset)

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

        `any_bytes` lets through what is not UTF-8 (as surrogate escapes) and NUL; otherwise either is an error.
        `whole_words` makes an error of a word too long for a block.
        """
        for block in self.blocks():
            if whole_words and block.inside_word:
                raise DataError(
                    f"{self._place(block.offset)}: a word longer than {self._block} bytes; expected white space "
                    "between words; use --tokenizer char."
                )
            yield block.data.decode(errors="surrogateescape") if any_bytes else self._decode(block)

    def _decode(self, block: Block) -> str:
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
                "text; convert the file (iconv -f utf-16 -t utf-8) or use --tokenizer byte."
            )
        return text

    def _chunks(self) -> Iterator[bytes]:
        """All bytes, noting where each source starts, so that an error can name the file."""
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


def open_texts(sources: Sequence[str | Path], *, field: str = "text") -> Texts:
    """The text of files, folders, "-" (standard input) or "hf:NAME:SPLIT"; `field` is what to take of JSON records."""
    if isinstance(sources, str | Path):
        sources = [sources]
    found = [one for source in sources for one in find_sources(source, field)]
    if not found:
        raise DataError("no text was given: expected a file, a folder, '-' or hf:NAME:SPLIT; name at least one.")
    return Texts(found)


def lines_in(texts: Texts, *, any_bytes: bool = False) -> Iterator[str]:
    """The lines of a text, one at a time and whole, however long."""
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
    """A text that is already in memory."""
    content = data.encode() if isinstance(data, str) else data
    return Texts([Source(name, lambda: iter([content]))])


def _cut(buffer: bytearray, limit: int) -> tuple[int, bool]:
    """Where to end a block within the first `limit` bytes, and whether that is inside a word."""
    cut = buffer.rfind(b"\n", 0, limit) + 1
    if not cut:
        cut = max(buffer.rfind(b" ", 0, limit), buffer.rfind(b"\t", 0, limit)) + 1
    if cut:
        return cut, False
    # A UTF-8 character has at most three continuation bytes; more of them is no UTF-8, and any cut will do.
    boundary = next((cut for cut in range(limit, limit - 4, -1) if _starts_character(buffer, cut)), limit)
    return boundary or limit, True


def _starts_character(buffer: bytearray, index: int) -> bool:
    return buffer[index] & 0xC0 != 0x80
