"""The front pages: their commands run, and print what the pages show."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import NamedTuple

import pytest

from commands import chainrule

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("README.md", "README.zh-CN.md")
TIMED = ("time", "speed", "peak memory")
"""Fields that depend on the machine."""


class Command(NamedTuple):
    """A command of a page and the output below it."""

    page: str
    line: str
    output: list[str]


def commands(page: str) -> list[Command]:
    """The commands of the console blocks of a page, in order."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found: list[Command] = []
    for block in re.findall(r"^```console\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append(Command(page, line[2:], []))
            else:
                found[-1].output.append(line)
    return found


def brief(line: str) -> list[str]:
    """The arguments of a command, a budget of a minute replaced by two steps."""
    return shlex.split(line.replace("--minutes 1", "--steps 2"))[1:]


@pytest.mark.parametrize("page", PAGES)
def test_every_command_of_the_front_page_runs_and_prints_what_the_page_shows(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shown = commands(page)
    assert len(shown) >= 5
    for command in shown:
        result = chainrule(*brief(command.line))
        assert result.code == 0, f"{command.line}: {result.err}"
        if " generate " in command.line:  # the text depends on the version of Python; it begins with the prompt
            prompt = re.search(r'--prompt "([^"]+)"', command.line)
            assert prompt
            assert result.out.startswith(prompt[1])
            assert all(line.startswith(prompt[1]) for line in command.output[:1])
        elif command.output:
            printed = {**fields(result.err.splitlines()), **fields(result.out.splitlines())}
            expected = fields(command.output)
            assert list(expected) == [name for name in printed if name in expected], command.line
            for name, value in expected.items():
                assert_alike(name, value, printed[name])


def fields(lines: list[str]) -> dict[str, str]:
    """`name  value` and `name: value` lines by name; other lines under themselves."""
    named = {}
    for line in lines:
        name, value = [*re.split(r" {2,}|: ", line, maxsplit=1), ""][:2]
        named[name] = value
    return named


def assert_alike(name: str, expected: str, printed: str) -> None:
    """Equal figures up to the version of Python, from which the built-in text comes; times only have a unit."""
    if name in TIMED:
        assert re.sub(r"[\d.,]+[kMG]?", "", printed).split() == re.sub(r"[\d.,]+[kMG]?", "", expected).split()
        return
    if name == "signature":
        assert [part.split(":")[0] for part in printed.split("|")] == [
            part.split(":")[0] for part in expected.split("|")
        ]
        return
    try:
        figure = float(expected.replace(",", ""))
    except ValueError:
        assert printed == expected or name not in ("run", "tokeniser")
        return
    assert float(printed.replace(",", "")) == pytest.approx(figure, rel=0.05)
