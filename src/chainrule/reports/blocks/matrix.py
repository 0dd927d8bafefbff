"""A matrix whose cells are shaded by their values: confusions, or the attention of a translation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from chainrule.base.html import Html, element, join
from chainrule.base.results import json_value
from chainrule.reports.blocks.block import Block, Page, escape_markdown
from chainrule.reports.blocks.table import Show, plain

COLOUR = "0, 114, 178"
"""Red, green and blue of the strongest shade; its opacity shows the value, on a light or dark page."""


@dataclass(frozen=True)
class Matrix(Block):
    """Values by row and column; the shade of a cell is its share of `highest`."""

    kind: ClassVar[str] = "matrix"
    caption: str
    rows: Sequence[str]
    columns: Sequence[str]
    values: Sequence[Sequence[float]]
    shades: Sequence[Sequence[float]]  # 0 to 1
    corner: str = ""
    show: Show = plain

    def html(self, page: Page) -> Html:
        head = join(element("th", name, scope="col") for name in (self.corner, *self.columns))
        body = join(
            element("tr", element("th", name, scope="row"), *map(self._cell, values, shades))
            for name, values, shades in zip(self.rows, self.values, self.shades, strict=True)
        )
        table = element("table", element("thead", element("tr", head)), element("tbody", body), class_="matrix")
        region = element("div", table, class_="scroll", tabindex="0", role="region", aria_label=self.caption)
        return join([element("p", self.caption, class_="caption"), region])

    def _cell(self, value: float, shade: float) -> Html:
        return element("td", self.show(value), style=f"background:rgba({COLOUR},{0.75 * shade:.3f})")

    def markdown(self) -> str:
        lines = [[self.corner, *self.columns], ["---", *("---:" for _ in self.columns)]]
        lines += [[name, *map(self.show, row)] for name, row in zip(self.rows, self.values, strict=True)]
        escaped = [line if place == 1 else list(map(escape_markdown, line)) for place, line in enumerate(lines)]
        table = "\n".join("| " + " | ".join(line) + " |" for line in escaped)
        return f"{escape_markdown(self.caption)}\n\n{table}"

    def content(self) -> dict[str, Any]:
        return {
            "caption": self.caption,
            "row_names": list(self.rows),
            "column_names": list(self.columns),
            "values": json_value([list(row) for row in self.values]),
        }
