"""A section of a report: a heading, what its figures mean, and its blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from chainrule.reports.blocks.block import Block


@dataclass(frozen=True)
class Section:
    """A heading with its blocks."""

    name: str  # its anchor
    title: str
    about: str  # what the figures mean and how they were measured
    blocks: Sequence[Block]

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "name": self.name,
            "title": self.title,
            "about": self.about,
            "blocks": [block.to_dict() for block in self.blocks],
        }
