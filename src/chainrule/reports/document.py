"""A report: measured systems and sections of blocks. HTML, Markdown and JSON are made from this object."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chainrule.base.files import write_atomically
from chainrule.base.html import Html, element, join
from chainrule.base.targets import check_file
from chainrule.reports.blocks.block import Page, escape_markdown
from chainrule.reports.page import render
from chainrule.reports.section import Section
from chainrule.reports.system import System

FORMAT, VERSION = "chainrule report", 1


@dataclass(frozen=True)
class Report:
    """What was measured, and the sections that show it."""

    title: str
    summary: str
    command: str
    systems: Sequence[System]
    sections: Sequence[Section]

    def save(
        self,
        path: str | Path | None = None,
        *,
        markdown: str | Path | None = None,
        json: str | Path | None = None,
        interactive: bool = False,
    ) -> None:
        """Write the report to files.

        Args:
            path: The page, one self-contained HTML file. None: none.
            markdown: The same as Markdown. None: none.
            json: The same as JSON, with the statistics that a comparison of reports needs. None: none.
            interactive: Whether the charts of the page can be zoomed; this adds about 1 MB.
        """
        given = [(path, lambda: self.html(interactive=interactive)), (markdown, self.markdown), (json, self.json)]
        wanted = [(check_file(place), make) for place, make in given if place is not None]
        for place, make in wanted:
            write_atomically(place, make())

    def html(self, *, interactive: bool = False) -> str:
        """One self-contained page.

        Args:
            interactive: Whether the charts can be zoomed; this adds about 1 MB.
        """
        return render(self.title, self.summary, self.sections, interactive=interactive)

    def markdown(self) -> str:
        """The report as Markdown."""
        parts = [f"# {escape_markdown(self.title)}", escape_markdown(self.summary)]
        for section in self.sections:
            blocks = (block.markdown() for block in section.blocks)
            parts += [f"## {escape_markdown(section.title)}", escape_markdown(section.about), *blocks]
        return "\n\n".join(part for part in parts if part) + "\n"

    def json(self) -> str:
        """The report as JSON."""
        return json.dumps(self.to_dict(), ensure_ascii=False, allow_nan=False) + "\n"

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain values."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "title": self.title,
            "summary": self.summary,
            "command": self.command,
            "systems": [system.to_dict() for system in self.systems],
            "sections": [section.to_dict() for section in self.sections],
        }

    def _repr_html_(self) -> str:
        """The first section, for notebooks."""
        first = join(block.html(Page()) for section in self.sections[:1] for block in section.blocks)
        names = ", ".join(section.title for section in self.sections)
        return Html(element("h3", self.title) + first + element("p", f"Sections: {names}. Write it with save(path)."))
