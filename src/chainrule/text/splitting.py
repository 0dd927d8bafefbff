"""Some of the lines of a text."""

from __future__ import annotations

from collections.abc import Iterator

from chainrule.text.readers import Texts
from chainrule.text.sources import TextSource


def some_lines(texts: Texts, begin: int, end: int | None = None) -> Texts:
    """The lines from index `begin` to before `end`, read from the sources; nothing is copied."""

    def chunks() -> Iterator[bytes]:
        number = 0
        for piece in texts.pieces():
            if number == end:
                return
            if number >= begin:
                yield piece.text + b"\n" * piece.ends_line
            number += piece.ends_line

    return Texts([TextSource(f"{texts.name} (from line {begin + 1})", chunks)])
