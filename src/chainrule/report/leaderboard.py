"""The leaderboard: one line a model, the best first, comparable because all are in bits per byte."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table

if TYPE_CHECKING:
    from chainrule.compare import Row

HEADINGS = ("model", "parameters", "seconds", "memory", "perplexity", "bits/byte", "train tok/s", "generate tok/s")


def cells(row: Row) -> tuple[str, ...]:
    """What is shown of a row."""
    return (
        row.model,
        f"{row.parameters:,}",
        f"{row.train_seconds:.0f}",
        f"{row.peak_memory / 2**20:,.0f} MB",
        f"{row.perplexity:.2f}",
        f"{row.bits_per_byte:.3f}",
        f"{row.train_tokens_per_second:,.0f}",
        f"{row.generate_tokens_per_second:,.0f}",
    )


def table(rows: Sequence[Row], title: str = "") -> Table:
    """The leaderboard for a terminal."""
    drawn = Table(title=title or None, header_style="bold")
    for number, heading in enumerate(HEADINGS):
        drawn.add_column(heading, justify="left" if number == 0 else "right")
    for row in rows:
        drawn.add_row(*cells(row))
    return drawn


def markdown(rows: Sequence[Row]) -> str:
    """The leaderboard for a page."""
    lines = [HEADINGS, ("---", *("---:" for _ in HEADINGS[1:])), *map(cells, rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"
