"""What a training shows while it runs: a live bar on a terminal or in a notebook, lines elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from chainrule.base.progress import (
    SECONDS_BETWEEN_LINES,
    draws_bars,
    format_duration,
    in_notebook,
    print_note,
    progress_bar,
)
from chainrule.base.tables import format_rate
from chainrule.training.fitting.fitting import TrainingListener
from chainrule.training.loop import Update

if TYPE_CHECKING:
    from rich.progress import Progress as ProgressBar
    from rich.progress import TaskID


@contextlib.contextmanager
def display_for(listener: TrainingListener | None, progress: bool) -> Iterator[TrainingListener]:
    """Yield the given listener; else one that shows the training where someone may be watching, else a silent one."""
    if listener is None and progress and (sys.stderr.isatty() or in_notebook()):
        with training_display() as shown:
            yield shown
    else:
        yield listener or TrainingListener()


@contextlib.contextmanager
def training_display() -> Iterator[TrainingListener]:
    """Yield a listener that shows a training: a live bar on a terminal, elsewhere a line every ten seconds."""
    if draws_bars():
        with progress_bar() as progress:
            yield _live_listener(progress)
    else:
        yield TrainingListener(note=print_note, update=_line_printer())


def _live_listener(progress: ProgressBar) -> TrainingListener:
    """Show tokenising and training in one bar, and notes above it."""
    tasks: list[TaskID] = []

    def update(update: Update) -> None:
        if not tasks:
            tasks.append(progress.add_task("training", total=1, detail=""))
        progress.update(tasks[0], completed=update.progress, detail=_format_update(update))
        if update.progress >= 1:
            progress.remove_task(tasks.pop())

    def note(text: str) -> None:
        progress.console.print(text, highlight=False, markup=False)
        while tasks:
            progress.remove_task(tasks.pop())

    def tokenized(done: int, total: int) -> None:
        if not tasks:
            tasks.append(progress.add_task("tokenising", total=1, detail=""))
        progress.update(tasks[0], completed=done, total=total, detail=f"{done / 1e6:,.0f} MB")
        if done >= total:
            progress.remove_task(tasks.pop())

    return TrainingListener(note=note, update=update, tokenized=tokenized)


def _line_printer() -> Callable[[Update], None]:
    """A function that prints some of the updates it is called with."""
    last_printed = time.monotonic()

    def print_line(update: Update) -> None:
        nonlocal last_printed
        if time.monotonic() - last_printed > SECONDS_BETWEEN_LINES:
            last_printed = time.monotonic()
            print_note(f"{update.progress:4.0%}  {_format_update(update)}")

    return print_line


def _format_update(update: Update) -> str:
    s = update.state
    rate = s.tokens / s.train_seconds if s.train_seconds else 0.0
    # Metrics that are maximised, such as BLEU, are stored negated.
    best = f", best {abs(s.best):.3f}" if s.best != float("inf") else ""
    left = format_duration(update.seconds_left)
    return f"step {s.step:,}, loss {update.loss:.3f}{best}, {format_rate(rate)}, {left} left"
