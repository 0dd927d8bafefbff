"""chainrule classify"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from chainrule.base.grammar import plural
from chainrule.cli.common import (
    Json,
    RunPath,
    check_no_picture,
    print_json,
    print_note,
    print_warnings,
    read_lines,
    show_progress,
)

if TYPE_CHECKING:
    from chainrule.runs.labels import ClassifierRun, Labelled

T = TypeVar("T")

File = Annotated[Path, typer.Argument(help="Text file with one example per line; - is standard input.")]


def classify(
    run: RunPath,
    file: File = Path("-"),
    top: Annotated[int, typer.Option(help="Number of labels to print per line, most probable first.")] = 1,
    attention: Annotated[
        Path | None,
        typer.Option(help="Write the weight of each token in the attention pooling to this file, one JSON per line."),
    ] = None,
    json: Json = False,
) -> None:
    """Print the label and the probability of each line.

    A run that was trained on pairs of texts reads lines of the form text, tab, text. With --json it prints one object
    per line, with the probabilities of all labels.
    """
    from chainrule.runs.labels import ClassifierRun
    from chainrule.runs.load import load_for

    loaded = load_for("classify", ClassifierRun, run)
    print_warnings()
    texts = _texts(loaded, read_lines(file))
    if attention is not None:
        check_no_picture("--attention", attention)
        texts = _write_attention(loaded, list(texts), attention)
    predictions = loaded.classify(texts, top=len(loaded.labels) if json else top)
    for best in with_progress(predictions, "classifying"):
        _print(best, top, json)


def _texts(run: ClassifierRun, lines: Iterator[str]) -> Iterator[str | tuple[str, str]]:
    """The texts of the lines, or their pairs of texts if the run was trained on pairs."""
    from chainrule.errors import DataError

    if not run.config.model.options.get("pairs"):
        yield from lines
        return
    for number, line in enumerate(lines, start=1):
        first, tab, second = line.partition("\t")
        if not tab:
            raise DataError(
                f"line {number} has no tab; {run.folder.given} was trained on pairs and expects lines of text, tab, "
                "text"
            )
        yield first, second


def _write_attention(
    run: ClassifierRun, texts: list[str | tuple[str, str]], file: Path
) -> Iterator[str | tuple[str, str]]:
    """Write what the attention pooling looks at in each text -> the texts again."""
    from json import dumps

    from chainrule.base.files import write_atomically

    records = (dumps(one.to_dict(), ensure_ascii=False) for one in run.attention(iter(texts)))
    write_atomically(file, "".join(record + "\n" for record in records))
    return iter(texts)


def with_progress(results: Iterator[T], what: str) -> Iterator[T]:
    """Yield the results, one per line, and report their number and rate on standard error."""
    began, number = time.perf_counter(), 0
    with show_progress(what, "lines") as progress:
        for number, result in enumerate(results, start=1):
            yield result
            progress(number, number)
    seconds = max(1e-9, time.perf_counter() - began)
    print_note(f"{plural(number, 'line')}, {number / seconds:,.1f} lines/s")


def _print(best: list[Labelled], top: int, json: bool) -> None:
    if json:
        probabilities = {one.label: one.probability for one in best}
        print_json({"label": best[0].label, "probability": best[0].probability, "probabilities": probabilities})
        return
    sys.stdout.write("\t".join(f"{one.label}\t{one.probability:.4f}" for one in best[:top]) + "\n")
    sys.stdout.flush()
