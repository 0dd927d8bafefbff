"""Figures for people: units, digits and aligned columns."""

from __future__ import annotations

import math

import pytest

from chainrule.base.tables import format_bytes, format_count, format_rate, format_seconds, show_fields, show_table


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.53, "0.53 s"), (12.34, "12.3 s"), (59.96, "1 min 0 s"), (120.39, "2 min 0 s"), (3725, "1 h 2 min")],
)
def test_seconds(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [(10, "10 bytes"), (1500, "1.5 kB"), (999_600, "1.0 MB"), (595_156_992, "595 MB"), (2.5e9, "2.5 GB")],
)
def test_bytes(size: float, text: str) -> None:
    assert format_bytes(size) == text


@pytest.mark.parametrize(
    ("count", "text"), [(0.5, "0.5"), (912, "912"), (999.6, "1.00k"), (27_671.5, "27.7k"), (1_234_567, "1.23M")]
)
def test_counts(count: float, text: str) -> None:
    assert format_count(count) == text
    assert format_rate(count) == f"{text} tokens/s"


def test_fields_have_units_and_line_up() -> None:
    shown = show_fields(
        {"run": "runs/a", "seconds": 120.39, "tokens_per_second": 27_671.5, "peak_memory": 595_156_992, "loss": None}
        | {"valid perplexity": 35.4585, "bits_per_byte": 2.4382, "tokens": 50_836, "ratio": math.nan}
    )
    assert shown.splitlines() == [
        "run               runs/a",
        "time              2 min 0 s",
        "speed             27.7k tokens/s",
        "peak memory       595 MB",
        "loss              none",
        "valid perplexity  35.46",
        "bits per byte     2.4382",
        "tokens            50,836",
        "ratio             none",
    ]


@pytest.mark.parametrize(
    ("value", "text"), [(0.0112, "0.0112"), (1.9e-6, "1.9e-06"), (0.0, "0.0000"), (-3e-5, "-3.0e-05")]
)
def test_small_differences_keep_two_digits(value: float, text: str) -> None:
    assert show_fields({"difference": value}) == f"difference  {text}"


def test_columns_line_up() -> None:
    assert show_table([["a", "1"], ["bcd", "22"]]) == "a     1\nbcd  22"
