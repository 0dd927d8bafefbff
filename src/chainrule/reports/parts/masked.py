"""Models of masked words: their figures as `eval` prints them, and their learning curves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chainrule.base.tables import show_value
from chainrule.reports.blocks.table import Column, Table
from chainrule.reports.parts.part import Options, Part, facts_of
from chainrule.reports.section import Section
from chainrule.reports.sections.curves import learning_curves
from chainrule.reports.system import System
from chainrule.runs.base import EvaluatedRun, Run


def measure_masked(runs: Mapping[str, Run], options: Options) -> Part:
    """Measure each run; these figures have no items, and so no intervals."""
    measured: dict[str, Any] = {}
    for name, run in runs.items():
        options.note(f"measuring {name}")
        assert isinstance(run, EvaluatedRun)
        measured[name] = run.evaluate(options.data) if options.data else run.evaluate_held_out()
    figures = {name: one.figures() for name, one in measured.items()}
    names = list(dict.fromkeys(figure for own in figures.values() for figure in own if figure != "signature"))
    rows = [[name, *(show_value(figure, own.get(figure)) for figure in names)] for name, own in figures.items()]
    table = Table([Column("run"), *(Column(figure.replace("_", " ")) for figure in names)], rows)
    systems = [
        System(
            name=name,
            run=str(run.folder.given),
            model=run.config.model.name,
            task="masked",
            data="",
            scores=[],
            protocol=measured[name].protocol,
            facts={**{figure: figures[name].get(figure) for figure in names}, **facts_of(run)},
        )
        for name, run in runs.items()
    ]
    sections = [Section("leaderboard", "Figures", "As `chainrule eval` prints them.", [table]), learning_curves(runs)]
    return Part(systems, [one for one in sections if one is not None], {})
