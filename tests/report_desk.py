"""Runs of language models, a test text and their report, which the tests of reports share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from chainrule.reports.document import Report

SCRIPT = "</script><script>alert(1)</script><img src=x onerror=alert(1)> a strange line of words\n"
"""Markup in the data, which must stay text."""


@dataclass(frozen=True)
class Desk:
    """Runs of language models on one text, and their report."""

    folder: Path
    report: Report

    @property
    def test(self) -> Path:
        return self.folder / "test.txt"
