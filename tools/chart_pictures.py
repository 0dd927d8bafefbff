"""Redraw the charts of docs/hybrids.md from its tables: `python tools/chart_pictures.py` writes docs/*.svg."""

from __future__ import annotations

import re
from pathlib import Path

from chainrule.reports.charts.library import to_svg
from chainrule.reports.charts.tradeoff import TradeoffPoint, tradeoff

DOCS = Path(__file__).parent.parent / "docs"


def rows_under(heading: str) -> list[dict[str, str]]:
    """The rows of the table whose headings begin with `heading`."""
    lines = iter((DOCS / "hybrids.md").read_text(encoding="utf-8").splitlines())
    first = next(line for line in lines if line.startswith(heading))
    next(lines)  # the alignment
    names, rows = _cells(first), []
    for line in lines:
        if not line.startswith("|"):
            break
        rows.append(dict(zip(names, _cells(line), strict=True)))
    return rows


def _cells(line: str) -> list[str]:
    return [cell.strip().replace("`", "") for cell in line.strip().strip("|").split("|")]


def points_of(rows: list[dict[str, str]], quality: str) -> list[TradeoffPoint]:
    """One point per row and batch size; a row without a model belongs to the one above it."""
    points, model = [], ""
    for row in rows:
        model = row["model"] or model
        setting = row.get("training or setting", "")
        setting = setting if re.match("γ|threshold", setting) else ""
        label = ", ".join(part for part in (setting.partition(":")[0], row.get("search") or row.get("way")) if part)
        for name, value in row.items():
            if (batch := re.search(r"batch (\d+)", name)) and value:
                points.append(TradeoffPoint(model, label, float(value), float(row[quality]), f"batch {batch[1]}"))
    return sorted(points, key=lambda point: int(point.group.split()[1]))


def main() -> None:
    translators = points_of(rows_under("| model | training or setting"), "lower-cased")
    spec = tradeoff(
        translators,
        x_title="milliseconds per line",
        y_title="lower-cased BLEU (higher is better)",
        lower_is_better=False,
    )
    (DOCS / "multi30k.svg").write_text(to_svg(spec), encoding="utf-8")
    characters = points_of(rows_under("| model | way | parameters | bits/byte"), "bits/byte")
    spec = tradeoff(
        characters,
        x_title="milliseconds per 100 characters",
        y_title="bits per byte (lower is better)",
        lower_is_better=True,
    )
    (DOCS / "shakespeare.svg").write_text(to_svg(spec), encoding="utf-8")


if __name__ == "__main__":
    main()
