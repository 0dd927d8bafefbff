"""What the verbs share: options, output, progress."""

from __future__ import annotations

import contextlib
import json
import math
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from chainrule.training.fit import Listener
    from chainrule.training.loop import Update

RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="The folder that train made.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON on standard output.")]
Field = Annotated[str | None, typer.Option(help="The field that holds the text in JSON lines (default: text).")]
Seed = Annotated[int | None, typer.Option(help="Makes random choices repeatable.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Any option of config.toml, e.g. model.hidden=200."),
]
LiveSettings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="An option of the model that needs no training: model.gamma=0.2."),
]


def say(text: str) -> None:
    """A line for the person, on standard error."""
    print(text, file=sys.stderr, flush=True)


def lines_of(file: Path) -> Iterator[str]:
    """Lines as they come: a file may be a pipe that somebody is still typing into."""
    if str(file) == "-":
        for line in sys.stdin.buffer:
            yield _decoded(line)
        return
    from chainrule.text.readers import lines_in, open_texts

    yield from lines_in(open_texts([file]))


def _decoded(line: bytes) -> str:
    from chainrule.errors import DataError

    try:
        return line.decode().removesuffix("\n")
    except UnicodeDecodeError as error:
        raise DataError(
            f"standard input is not UTF-8 (byte 0x{line[error.start]:02x}); convert it first: iconv -f latin1 -t utf-8"
        ) from None


def tell_warnings() -> None:
    """Warnings come as one line for the person, without the place in the program."""
    warnings.showwarning = lambda message, *rest, **named: say(f"chainrule: {message}")


def print_json(value: Any) -> None:
    """A result for machines, on standard output; JSON has no infinity and no NaN, so these become null."""
    print(json.dumps(_finite(value), ensure_ascii=False, allow_nan=False), flush=True)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def print_fields(values: dict[str, Any]) -> None:
    """A result for people, one `name  value` a line, on standard output."""
    width = max(map(len, values))
    for name, value in values.items():
        shown = f"{value:,}" if isinstance(value, int) else f"{value:.4f}" if isinstance(value, float) else value
        shown = "none" if value is None or value != value else shown
        print(f"{name.replace('_', ' '):<{width}}  {shown}")


def duration(seconds: float) -> str:
    """90 -> 1:30."""
    if seconds == float("inf"):
        return "-:--"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


@contextlib.contextmanager
def bar() -> Iterator[Progress]:
    """A progress display on standard error that leaves nothing behind."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), TextColumn("{task.fields[detail]}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield progress


@contextlib.contextmanager
def counting(what: str, unit: str = "tokens") -> Iterator[Callable[[int, int], None]]:
    """Shows (done, whole) with rate and time left: a bar on a terminal, silence elsewhere unless it takes long."""
    began, told = time.monotonic(), time.monotonic()
    if sys.stderr.isatty():
        with bar() as progress:
            task = progress.add_task(what, total=1, detail="")

            def show(done: int, whole: int) -> None:
                progress.update(task, completed=done, total=whole, detail=_rate(done, whole, began, unit))

            yield show
        return

    def tell(done: int, whole: int) -> None:
        nonlocal told
        if time.monotonic() - told > 10:
            told = time.monotonic()
            say(f"{what}: {done / max(1, whole):.0%}, {_rate(done, whole, began, unit)}")

    yield tell


def _rate(done: int, whole: int, began: float, unit: str) -> str:
    seconds = max(1e-9, time.monotonic() - began)
    left = seconds / done * (whole - done) if done else float("inf")
    return f"{done / seconds:,.0f} {unit}/s, {duration(left)} left"


@contextlib.contextmanager
def training_display() -> Iterator[Listener]:
    """A listener that shows a training: a live line on a terminal, a line every few seconds elsewhere."""
    from chainrule.training.fit import Listener

    if sys.stderr.isatty():
        with bar() as progress:
            yield _live(progress)
    else:
        yield Listener(note=say, update=_plain())


def _live(progress: Progress) -> Listener:
    from chainrule.training.fit import Listener

    tasks: list[TaskID] = []

    def update(update: Update) -> None:
        if not tasks:
            tasks.append(progress.add_task("training", total=1, detail=""))
        progress.update(tasks[0], completed=update.progress, detail=_training_line(update))
        if update.progress >= 1:
            progress.remove_task(tasks.pop())

    def note(text: str) -> None:
        progress.console.print(text, highlight=False, markup=False)
        while tasks:
            progress.remove_task(tasks.pop())

    def tokenized(done: int, whole: int) -> None:
        if not tasks:
            tasks.append(progress.add_task("tokenising", total=1, detail=""))
        progress.update(tasks[0], completed=done, total=whole, detail=f"{done / 1e6:,.0f} MB")
        if done >= whole:
            progress.remove_task(tasks.pop())

    return Listener(note=note, update=update, tokenized=tokenized)


def _plain() -> Callable[[Update], None]:
    told = time.monotonic()

    def update(update: Update) -> None:
        nonlocal told
        if time.monotonic() - told > 10:
            told = time.monotonic()
            say(f"{update.progress:4.0%}  {_training_line(update)}")

    return update


def _training_line(update: Update) -> str:
    s = update.standing
    rate = s.tokens / s.train_seconds if s.train_seconds else 0.0
    # BLEU, where it is selected by, stands below 0.
    best = f", best valid {abs(s.best):.4f}" if s.best != float("inf") else ""
    return f"step {s.step:,}, loss {update.loss:.4f}{best}, {rate:,.0f} tokens/s, {duration(update.seconds_left)} left"
