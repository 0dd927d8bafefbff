"""Texts as lines that are translated one by one: plain text of several lines, and HTML."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence
from typing import Protocol

KEPT = frozenset({"script", "style", "pre", "code", "textarea"})
"""Elements of HTML whose content stays as it is."""

TAG = re.compile(r"""</?([A-Za-z][^\s<>/"']*+)(?:[^<>"']++|"[^"]*+"|'[^']*+')*+>""")
"""A tag; values of attributes may have `>`. Nothing is tried twice, so that no text takes long to read."""


class Document(Protocol):
    """A text with lines in it."""

    lines: list[str]

    def joined(self, lines: Sequence[str]) -> str:
        """The text with other lines in their places."""
        ...


class PlainText:
    """Lines with a newline between them."""

    def __init__(self, text: str) -> None:
        self.lines = text.replace("\r\n", "\n").split("\n")

    def joined(self, lines: Sequence[str]) -> str:
        """The text with other lines in their places."""
        return "\n".join(lines)


class HtmlText:
    """HTML, in which each text between two tags is a line. Tags, comments and the elements of KEPT are no text.

    In a line, white space is one space and character references are characters. What has neither letters nor digits is
    no line.
    """

    def __init__(self, text: str) -> None:
        self.lines: list[str] = []
        self._parts: list[tuple[str, bool]] = []  # all of the text in order, and whether each part is a line
        for words, markup in _texts_and_markup(text):
            line = " ".join(html.unescape(words).split())
            is_line = any(map(str.isalnum, line))
            self._parts += [(words, is_line), (markup, False)]
            self.lines += [line] if is_line else []

    def joined(self, lines: Sequence[str]) -> str:
        """The HTML with other lines in their places, and the white space around each as it was."""
        new = iter(lines)
        return "".join([_replaced(part, next(new)) if is_line else part for part, is_line in self._parts])


def _replaced(words: str, line: str) -> str:
    begin, end = len(words) - len(words.lstrip()), len(words.rstrip())
    return words[:begin] + html.escape(line, quote=False) + words[end:]


def _texts_and_markup(text: str) -> Iterator[tuple[str, str]]:
    """Text, then the markup after it, in turn."""
    begin = place = 0
    while (place := text.find("<", place)) >= 0:
        end = _end_of_markup(text, place)
        if end is None:
            place += 1
            continue
        yield text[begin:place], text[place:end]
        begin = place = end
    yield text[begin:], ""


def _end_of_markup(text: str, place: int) -> int | None:
    """Where the markup that begins with `<` at a place ends; None: it is none."""
    if text.startswith("<!--", place):
        return _after(text, "-->", place + 4)
    if text.startswith(("<!", "<?"), place):
        return _after(text, ">", place)
    tag = TAG.match(text, place)
    if tag is None:
        return None
    name = tag[1].lower()
    if name not in KEPT or text[place + 1] == "/":
        return tag.end()
    closing = re.compile(rf"</{name}\s*>", re.IGNORECASE).search(text, tag.end())
    return len(text) if closing is None else closing.end()


def _after(text: str, ending: str, place: int) -> int:
    """The place after the next `ending`, or the end of the text."""
    found = text.find(ending, place)
    return len(text) if found < 0 else found + len(ending)
