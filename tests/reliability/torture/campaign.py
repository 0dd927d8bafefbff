"""Runs the parts of the campaign one after the other and prints their tables."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from torture import elastic, fuzzing, kills, readers, surroundings, verbs, writers
from torture.outcomes import Clock, Tally, table
from torture.toys import TRAININGS

SHOWN = 200
"""Number of failures printed."""

Part = Callable[[argparse.Namespace, Path, Clock], list[Tally]]


def run(given: argparse.Namespace, place: Path) -> int:
    """Run the parts -> the exit code: 1 if anything failed."""
    clock, failures = Clock(60 * given.minutes), list[str]()
    chosen = {name: part for name, part in PARTS.items() if not given.only or name in given.only}
    for number, (name, part) in enumerate(chosen.items()):
        tallies = part(given, place / name, clock.share(len(chosen) - number))
        failures += [failure for tally in tallies for failure in tally.failures]
        print(f"\n{table(name, tallies)}", flush=True)
    print(f"\nseed {given.seed}: {len(failures)} failures", *failures[:SHOWN], sep="\n", flush=True)
    return 1 if failures else 0


def _chosen(names: list[str], text: str | None) -> list[str]:
    return [name for name in names if not text or text in name]


def _kills(given: argparse.Namespace, place: Path, clock: Clock) -> list[Tally]:
    return kills.campaign(place, given.seed, clock, _chosen(list(TRAININGS), given.target), given.cases)


def _elastic(given: argparse.Namespace, place: Path, clock: Clock) -> list[Tally]:
    return elastic.campaign(place, given.seed, clock, given.cases)


def _fuzz(given: argparse.Namespace, place: Path, clock: Clock) -> list[Tally]:
    found = [target for target in readers.targets(place / "files") if not given.target or given.target in target.name]
    return fuzzing.campaign(found, place, given.seed, clock, given.cases)


def _found_writers(given: argparse.Namespace, place: Path) -> list[verbs.Writer]:
    return [one for one in verbs.writers(place / "data") if not given.target or given.target in one.name]


def _writers(given: argparse.Namespace, place: Path, clock: Clock) -> list[Tally]:
    return writers.campaign(_found_writers(given, place), place, given.seed, clock, given.cases, given.at)


def _surroundings(given: argparse.Namespace, place: Path, clock: Clock) -> list[Tally]:
    return surroundings.campaign(_found_writers(given, place), place, given.seed, clock, given.cases)


PARTS: dict[str, Part] = {
    "kills": _kills,
    "elastic": _elastic,
    "writers": _writers,
    "fuzz": _fuzz,
    "surroundings": _surroundings,
}
