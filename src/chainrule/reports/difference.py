"""What changed between two reports: scores with paired tests, facts of the runs, and figures of every table.

Runs are matched by name; two reports of one run each are matched whatever the names. A difference is tested where both
reports measured the same items of the same data.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from chainrule.errors import DataError
from chainrule.reports.blocks.block import Block, Paragraph
from chainrule.reports.blocks.table import Column, Table, bounds, decimals, percent, plain, signed
from chainrule.reports.document import FORMAT, Report
from chainrule.reports.metrics import METRICS, compare_pair
from chainrule.reports.section import Section
from chainrule.reports.system import System

LEAST_CHANGE = 0.02
"""A figure of a table is listed if it changed by this share or more."""

SHOWN = 30
"""Changed figures that are listed, the largest changes first."""

Pairs = list[tuple[System, System]]


def difference(before: str | Path, after: str | Path) -> Report:
    """What changed from one report to another.

    Args:
        before: A JSON file that `report` wrote.
        after: Another.

    Returns:
        A report whose sections are the changes.
    """
    old, new = _read(before), _read(after)
    pairs, alone = _match(old["systems"], new["systems"])
    blocks: list[Block] = [_scores(pairs)]
    blocks += [Paragraph(f"Only in {name}: {', '.join(runs)}.") for name, runs in _named(alone, before, after)]
    sections = [
        Section("scores", "Scores", "After minus before. The test is a paired bootstrap over the test items.", blocks),
        Section("facts", "Runs", "What else differs between the runs of the same name.", [_facts(pairs)]),
        Section(
            "figures",
            "Figures",
            f"Figures that changed by {LEAST_CHANGE:.0%} or more.",
            [_figures(old, new, {a.name: b.name for a, b in pairs})],
        ),
    ]
    return Report(
        title=f"{Path(before).name} → {Path(after).name}",
        summary=_summary(pairs),
        command=shlex.join(["chainrule", "report", "--diff", str(before), str(after)]),
        systems=[],
        sections=sections,
    )


def _read(path: str | Path) -> dict[str, Any]:
    try:
        values = json.loads(Path(path).read_text(encoding="utf-8"))
        if values["format"] != FORMAT:
            raise ValueError("another format")
        return {**values, "systems": [System.from_dict(one) for one in values["systems"]]}
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}); give a file of chainrule report --json") from None
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
        raise DataError(f"{path} is not a report: expected a file that chainrule report --json wrote") from None


def _match(old: Sequence[System], new: Sequence[System]) -> tuple[Pairs, tuple[list[str], list[str]]]:
    """The systems of both reports, and the names that are in one only."""
    if len(old) == len(new) == 1:
        return [(old[0], new[0])], ([], [])
    by_name = {system.name: system for system in new}
    pairs = [(system, by_name[system.name]) for system in old if system.name in by_name]
    shared = {system.name for system, _ in pairs}
    only = [[one.name for one in systems if one.name not in shared] for systems in (old, new)]
    return pairs, (only[0], only[1])


def _named(alone: tuple[list[str], list[str]], *paths: str | Path) -> Iterator[tuple[str, list[str]]]:
    return ((Path(path).name, runs) for path, runs in zip(paths, alone, strict=True) if runs)


def _scores(pairs: Pairs) -> Table:
    rows = []
    for old, new in pairs:
        for a in old.scores:
            if (b := new.score(a.metric)) is not None:
                metric = METRICS[a.metric]
                tested = compare_pair(metric, a, b) if old.data and old.data == new.data else None
                interval, p = (tested.interval, tested.p_value) if tested else (None, None)
                show = decimals(metric.digits)
                rows.append(
                    [
                        _name(old, new),
                        metric.label,
                        show(a.value),
                        show(b.value),
                        signed(metric.digits)(b.value - a.value),
                        interval and bounds(metric.digits)(interval),
                        p,
                        _verdict(metric.better(b.value - a.value), b.value - a.value, p, old.data == new.data),
                    ]
                )
    names = ("run", "score", "before", "after", "difference", "95% interval")
    return Table([*map(Column, names), Column("p", decimals(3)), Column("verdict", plain)], rows)


def _name(old: System, new: System) -> str:
    return old.name if old.name == new.name else f"{old.name} → {new.name}"


def _verdict(better: str, change: float, p: float | None, same_data: bool) -> str:
    if not same_data:
        return "other data: not comparable"
    if not change:
        return "equal"
    if p is None:
        return f"{better}, not tested"
    return f"{better}, significant at 5%" if p < 0.05 else f"{better}, not significant"


def _facts(pairs: Pairs) -> Block:
    rows = []
    for old, new in pairs:
        facts: dict[str, tuple[Any, Any]] = {
            "run": (old.run, new.run),
            "model": (old.model, new.model),
            "data": (old.data, new.data),
        }
        facts |= {name: (value, new.facts.get(name)) for name, value in old.facts.items()}
        rows += [[_name(old, new), name, str(a), str(b)] for name, (a, b) in facts.items() if a != b]
    if not rows:
        return Paragraph("Nothing else differs.")
    return Table([Column("run"), Column("what"), Column("before", code=True), Column("after", code=True)], rows)


def _figures(old: dict[str, Any], new: dict[str, Any], names: dict[str, str]) -> Block:
    """Numbers of tables of both reports that differ, by the texts in their rows; `names` are the new names of runs."""
    before, after = dict(_cells(old, names)), dict(_cells(new, {}))
    changes = []
    for key, a in before.items():
        b = after.get(key)
        if b is not None and a != b and abs(b - a) >= LEAST_CHANGE * max(abs(a), abs(b)):
            changes.append((*key, a, b, (b - a) / abs(a) if a else math.inf))
    changes.sort(key=lambda change: -abs(change[-1]))
    if not changes:
        return Paragraph("No figure of the tables changed as much.")
    columns = [Column("section"), Column("table"), Column("row"), Column("figure")]
    numbers = [Column("before", decimals(3)), Column("after", decimals(3)), Column("change", percent)]
    more = f"The {SHOWN} largest of {len(changes)} changes" if len(changes) > SHOWN else ""
    return Table([*columns, *numbers], changes[:SHOWN], more)


def _cells(report: dict[str, Any], names: dict[str, str]) -> Iterator[tuple[tuple[str, str, str, str], float]]:
    """The numbers of all tables, by section, table, row and column. A row is named by its cells that are texts."""
    for section in report["sections"]:
        for block in section["blocks"]:
            for row in block.get("rows", ()) if "columns" in block else ():
                named = " · ".join(names.get(cell, cell) for cell in row if isinstance(cell, str))
                for column, cell in zip(block["columns"], row, strict=True):
                    if isinstance(cell, int | float) and named:
                        yield (section["title"], block.get("title") or block["caption"], named, column), float(cell)


def _summary(pairs: Pairs) -> str:
    return f"{len(pairs)} {'run' if len(pairs) == 1 else 'runs'} in both reports."
