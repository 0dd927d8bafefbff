"""Parts of a text: some of its lines, or a first and a last part, cut at the end of a line where there is one."""

from __future__ import annotations

from collections.abc import Iterator

from chainrule.text.readers import Texts
from chainrule.text.sources import Source


def some_lines(texts: Texts, begin: int, end: int | None = None) -> Texts:
    """The lines from number `begin` on, before number `end`, read from the sources; nothing is copied."""

    def chunks() -> Iterator[bytes]:
        number = 0
        for piece in texts.pieces():
            if number == end:
                return
            if number >= begin:
                yield piece.text + b"\n" * piece.ends_line
            number += piece.ends_line

    return Texts([Source(f"{texts.name} (from line {begin + 1})", chunks)])


def hold_out(texts: Texts, share: float) -> tuple[Texts, Texts] | None:
    """The text without its last `share`, and that last share; both read from the sources, nothing is copied.

    None if the text has one line only, so that nothing can be held out.
    """
    cut = _line_end_near(texts, int(texts.size * (1 - share)))
    if cut is None:
        return None
    first = Source(f"{texts.name} (first {1 - share:.0%})", lambda: _slice(texts, 0, cut))
    last = Source(f"{texts.name} (last {share:.0%})", lambda: _slice(texts, cut, texts.size))
    return Texts([first]), Texts([last])


def _line_end_near(texts: Texts, target: int) -> int | None:
    """The offset just after the last newline before `target`, else after the first behind it that is not the end."""
    before = None
    for block in texts.blocks():
        newline = block.data.rfind(b"\n", 0, max(0, target - block.offset))
        if newline >= 0:
            before = block.offset + newline + 1
        if block.offset + len(block.data) >= target:
            after = block.data.find(b"\n", max(0, target - block.offset))
            if before:
                return before
            if after >= 0 and block.offset + after + 1 < texts.size:
                return block.offset + after + 1
    return None


def _slice(texts: Texts, begin: int, end: int) -> Iterator[bytes]:
    for block in texts.blocks():
        part = block.data[max(0, begin - block.offset) : max(0, end - block.offset)]
        if part:
            yield part
