"""chainrule classify"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from chainrule.cli.common import Json, RunPath, counting, lines_of, print_json, say, tell_warnings

if TYPE_CHECKING:
    from chainrule.runs.labels import ClassifierRun, Labelled

T = TypeVar("T")

File = Annotated[Path, typer.Argument(help="A text, one example a line; - or nothing: standard input.")]


def classify(
    run: RunPath,
    file: File = Path("-"),
    top: Annotated[int, typer.Option(help="Print so many labels, the most probable first.")] = 1,
    json: Json = False,
) -> None:
    """Tell the label of each line, a tab, and its probability; of a run of pairs, lines are text, tab, text.

    With --json one object a line, with the probabilities of all labels.
    """
    from chainrule import api
    from chainrule.errors import RunError
    from chainrule.runs.labels import ClassifierRun

    loaded = api.load(run)
    if not isinstance(loaded, ClassifierRun):
        raise RunError(
            f"{run} is a {loaded.config.model.name}, which is no classifier; train one with: chainrule train "
            "LABELLED.tsv --model classifier"
        )
    tell_warnings()
    texts = _texts(loaded, lines_of(file))
    told = loaded.classify(texts, top=len(loaded.labels) if json else top)
    for best in shown(told, "classifying"):
        _print(best, top, json)


def _texts(run: ClassifierRun, lines: Iterator[str]) -> Iterator[str | tuple[str, str]]:
    """Lines as this run reads them."""
    from chainrule.errors import DataError

    if not run.config.model.options.get("pairs"):
        yield from lines
        return
    for number, line in enumerate(lines, start=1):
        first, tab, second = line.partition("\t")
        if not tab:
            raise DataError(
                f"line {number} has no tab in it; {run.folder.path} was trained on pairs, expected text, tab, text"
            )
        yield first, second


def shown(found: Iterator[T], what: str) -> Iterator[T]:
    """What is found, while its number and rate are told on standard error."""
    began, number = time.perf_counter(), 0
    with counting(what, "lines") as progress:
        for number, one in enumerate(found, start=1):
            yield one
            progress(number, number)
    seconds = max(1e-9, time.perf_counter() - began)
    say(f"{number:,} lines, {number / seconds:,.1f} lines/s")


def _print(best: list[Labelled], top: int, json: bool) -> None:
    if json:
        told = {one.label: one.probability for one in best}
        print_json({"label": best[0].label, "probability": best[0].probability, "probabilities": told})
        return
    sys.stdout.write("\t".join(f"{one.label}\t{one.probability:.4f}" for one in best[:top]) + "\n")
    sys.stdout.flush()
