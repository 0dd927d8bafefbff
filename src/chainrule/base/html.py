"""HTML for notebooks and reports: elements whose texts and attributes are always escaped, and tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape as _escape


class Html(str):
    """Markup that is finished: `element` does not escape it again."""

    __slots__ = ()


def escape(text: object) -> Html:
    """A text as HTML. Lone surrogates, which stand for bytes that are not UTF-8, become U+FFFD."""
    if isinstance(text, Html):
        return text
    return Html(_escape(str(text).encode("utf-8", "replace").decode(), quote=True))


def element(name: str, *content: object, **attributes: object) -> Html:
    """An element; texts are escaped, `Html` is not. `class_` is the attribute class, `data_x` is data-x; None: none."""
    given = {key.rstrip("_").replace("_", "-"): value for key, value in attributes.items() if value is not None}
    head = "".join(f' {key}="{escape(value)}"' for key, value in given.items())
    return Html(f"<{name}{head}>{join(content)}</{name}>")


def join(parts: Iterable[object]) -> Html:
    """Texts and elements, one after the other."""
    return Html("".join(map(escape, parts)))


def table(headings: Sequence[object], rows: Iterable[Sequence[object]], **attributes: object) -> Html:
    """A table: numbers and what looks like one are aligned right by their column's first row."""
    body = [list(row) for row in rows]
    sides = ["right" if body and _is_figure(body[0][place]) else "left" for place in range(len(headings))]
    head = join(element("th", one, style=f"text-align:{side}") for one, side in zip(headings, sides, strict=True))
    lines = join(
        element("tr", *(element("td", one, style=f"text-align:{side}") for one, side in zip(row, sides, strict=True)))
        for row in body
    )
    return element("table", element("thead", element("tr", head)), element("tbody", lines), **attributes)


def _is_figure(cell: object) -> bool:
    """Whether a cell is a number, maybe with a unit or an interval."""
    return isinstance(cell, int | float) or (not isinstance(cell, Html) and str(cell)[:1].lstrip("+-−").isdigit())
