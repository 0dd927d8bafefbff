"""What a part of a report is given and gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from chainrule.data.in_memory import Data
from chainrule.reports.section import Section
from chainrule.reports.system import System
from chainrule.runs.base import Run


@dataclass(frozen=True)
class Options:
    """How the runs of a report are measured."""

    data: Data = ()  # the test data; empty: the validation data of each training
    text_field: str | None = None  # name of the column or JSON field with the texts
    speed: bool = False  # whether decoding is timed
    search: Mapping[str, Any] = field(default_factory=dict)  # options of translation
    note: Callable[[str], None] = lambda text: None  # receives messages


@dataclass(frozen=True)
class Part:
    """The systems of one task and their sections, in order."""

    systems: Sequence[System]
    sections: Sequence[Section]
    data: Mapping[str, str]  # fingerprints of the test data by name


def facts_of(run: Run, milliseconds: float | None = None) -> dict[str, Any]:
    """What a leaderboard shows of a run beside its scores."""
    result = run.result
    return {
        "parameters": run.parameters,
        "training time": result.get("seconds"),
        "milliseconds per token": milliseconds,
        "tokenizer": run.tokenizer.kind,
        "vocabulary": run.tokenizer.vocab_size,
    }
