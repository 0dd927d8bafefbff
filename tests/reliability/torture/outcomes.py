"""What a campaign counts: cases, outcomes, and a line for each failure that says how to repeat it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from time import monotonic

FAILURES = ("bug", "hang", "memory", "silent", "lost", "different", "crash", "orphan")
"""Outcomes that must not occur; all others are as promised."""


@dataclass
class Tally:
    """The outcomes of one target, for example of the trainings of one task."""

    name: str
    outcomes: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def add(self, outcome: str, repeat: str = "", count: int = 1) -> None:
        """Count a case; `repeat` says how to make it again."""
        self.outcomes[outcome] += count
        if outcome in FAILURES:
            self.failures.append(f"{self.name}: {outcome}: {repeat}")

    @property
    def cases(self) -> int:
        return self.outcomes.total()


class Clock:
    """A budget of seconds, shared equally by the targets that are still to come."""

    def __init__(self, seconds: float) -> None:
        self.end = monotonic() + seconds

    @property
    def left(self) -> float:
        return self.end - monotonic()

    def share(self, targets: int) -> Clock:
        """The budget of the next of so many targets."""
        return Clock(self.left / max(targets, 1))

    def __bool__(self) -> bool:
        return self.left > 0


def table(part: str, tallies: list[Tally]) -> str:
    """A Markdown table of outcomes, with a line of sums."""
    names = sorted({name for tally in tallies for name in tally.outcomes})
    rows = [[tally.name, str(tally.cases), *(str(tally.outcomes[name]) for name in names)] for tally in tallies]
    sums = ["all", *(str(sum(int(row[column]) for row in rows)) for column in range(1, len(names) + 2))]
    lines = [[part, "cases", *names], ["---"] + ["---:"] * (len(names) + 1), *rows, sums]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
