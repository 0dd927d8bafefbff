"""Byte-order marks: that of UTF-8 is removed, and a text that begins with that of UTF-16 is converted to UTF-8."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator
from itertools import chain

from chainrule.errors import DataError

UTF16_MARKS = {codecs.BOM_UTF16_LE: "utf-16le", codecs.BOM_UTF16_BE: "utf-16be"}


def as_utf8(chunks: Iterable[bytes], name: str) -> Iterator[bytes]:
    """The bytes of a text without its byte-order mark; UTF-16 with a mark becomes UTF-8, other bytes stay as they are.

    `name` is that of the text in messages.
    """
    parts = iter(chunks)
    head = b""
    for chunk in parts:
        head += chunk
        if len(head) > 3:
            break
    if (encoding := utf16_of(head)) is not None:
        yield from _from_utf16(chain([head[2:]], parts), encoding, name)
        return
    if rest := head.removeprefix(codecs.BOM_UTF8):
        yield rest
    yield from parts


def utf16_of(head: bytes) -> str | None:
    """The encoding of a text that begins with the mark of UTF-16 and is UTF-16 as far as it can be seen, else None.

    Other data may begin with the same two bytes, so the first chunk must be text.
    """
    encoding = UTF16_MARKS.get(head[:2])
    if encoding is None:
        return None
    try:
        text = codecs.getincrementaldecoder(encoding)().decode(head[2:])
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else encoding


def utf16_by_zeros(nul: int) -> str:
    """The kind of UTF-16 of a text without a mark, by the offset of its first NUL, which is beside an ASCII letter."""
    return "utf-16le" if nul % 2 else "utf-16be"


def _from_utf16(chunks: Iterable[bytes], encoding: str, name: str) -> Iterator[bytes]:
    decoder = codecs.getincrementaldecoder(encoding)()
    try:
        for chunk in chunks:
            if text := decoder.decode(chunk):
                yield text.encode()
        yield decoder.decode(b"", final=True).encode()
    except UnicodeDecodeError as error:
        raise DataError(
            f"{name} begins like UTF-16, but is not ({error.reason}): expected text; convert it to UTF-8 or restore it."
        ) from None
