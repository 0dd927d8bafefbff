"""chainrule tag"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from chainrule.cli.classify import with_progress
from chainrule.cli.common import Json, RunPath, print_json, print_warnings, read_lines

File = Annotated[
    Path,
    typer.Argument(help="File with one word per line, or with --plain one sentence per line; - is standard input."),
]


def tag(
    run: RunPath,
    file: File = Path("-"),
    plain: Annotated[
        bool, typer.Option("--plain", help="Read one sentence per line, with spaces between the words.")
    ] = False,
    json: Json = False,
) -> None:
    """Tag every word of a text.

    The output repeats the input and adds the tag to each word's line as the last column. Blank lines and -DOCSTART-
    lines stay unchanged. With --json it prints one object per sentence.
    """
    from chainrule.runs.labels import TaggerRun
    from chainrule.runs.load import load_for

    loaded = load_for("tag", TaggerRun, run)
    print_warnings()
    # Sentences that were read but not yet tagged: all lines of each, those without a word included.
    waiting: deque[list[str]] = deque()
    blocks = _plain(read_lines(file), waiting) if plain else _columns(read_lines(file), waiting)
    for tags in with_progress(loaded.tag(blocks), "tagging"):
        _print(waiting.popleft(), tags, json)


def _plain(lines: Iterator[str], waiting: deque[list[str]]) -> Iterator[list[str]]:
    """Split each line into the words of a sentence; `waiting` gets one line per word."""
    for line in lines:
        words = line.split()
        waiting.append([*words, ""])
        yield words


def _columns(lines: Iterator[str], waiting: deque[list[str]]) -> Iterator[list[str]]:
    """Collect the lines of each sentence, the line that ends it included, and yield its words."""
    block: list[str] = []
    for line in lines:
        block.append(line)
        if not has_word(line):
            waiting.append(block)
            yield [one.split()[0] for one in block if has_word(one)]
            block = []
    if block:
        waiting.append(block)
        yield [one.split()[0] for one in block]


def has_word(line: str) -> bool:
    """Whether a line of columns has a word: blank lines and document separators have none."""
    from chainrule.text.formats.tags import DOCUMENT

    columns = line.split()
    return bool(columns) and columns[0] != DOCUMENT


def _print(block: list[str], tags: list[str], json: bool) -> None:
    if json:
        print_json({"words": [line.split()[0] for line in block if has_word(line)], "tags": tags})
        return
    rest = iter(tags)
    for line in block:
        separator = "\t" if "\t" in line else " "
        tagged = f"{line.rstrip()}{separator}{next(rest)}" if has_word(line) else line
        sys.stdout.write(tagged + "\n")
    sys.stdout.flush()
