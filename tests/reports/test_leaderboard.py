"""The leaderboard fits its terminal and never cuts the name of a model."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from chainrule.experiments.compare import Row
from chainrule.reports import leaderboard

ROW = Row(
    model="modified Kneser-Ney 5-gram",
    parameters=394_000,
    train_seconds=1.2,
    peak_memory=438_000_000,
    tokens=1000,
    perplexity=28.51,
    bits_per_byte=1.758,
    train_tokens_per_second=211_000.0,
    generate_tokens_per_second=17_800.0,
    signature="s",
    protocol="p",
    run="runs/a",
)


def shown(width: int, *rows: Row) -> list[str]:
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    leaderboard.show(rows, console=console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize("width", [50, 60, 80, 100, 140])
def test_it_fits_and_shows_names_and_bits(width: int) -> None:
    lines = shown(width, ROW, replace(ROW, model="lstm", bits_per_byte=float("nan")))
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    assert ROW.model in text
    assert "1.758" in text
    assert "none" in text
    assert ("trains at" in text) == (width >= 120)


def test_translators_have_bleu_and_exact_matches() -> None:
    text = leaderboard.markdown([replace(ROW, bleu=37.5, exact_match=0.942)])
    assert "| BLEU | exact |" in text
    assert "| 37.50 | 94.2% |" in text
    assert "BLEU" not in leaderboard.markdown([ROW])
