"""chainrule fill"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from chainrule.cli.common import Json, RunPath, print_json, print_warnings

if TYPE_CHECKING:
    from chainrule.inference.fill import Filled


def fill(
    run: RunPath,
    text: Annotated[
        str | None,
        typer.Argument(
            help="Text with [MASK] for each missing word, or gap with t5 (default: the lines of standard input)."
        ),
    ] = None,
    top: Annotated[int, typer.Option(help="Number of words, or fillings of a gap, to print for each [MASK].")] = 5,
    json: Json = False,
) -> None:
    """Print the most probable words for every [MASK] of a text, or fillings of any length with t5.

    With --json it prints one object per text.
    """
    from chainrule.errors import ConfigError
    from chainrule.inference.fill import MASK
    from chainrule.runs.load import load
    from chainrule.runs.masked import MaskedRun
    from chainrule.runs.translator import TranslatorRun

    print_warnings()
    if text is not None and MASK not in text and Path(text).is_file():
        raise ConfigError(f"{text} is a file; give the text itself, or the file as standard input: < {text}")
    loaded = load(run)
    if not isinstance(loaded, MaskedRun | TranslatorRun):
        raise loaded.missing("fill")
    lines: Iterable[str] = (line.rstrip("\n") for line in sys.stdin) if text is None else [text]
    for line in lines:
        filled = loaded.fill(line, top)
        if json:
            print_json({"text": line, "filled": [asdict(one)["guesses"] for one in filled]})
        else:
            _print(filled)


def _print(filled: list[Filled]) -> None:
    """Print one line per mask: its words, most probable first, with their probabilities."""
    for one in filled:
        print("\t".join(f"{guess.word} {guess.probability:.4f}" for guess in one.guesses), flush=True)
