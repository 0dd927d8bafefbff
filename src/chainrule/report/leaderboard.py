"""The leaderboard: one row per model, best first; bits per byte compares models with different tokenisers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from chainrule.experiments.compare import Row

HEADINGS = ("model", "parameters", "seconds", "memory", "perplexity", "bits/byte", "train t/s", "generate t/s")
TRANSLATOR_HEADINGS = ("BLEU", "exact match")


def headings(rows: Sequence[Row]) -> tuple[str, ...]:
    """Return the headings of the columns; translators have two more."""
    return HEADINGS + TRANSLATOR_HEADINGS * any(row.bleu is not None for row in rows)


def cells(row: Row) -> tuple[str, ...]:
    """Return the text of each cell of a row."""
    texts = (
        row.model,
        f"{row.parameters:,}",
        f"{row.train_seconds:.0f}",
        f"{row.peak_memory / 2**20:,.0f} MB",
        "none" if math.isnan(row.perplexity) else f"{row.perplexity:.2f}",
        bits(row),
        f"{row.train_tokens_per_second:,.0f}",
        f"{row.generate_tokens_per_second:,.0f}",
    )
    return texts if row.bleu is None else (*texts, f"{row.bleu:.2f}", f"{row.exact_match:.1%}")


def bits(row: Row) -> str:
    """Return bits per byte as text; a model whose scores are not probabilities has none."""
    return "none" if math.isnan(row.bits_per_byte) else f"{row.bits_per_byte:.3f}"


def show(rows: Sequence[Row], title: str = "") -> None:
    """Print the leaderboard; at least 120 columns wide if the output is not a terminal."""
    table = Table(title=title or None, header_style="bold", padding=(0, 0, 0, 1))
    for number, heading in enumerate(headings(rows)):
        table.add_column(heading, justify="left" if number == 0 else "right", no_wrap=True)
    for row in rows:
        table.add_row(*cells(row))
    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, 120)
    console.print(table)


def markdown(rows: Sequence[Row]) -> str:
    """Return the leaderboard as a Markdown table."""
    names = headings(rows)
    lines = [names, ("---", *("---:" for _ in names[1:])), *map(cells, rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"
