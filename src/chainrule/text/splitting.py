"""Some of the lines of a text, and its parts before and after a place."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from chainrule.base.known_files import FileState
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


def cut_text(texts: Texts, target: int) -> tuple[Texts, Texts] | None:
    """The text before and after the line end nearest to the byte `target`; both are read from the sources.

    None if the text is a single line.
    """
    cut = _line_end_near(texts, target)
    if cut is None:
        return None
    share = cut / texts.size
    first = TextSource(f"{texts.name} (first {share:.0%})", lambda: _slice(texts, 0, cut), _part_state(texts, 0, cut))
    size = texts.size
    last = TextSource(
        f"{texts.name} (last {1 - share:.0%})", lambda: _slice(texts, cut, size), _part_state(texts, cut, size)
    )
    return Texts([first]), Texts([last])


def _part_state(texts: Texts, begin: int, end: int) -> Callable[[], FileState | None]:
    def state() -> FileState | None:
        whole = texts.state
        return whole and whole.part(f"{begin} {end}")

    return state


def _line_end_near(texts: Texts, target: int) -> int | None:
    """The offset after the last newline before `target`, else after the next one that does not end the text."""
    state, question = texts.state, f"line end near {target}"
    if state and (known := state.recall(question) or "").isdecimal():
        return int(known)
    found = _find_line_end(texts, target)
    if state and found is not None and state == texts.state:
        state.note(question, str(found))
    return found


def _find_line_end(texts: Texts, target: int) -> int | None:
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
