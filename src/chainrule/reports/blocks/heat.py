"""A text coloured by the bits of its tokens under each of several runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from chainrule.base.html import Html, element, join
from chainrule.base.results import json_value
from chainrule.inference import heat_map
from chainrule.inference.surprise import Surprise
from chainrule.reports.blocks.block import Block, Page, escape_markdown

NAMED = 5
"""Tokens that Markdown, which has no colours, names."""


@dataclass(frozen=True)
class HeatMaps(Block):
    """One text, once for each run, on one scale of colours."""

    kind: ClassVar[str] = "heat map"
    names: Sequence[str]
    surprises: Sequence[Surprise]

    def html(self, page: Page) -> Html:
        high = heat_map.scale(self.surprises)
        maps = (
            element(
                "div", element("h4", name), heat_map.coloured(one, high), element("p", _total(one), class_="caption")
            )
            for name, one in zip(self.names, self.surprises, strict=True)
        )
        return element("div", heat_map.legend(high), join(maps), class_="heat")

    def markdown(self) -> str:
        return "\n".join(
            f"- {escape_markdown(name)}: {_total(one)}; most bits: {_most(one)}"
            for name, one in zip(self.names, self.surprises, strict=True)
        )

    def content(self) -> dict[str, Any]:
        runs = [
            {
                "name": name,
                "text": one.text,
                "bits": json_value(one.bits),
                "tokens": [[token.begin, token.end, json_value(token.bits), token.rank] for token in one.tokens],
            }
            for name, one in zip(self.names, self.surprises, strict=True)
        ]
        return {"runs": runs}


def _total(one: Surprise) -> str:
    return (
        f"{one.bits:,.1f} bits for {one.bytes:,} bytes, {one.bits_per_byte:.3f} bits per byte, {len(one.tokens)} tokens"
    )


def _most(one: Surprise) -> str:
    most = sorted(one.tokens, key=lambda token: -token.bits)[:NAMED]
    return ", ".join(f"{escape_markdown(token.token)} {token.bits:.1f}" for token in most)
