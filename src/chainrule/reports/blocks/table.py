"""A table: columns with a format, rows of plain values; in a page it is sorted by a click on a heading."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from chainrule.base.html import Html, element, escape, join
from chainrule.base.results import json_value
from chainrule.base.tables import format_bytes, format_count, format_seconds
from chainrule.reports.blocks.block import Block, Page, escape_markdown

FILTERED = 12
"""Tables with more rows than this have a field to filter them by text."""

MARKDOWN_ROWS = 40
"""Rows of a table in Markdown; the JSON file has all."""

Show = Callable[[Any], str]


def decimals(digits: int) -> Show:
    """Numbers with a number of decimals."""
    return lambda value: f"{value:,.{digits}f}"


def signed(digits: int) -> Show:
    """Differences: with their sign."""
    return lambda value: f"{value:+,.{digits}f}".replace("-", "−")


def percent(value: float) -> str:
    """0.1234 -> 12.3%."""
    return f"{value:.1%}"


def bounds(digits: int) -> Show:
    """An interval: 1.23 to 1.45."""
    return lambda value: f"{value[0]:.{digits}f} to {value[1]:.{digits}f}"


def plain(value: Any) -> str:
    """A text as it is, a whole number with separated thousands."""
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


SECONDS: Show = format_seconds
BYTES: Show = format_bytes
COUNT: Show = format_count


class Column(NamedTuple):
    """A heading, the format of its values, and what it means."""

    name: str
    show: Show = plain
    note: str = ""
    code: bool = False  # whether the values are text of data, whose spaces count


@dataclass(frozen=True)
class Table(Block):
    """Rows of values; None and values that are not finite are empty cells."""

    kind: ClassVar[str] = "table"
    columns: Sequence[Column]
    rows: Sequence[Sequence[Any]]
    caption: str = ""
    folded: bool = False  # whether the page shows it only when it is opened

    def html(self, page: Page) -> Html:
        sides = ["number" if self._is_number(place) else "name" for place in range(len(self.columns))]
        head = join(
            element(
                "th", element("button", column.name, type="button"), class_=side, scope="col", title=column.note or None
            )
            for column, side in zip(self.columns, sides, strict=True)
        )
        body = join(element("tr", *self._cells(row, sides)) for row in self.rows)
        filtered = "filtered" if len(self.rows) > FILTERED else None
        table = element("table", element("thead", element("tr", head)), element("tbody", body), class_=filtered)
        caption = element("p", self.caption, class_="caption") if self.caption else Html("")
        shown = join([caption, element("div", table, class_="scroll", tabindex="0", role="region", aria_label="table")])
        return element("details", element("summary", "Figures"), shown) if self.folded else shown

    def markdown(self) -> str:
        sides = ["---:" if self._is_number(place) else "---" for place in range(len(self.columns))]
        step = max(1, -(-len(self.rows) // MARKDOWN_ROWS))
        lines = [[column.name for column in self.columns], sides]
        lines += [
            [self._text(column, value) for column, value in zip(self.columns, row, strict=True)]
            for row in self.rows[::step]
        ]
        table = "\n".join("| " + " | ".join(cells) + " |" for cells in _escaped(lines))
        caption = f"{escape_markdown(self.caption)}\n\n" if self.caption else ""
        return caption + table

    def content(self) -> dict[str, Any]:
        names = [column.name for column in self.columns]
        return {"caption": self.caption, "columns": names, "rows": [json_value(list(row)) for row in self.rows]}

    def _cells(self, row: Sequence[Any], sides: Sequence[str]) -> list[Html]:
        cells = []
        for column, value, side in zip(self.columns, row, sides, strict=True):
            text = self._text(column, value)
            shown = element("code", text) if column.code and text else escape(text)
            cells.append(element("td", shown, class_=side, data_value=_sort_key(value) if side == "number" else None))
        return cells

    def _text(self, column: Column, value: Any) -> str:
        return "" if _is_empty(value) else column.show(value)

    def _is_number(self, place: int) -> bool:
        values = [row[place] for row in self.rows if not _is_empty(row[place])]
        return bool(values) and all(isinstance(value, int | float | tuple) for value in values)


def _escaped(lines: list[list[str]]) -> list[list[str]]:
    return [
        [escape_markdown(cell) for cell in lines[0]],
        lines[1],
        *([escape_markdown(c) for c in line] for line in lines[2:]),
    ]


def _is_empty(value: Any) -> bool:
    return value is None or (isinstance(value, float) and not math.isfinite(value))


def _sort_key(value: Any) -> Any:
    first = value[0] if isinstance(value, tuple) else value
    return "" if _is_empty(first) else first
