"""Options, output and progress displays shared by the verbs."""

from __future__ import annotations

import codecs
import contextlib
import json
import math
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeGuard

import typer

from chainrule.base.progress import SECONDS_BETWEEN_LINES, progress_bar
from chainrule.base.progress import format_duration as format_duration
from chainrule.base.progress import print_note as print_note
from chainrule.base.tables import format_rate

if TYPE_CHECKING:
    from chainrule.base.progress import Progress
    from chainrule.runs.base import Run
    from chainrule.runs.translator import TranslatorRun
    from chainrule.text.sources import SourceName
    from chainrule.training.fitting.fitting import TrainingListener

RunPath = Annotated[
    Path, typer.Argument(metavar="RUN", help="Folder of a trained or imported run, or file of chainrule pack.")
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Field = Annotated[str | None, typer.Option(help="Name of the text field in JSON lines (default: text).")]
Verbose = Annotated[bool, typer.Option("--verbose", help="Also print how the figures were measured.")]
Seed = Annotated[int | None, typer.Option(min=0, max=(1 << 63) - 1, help="Random seed, for repeatable results.")]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Set any option of config.toml, for example model.hidden=200; repeatable.",
    ),
]
LiveSettings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Set a model option that needs no training, for example model.gamma=0.2; repeatable.",
    ),
]
RepetitionPenalty = Annotated[
    float, typer.Option(help="Multiply log p of tokens that occur in the text by this; above 1 avoids repetition.")
]
NoRepeatNgramSize = Annotated[
    int, typer.Option(metavar="N", help="Generate no sequence of N tokens twice (default 0: allow it).")
]
NoUnk = Annotated[bool, typer.Option("--no-unk", help="Never generate the unknown token.")]
Precision = Annotated[
    str | None,
    typer.Option(
        metavar="float32|int8",
        help="Precision of the weights: float32, or int8, faster at a small cost in quality (default: as stored).",
    ),
]
MinNewTokens = Annotated[int, typer.Option(help="Do not end before this number of new tokens.")]


def is_translator(run: Run) -> TypeGuard[TranslatorRun]:
    """Whether a run translates; its class is imported only if it does."""
    return "translate" in run.verbs


def source_names(arguments: Sequence[str] | None) -> list[SourceName]:
    """Arguments that name files: a misspelt name is a missing file, never a text."""
    from chainrule.text.sources import SourceName

    return [SourceName(name) for name in arguments or ()]


def read_lines(file: Path) -> Iterator[str]:
    """Yield the lines of a file or, for "-", of standard input; each line as soon as it can be read."""
    if str(file) == "-":
        for number, line in enumerate(sys.stdin.buffer):
            yield _decode(line if number else line.removeprefix(codecs.BOM_UTF8))
        return
    from chainrule.text.readers import lines_in, open_texts

    yield from lines_in(open_texts([file]))


def _decode(line: bytes) -> str:
    from chainrule.errors import DataError

    try:
        return line.decode().removesuffix("\n")
    except UnicodeDecodeError as error:
        encoding = "utf-16" if line[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "latin1"
        raise DataError(
            f"standard input is not UTF-8 (byte 0x{line[error.start]:02x}); convert it first: iconv -f {encoding} -t "
            "utf-8"
        ) from None


def print_warnings() -> None:
    """Print Python warnings as one line each, without their location in the source."""
    warnings.showwarning = lambda message, *rest, **named: print_note(f"warning: {message}")


PICTURES = frozenset((".png", ".svg", ".pdf", ".jpg", ".jpeg", ".gif", ".webp", ".html"))


def check_no_picture(option: str, file: Path | None) -> None:
    """Refuse to write JSON to a file that is named like a picture or a page."""
    from chainrule.errors import ConfigError

    if file is not None and file.suffix.lower() in PICTURES:
        raise ConfigError(
            f"{option} {file} would be no picture: the option writes JSON; name a .json file. The page of chainrule "
            "serve draws pictures"
        )


def print_json(value: Any) -> None:
    """Print a result as one line of JSON. Infinity and NaN, which JSON lacks, become null."""
    print(json.dumps(_replace_non_finite(value), ensure_ascii=False, allow_nan=False), flush=True)


def _replace_non_finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _replace_non_finite(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_replace_non_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def print_fields(values: dict[str, Any]) -> None:
    """Print a result as one `name  value` line per field."""
    from chainrule.base.tables import show_fields

    print(show_fields(values))


@contextlib.contextmanager
def show_progress(what: str, unit: str = "tokens") -> Iterator[Progress]:
    """Yield a function that takes (done, total) and shows the rate and the time left.

    It draws a bar on a terminal; elsewhere it prints a line every ten seconds.
    """
    began = last_printed = time.monotonic()
    if sys.stderr.isatty():
        with progress_bar() as progress:
            task = progress.add_task(what, total=1, detail="")

            def update_bar(done: int, total: int) -> None:
                progress.update(task, completed=done, total=total, detail=_format_progress(done, total, began, unit))

            yield update_bar
        return

    def print_line(done: int, total: int) -> None:
        nonlocal last_printed
        if time.monotonic() - last_printed > SECONDS_BETWEEN_LINES:
            last_printed = time.monotonic()
            print_note(f"{what}: {done / max(1, total):.0%}, {_format_progress(done, total, began, unit)}")

    yield print_line


def _format_progress(done: int, total: int, began: float, unit: str) -> str:
    seconds = max(1e-9, time.monotonic() - began)
    left = seconds / done * (total - done) if done else float("inf")
    return f"{format_rate(done / seconds, unit)}, {format_duration(left)} left"


@contextlib.contextmanager
def training_display() -> Iterator[TrainingListener]:
    """Yield a listener that shows a training: a live bar on a terminal, elsewhere a line every ten seconds."""
    from chainrule.training.display import training_display as display

    with display() as listener:
        yield listener
