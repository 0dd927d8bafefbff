"""A chart with the table of its figures: an SVG that needs no script, and its specification where charts interact."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, ClassVar

from chainrule.base.html import Html, element, join
from chainrule.reports.blocks.block import Block, Page, escape_markdown
from chainrule.reports.blocks.table import Table
from chainrule.reports.charts.library import Spec, to_svg

MARK = re.compile(r'<(path|rect|circle|text|line)\b([^>]*?) aria-label="([^"]*)"([^>]*?)(/>|>([^<]*)</\1>)')
"""A mark with a description, as vl-convert writes it."""

PLACE, LONG = re.compile(r' (d|transform)="[^"]*"'), re.compile(r"-?\d+\.\d{3,}")
"""Attributes with places in pixels, and numbers with more decimals than a screen shows."""


@dataclass(frozen=True)
class Chart(Block):
    """A chart and its figures."""

    kind: ClassVar[str] = "chart"
    title: str
    spec: Spec
    figures: Table

    def html(self, page: Page) -> Html:
        name = page.add_spec(self.spec) if page.interactive else None
        drawn = element("div", Html(with_tooltips(to_svg(self.spec))), class_="drawing")
        caption = element("figcaption", self.title)
        return join([element("figure", caption, drawn, id=name), self.figures.html(page)])

    def markdown(self) -> str:
        return f"**{escape_markdown(self.title)}**\n\n{self.figures.markdown()}"

    def content(self) -> dict[str, Any]:
        return {"title": self.title, **self.figures.content()}


def with_tooltips(svg: str) -> str:
    """The SVG for a page: the description of each mark is its tooltip too, and the page sets its size and ground."""

    def titled(found: re.Match[str]) -> str:
        name, before, label, after, _, text = found.groups()
        title = label.replace("; ", "\n")
        return f'<{name}{before} aria-label="{label}"{after}><title>{title}</title>{text or ""}</{name}>'

    svg = re.sub(r'<rect width="[^"]*" height="[^"]*" fill="white"/>', "", svg, count=1)
    svg = PLACE.sub(lambda place: LONG.sub(lambda number: f"{float(number[0]):.2f}", place[0]), svg)
    return MARK.sub(titled, svg).strip()
