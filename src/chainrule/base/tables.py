"""Results as text for people: lines of `name  value`, tables with aligned columns, and figures with units."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def format_seconds(seconds: float) -> str:
    """0.53 -> 0.53 s, 12.34 -> 12.3 s, 120.4 -> 2 min 0 s, 3700 -> 1 h 1 min."""
    if seconds < 59.95:
        return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def format_bytes(size: float) -> str:
    """999 -> 999 bytes, 595156992 -> 595 MB, in powers of 1000."""
    for unit, power in (("GB", 9), ("MB", 6), ("kB", 3)):
        if size >= 0.9995 * 10**power:
            value = size / 10**power
            return f"{value:.{0 if value >= 99.5 else 1}f} {unit}"
    return f"{size:.0f} bytes"


def format_count(count: float) -> str:
    """912 -> 912, 27671 -> 27.7k, 1234567 -> 1.23M: three digits that matter."""
    for unit, power in (("G", 9), ("M", 6), ("k", 3)):
        if count >= 0.9995 * 10**power:
            value = count / 10**power
            return f"{value:.{max(0, 2 - int(math.log10(max(value, 1))))}f}{unit}"
    return f"{count:.0f}" if count >= 9.95 else f"{count:.1f}"


def format_rate(rate: float, unit: str = "tokens") -> str:
    """27671.5 -> 27.7k tokens/s."""
    return f"{format_count(rate)} {unit}/s"


UNITS: dict[str, Callable[[Any], str]] = {
    "seconds": format_seconds,
    "train_seconds": format_seconds,
    "peak_memory": format_bytes,
    "tokens_per_second": format_rate,
    "perplexity": lambda value: f"{value:.2f}" if value < 1e6 else f"{value:.3g}",
    "perplexity_without_oov": lambda value: f"{value:.2f}" if value < 1e6 else f"{value:.3g}",
    "difference": lambda value: f"{value:.4f}" if abs(value) >= 0.001 or not value else f"{value:.1e}",
}
"""Fields that are shown with a unit or with other digits than their type has."""


LABELS = {"seconds": "time", "train_seconds": "training time", "tokens_per_second": "speed"}
"""Names of fields for people, where the unit follows the value."""


def show_fields(values: Mapping[str, Any]) -> str:
    """One `name  value` line per field: units where they are known, thousands separated, "none" for None and NaN."""
    labels = {name: LABELS.get(name, name.replace("_", " ")) for name in values}
    width = max(map(len, labels.values()))
    return "\n".join(f"{labels[name]:<{width}}  {show_value(name, value)}" for name, value in values.items())


def show_value(name: str, value: Any) -> str:
    """The value of a field for people."""
    if value is None or value != value:
        return "none"
    if isinstance(value, int | float) and (format_value := UNITS.get(name.rpartition(" ")[2])):
        return format_value(value)
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
