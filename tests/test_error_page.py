"""docs/errors.md: every message of its examples is the one that the command prints."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import NamedTuple

import pytest

import chainrule as cr
from chainrule.text.samples.texts import english_text
from commands import chainrule

PAGE = Path(__file__).resolve().parent.parent / "docs" / "errors.md"


class Example(NamedTuple):
    """The arguments of a command, and the message it prints; "…" stands for the rest."""

    arguments: str
    message: str


def examples() -> list[Example]:
    text = PAGE.read_text(encoding="utf-8").partition("## Common messages")[2]
    block = re.search(r"^```text\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert block
    found = []
    for part in re.split(r"^> ", block[1], flags=re.MULTILINE)[1:]:
        arguments, _, message = part.partition("\n")
        found.append(Example(arguments, " ".join(message.split())))
    return found


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files and runs of the examples."""
    folder = tmp_path_factory.mktemp("errors")
    book = english_text()[:20_000]
    for name, text in {
        "book.txt": book,
        "valid.txt": book[:500],
        "test.txt": book[:500],
        "two.txt": "one line\nanother line\n",
        "empty.txt": "",
        "train.en": "a man\na dog\na cat\n",
        "train.de": "ein Mann\nein Hund\neine Katze\n",
        "shorter.de": "ein Mann\nein Hund\n",
        "test.en": "a man\n",
    }.items():
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "latin1.txt").write_bytes("caf\xe9 au lait\n".encode("latin1") * 20)
    small = {"model": {"embedding": 8, "hidden": 8, "layers": 1}}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        cr.train("book.txt", model="lstm", steps=1, out="runs/lstm", settings=small, progress=False)
        cr.train("book.txt", model="ngram", order=2, out="runs/ngram", progress=False)
    return folder


@pytest.mark.parametrize("example", examples(), ids=lambda one: one.arguments)
def test_the_command_prints_the_message(example: Example, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    done = chainrule(*shlex.split(example.arguments))
    printed = done.err.splitlines()[-1]
    shown, rest, _ = example.message.partition("…")
    assert done.code == 2
    assert (printed[: len(shown)] if rest else printed) == shown
