"""The leaderboard: one row per model, best first; bits per byte compares models with different tokenisers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from rich.console import Console
from rich.table import Table

from chainrule.base.tables import format_bytes, format_count, format_seconds

if TYPE_CHECKING:
    from chainrule.experiments.compare import Row


class Column(NamedTuple):
    """A heading, the text of a row's cell, and a rank: on a narrow terminal the highest ranks are left out first."""

    heading: str
    cell: Callable[[Row], str]
    rank: int
    translators: bool = False  # shown only if there are translators


COLUMNS = (
    Column("model", lambda row: row.model, 0),
    Column("parameters", lambda row: format_count(row.parameters), 4),
    Column("time", lambda row: format_seconds(row.train_seconds), 3),
    Column("memory", lambda row: format_bytes(row.peak_memory), 7),
    Column("perplexity", lambda row: _figure(row.perplexity, 2), 6),
    Column("bits/byte", lambda row: _figure(row.bits_per_byte, 3), 1),
    Column("trains at", lambda row: f"{format_count(row.train_tokens_per_second)}/s", 8),
    Column("generates at", lambda row: f"{format_count(row.generate_tokens_per_second)}/s", 5),
    Column("BLEU", lambda row: "" if row.bleu is None else f"{row.bleu:.2f}", 2, translators=True),
    Column("exact", lambda row: "" if row.exact_match is None else f"{row.exact_match:.1%}", 2, translators=True),
)


def _figure(value: float, digits: int) -> str:
    """A figure as text; a model whose scores are not probabilities has none."""
    return "none" if math.isnan(value) else f"{value:.{digits}f}"


def columns_of(rows: Sequence[Row], width: int | None = None) -> list[Column]:
    """The columns that apply to the rows and fit into `width` characters; the model and its bits always stay."""
    chosen = [one for one in COLUMNS if not one.translators or any(row.bleu is not None for row in rows)]
    while width is not None and len(chosen) > 2 and _width(chosen, rows) > width:
        chosen.remove(max(chosen, key=lambda column: column.rank))
    return chosen


def _width(columns: Sequence[Column], rows: Sequence[Row]) -> int:
    """Characters of the table: a border and a space before each column, and the last border."""
    return 1 + sum(2 + max(len(one.heading), *(len(one.cell(row)) for row in rows)) for one in columns)


def show(rows: Sequence[Row], title: str = "", console: Console | None = None) -> None:
    """Print the leaderboard, with the columns that fit the terminal; names of models are never cut."""
    console = console or Console()
    if not console.is_terminal:
        console.width = max(console.width, 120)
    table = Table(title=title or None, header_style="bold", padding=(0, 0, 0, 1))
    columns = columns_of(rows, console.width)
    for column in columns:
        first = column.rank == 0
        table.add_column(
            column.heading,
            justify="left" if first else "right",
            no_wrap=not first,
            overflow="fold",
            min_width=None if first else len(column.heading),
        )
    for row in rows:
        table.add_row(*(column.cell(row) for column in columns))
    console.print(table)


def markdown(rows: Sequence[Row]) -> str:
    """The leaderboard as a Markdown table."""
    columns = columns_of(rows)
    lines = [
        [column.heading for column in columns],
        ["---", *("---:" for _ in columns[1:])],
        *([column.cell(row) for column in columns] for row in rows),
    ]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"
