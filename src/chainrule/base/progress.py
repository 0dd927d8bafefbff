"""The type of progress callbacks, and what a progress display consists of."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress as ProgressBar

Progress = Callable[[int, int], None]
"""Called with the number of items done and the total."""

SECONDS_BETWEEN_LINES = 10
"""Seconds between progress lines where standard error is not a terminal."""


def print_note(text: str) -> None:
    """Print a line on standard error, which keeps standard output free for results."""
    print(text, file=sys.stderr, flush=True)


def draws_bars() -> bool:
    """Whether a bar can be drawn: on a terminal, or in a notebook that has widgets."""
    return sys.stderr.isatty() or (in_notebook() and importlib.util.find_spec("ipywidgets") is not None)


def in_notebook() -> bool:
    """Whether this is a Jupyter notebook."""
    if "IPython" not in sys.modules:
        return False
    from rich.console import Console

    return Console(stderr=True).is_jupyter


def format_duration(seconds: float) -> str:
    """Format seconds as minutes and seconds, or hours, minutes and seconds: 90 becomes 1:30."""
    if seconds == float("inf"):
        return "-:--"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


@contextlib.contextmanager
def progress_bar() -> Iterator[ProgressBar]:
    """A progress bar on standard error, erased at the end."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    console = Console(stderr=True)
    percentage = TextColumn("{task.percentage:>3.0f}%")
    bar = (BarColumn(bar_width=min(24, console.width - 90)),) if console.width > 96 else ()  # the figures matter more
    columns = (TextColumn("{task.description}"), *bar, percentage, TextColumn("{task.fields[detail]}"))
    with Progress(*columns, console=console, transient=True) as progress:
        yield progress
