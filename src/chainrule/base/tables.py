"""Results as text for people: lines of `name  value`, and tables with aligned columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def show_fields(values: Mapping[str, Any]) -> str:
    """One `name  value` line per field: thousands separated, four decimals, "none" for None and NaN."""
    width = max(map(len, values))
    return "\n".join(f"{name.replace('_', ' '):<{width}}  {_shown(value)}" for name, value in values.items())


def _shown(value: Any) -> str:
    if value is None or value != value:
        return "none"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.4f}" if isinstance(value, float) else str(value)


def show_table(rows: Sequence[Sequence[str]]) -> str:
    """Rows with columns of equal width: the first column aligned left, the others right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if number == 0 else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )
