"""The leaderboard: one line a model, the best first, comparable because all are in bits per byte."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from chainrule.experiments.compare import Row

HEADINGS = ("model", "parameters", "seconds", "memory", "perplexity", "bits/byte", "train t/s", "generate t/s")
OF_TRANSLATORS = ("BLEU", "exact match")


def headings(rows: Sequence[Row]) -> tuple[str, ...]:
    """What the columns are called; translators have two more."""
    return HEADINGS + OF_TRANSLATORS * any(row.bleu is not None for row in rows)


def cells(row: Row) -> tuple[str, ...]:
    """What is shown of a row."""
    shown = (
        row.model,
        f"{row.parameters:,}",
        f"{row.train_seconds:.0f}",
        f"{row.peak_memory / 2**20:,.0f} MB",
        "none" if math.isnan(row.perplexity) else f"{row.perplexity:.2f}",
        bits(row),
        f"{row.train_tokens_per_second:,.0f}",
        f"{row.generate_tokens_per_second:,.0f}",
    )
    return shown if row.bleu is None else (*shown, f"{row.bleu:.2f}", f"{row.exact_match:.1%}")


def bits(row: Row) -> str:
    """Bits per byte; a model that gives scores and no probabilities has none."""
    return "none" if math.isnan(row.bits_per_byte) else f"{row.bits_per_byte:.3f}"


def show(rows: Sequence[Row], title: str = "") -> None:
    """Print the leaderboard, as wide as it needs to be where nobody has set a width."""
    drawn = Table(title=title or None, header_style="bold", padding=(0, 0, 0, 1))
    for number, heading in enumerate(headings(rows)):
        drawn.add_column(heading, justify="left" if number == 0 else "right", no_wrap=True)
    for row in rows:
        drawn.add_row(*cells(row))
    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, 120)
    console.print(drawn)


def markdown(rows: Sequence[Row]) -> str:
    """The leaderboard for a page."""
    names = headings(rows)
    lines = [names, ("---", *("---:" for _ in names[1:])), *map(cells, rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"
