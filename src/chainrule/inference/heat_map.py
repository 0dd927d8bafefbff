"""A text as HTML, coloured by the bits of its tokens: self-contained, and every text escaped."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from chainrule.base.html import Html, element, escape, join
from chainrule.inference.text_bits import PlacedToken, TextBits

COLOUR = "213, 94, 0"
"""Red, green and blue of the most surprising tokens; its opacity shows the bits, on a light or dark page."""

STRONGEST = 0.8
"""The opacity at the top of the scale: the text stays readable."""


class Cell(NamedTuple):
    """A part of the text, the tokens that are in it, and their bits; without tokens: what tokens do not encode."""

    text: str
    tokens: list[PlacedToken]

    @property
    def bits(self) -> float:
        """The bits of the tokens together."""
        return math.fsum(one.bits for one in self.tokens)


def heat_map(surprise: TextBits, high: float | None = None) -> Html:
    """The text of a surprise with its legend and its total; `high` bits and more have the strongest colour."""
    high = scale([surprise]) if high is None else high
    return element("div", coloured(surprise, high), legend(high), element("div", summary(surprise)))


def coloured(surprise: TextBits, high: float) -> Html:
    """The text alone. Pointing at a token shows its bits, rank, probability and the best alternatives."""
    return element("div", *(_cell(one, high) for one in cells(surprise)), style="white-space:pre-wrap;line-height:1.7")


def scale(surprises: Iterable[TextBits]) -> float:
    """Bits at the top of the scale: mean and 2.5 standard deviations of the finite bits of all tokens, at least 4."""
    bits = [one.bits for surprise in surprises for one in surprise.tokens if math.isfinite(one.bits)]
    if not bits:
        return 4.0
    mean = math.fsum(bits) / len(bits)
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in bits) / len(bits))
    return max(4.0, round(mean + 2.5 * deviation))


def cells(surprise: TextBits) -> Iterator[Cell]:
    """The text in order; tokens that share characters, or have none, are in one cell with the next that has some."""
    place, waiting = 0, list[_Group]()
    for token in surprise.tokens:
        last = waiting[-1] if waiting else None
        if last and (token.begin < last.end or last.begin == last.end):
            waiting[-1] = _Group(min(last.begin, token.begin), max(last.end, token.end), [*last.tokens, token])
        else:
            waiting.append(_Group(token.begin, token.end, [token]))
    for begin, end, tokens in waiting:
        if begin > place:
            yield Cell(surprise.text[place:begin], [])
        yield Cell(surprise.text[begin:end], tokens)
        place = max(place, end)
    if place < len(surprise.text):
        yield Cell(surprise.text[place:], [])


class _Group(NamedTuple):
    begin: int
    end: int
    tokens: list[PlacedToken]


def background(bits: float, high: float) -> str:
    """The style of a text that costs these bits."""
    opacity = STRONGEST * min(1.0, max(0.0, bits / high))
    return f"background:rgba({COLOUR},{opacity:.3f});border-radius:2px"


def _cell(cell: Cell, high: float) -> Html:
    if not cell.tokens:
        return escape(cell.text)
    shown = cell.text.replace("\n", "↵\n") or "·"
    title = "\n".join(map(describe, cell.tokens))
    return element("span", shown, title=title, style=background(cell.bits, high))


def describe(token: PlacedToken) -> str:
    """A token in one line."""
    spelling = f" ({token.spelling_bits:.2f} of them its spelling)" if token.spelling_bits else ""
    best = ", ".join(f"{one.token} {one.probability:.3f}" for one in token.best)
    known = f", best: {best}" if best else ""
    return f"{token.token}  {token.bits:.2f} bits{spelling}, p {token.probability:.4g}, rank {token.rank:,}{known}"


def legend(high: float) -> Html:
    """The colours and the bits they stand for."""
    steps = [high * step / 4 for step in range(5)]
    marks = (element("span", f" {bits:.3g} ", style=background(bits, high)) for bits in steps)
    return element("div", "bits: ", join(marks), "and more", style="font-size:85%;margin-top:.5em")


def summary(surprise: TextBits) -> str:
    """The total in one line."""
    beyond = f", {surprise.formatting_bits:.2f} of them for white space and lines" if surprise.formatting_bits else ""
    return (
        f"{surprise.run}: {surprise.bits:,.2f} bits for {surprise.bytes:,} bytes{beyond}; "
        f"{surprise.bits_per_byte:.4f} bits per byte, {len(surprise.tokens):,} tokens"
    )
