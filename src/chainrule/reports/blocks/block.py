"""What every block of a report can do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar

from chainrule.base.html import Html, element


@dataclass
class Page:
    """The page that blocks are rendered into."""

    interactive: bool = False  # whether charts are also embedded as specifications
    specs: dict[str, Any] = field(default_factory=dict)  # by the id of the chart's figure

    def add_spec(self, spec: dict[str, Any]) -> str:
        """Keep the specification of a chart -> the id of its figure."""
        name = f"chart-{len(self.specs) + 1}"
        self.specs[name] = spec
        return name


class Block(ABC):
    """A part of a section."""

    kind: ClassVar[str]

    @abstractmethod
    def html(self, page: Page) -> Html:
        """The block in a page, readable without scripts."""

    @abstractmethod
    def markdown(self) -> str:
        """The block as Markdown, without a final newline."""

    @abstractmethod
    def content(self) -> dict[str, Any]:
        """Its data for JSON."""

    def to_dict(self) -> dict[str, Any]:
        """Kind and data."""
        return {"kind": self.kind, **self.content()}


@dataclass(frozen=True)
class Paragraph(Block):
    """Some sentences."""

    kind: ClassVar[str] = "text"
    text: str

    def html(self, page: Page) -> Html:
        return element("p", self.text)

    def markdown(self) -> str:
        return escape_markdown(self.text)

    def content(self) -> dict[str, Any]:
        return {"text": self.text}


def escape_markdown(text: str) -> str:
    """A text in which nothing is markup; it stays on one line."""
    signs = "".join(f"\\{sign}" if sign in "\\`*_[]<>|#~$" else sign for sign in text)
    return " ".join(signs.split())
