"""chainrule tag"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from chainrule.cli.classify import shown
from chainrule.cli.common import Json, RunPath, lines_of, print_json, tell_warnings

File = Annotated[
    Path, typer.Argument(help="Words in columns, or sentences with --plain; - or nothing: standard input.")
]


def tag(
    run: RunPath,
    file: File = Path("-"),
    plain: Annotated[bool, typer.Option("--plain", help="Read a sentence a line, words between spaces.")] = False,
    json: Json = False,
) -> None:
    """Tag every word: its line comes out as it was, the tag behind it as the last column, sentences in order.

    Blank lines and -DOCSTART- lines stay as they are. With --json one object a sentence.
    """
    from chainrule import api
    from chainrule.errors import RunError
    from chainrule.runs.labels import TaggerRun

    loaded = api.load(run)
    if not isinstance(loaded, TaggerRun):
        raise RunError(
            f"{run} is a {loaded.config.model.name}, which is no tagger; train one with: chainrule train TAGGED.conll "
            "--model tagger"
        )
    tell_warnings()
    # What was read and waits for its tags: the lines of each sentence, those that hold no word among them.
    waiting: deque[list[str]] = deque()
    blocks = _plain(lines_of(file), waiting) if plain else _columns(lines_of(file), waiting)
    for tags in shown(loaded.tag(blocks), "tagging"):
        _print(waiting.popleft(), tags, json)


def _plain(lines: Iterator[str], waiting: deque[list[str]]) -> Iterator[list[str]]:
    """Sentences of lines, each word as if it had a line of its own."""
    for line in lines:
        words = line.split()
        waiting.append([*words, ""])
        yield words


def _columns(lines: Iterator[str], waiting: deque[list[str]]) -> Iterator[list[str]]:
    """Sentences of blocks of lines; the line that ends one belongs to it."""
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
    """Whether a line of columns holds a word; blank ones and those between documents hold none."""
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
        told = f"{line.rstrip()}{separator}{next(rest)}" if has_word(line) else line
        sys.stdout.write(told + "\n")
    sys.stdout.flush()
