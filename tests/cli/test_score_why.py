"""chainrule score --why"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import chainrule as cr
from builders import pairs_text
from commands import chainrule


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("why")
    (folder / "text.txt").write_text(pairs_text(200), encoding="utf-8")
    cr.train(
        folder / "text.txt", model="ngram", tokenizer="char", out=folder / "ngram", settings={"model": {"order": 3}}
    )
    return folder / "ngram"


def test_it_explains_a_token_of_each_line(run: Path) -> None:
    result = chainrule("score", run, "--why", 2, stdin="abab\nzqcd\n")
    assert result.code == 0
    first, second = result.out.split("\n\n")
    assert first.startswith("a  ")
    assert "of 3 decided" in first
    assert "bits by number of known tokens  0: " in second
    assert [line.split() for line in first.splitlines() if line.startswith("context")] == [
        ["context", "seen", "p", "back-off"]
    ]


def test_json_is_that_of_python(run: Path) -> None:
    result = chainrule("score", run, "--why", -1, "--json", stdin="abab\n")
    assert json.loads(result.out) == json.loads(json.dumps(cr.load(run).why("abab").to_dict()))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--why", 9), "position is 9, but the text has 4 tokens, counted from 0"),
        (
            ("--why", 1, "--tokens"),
            "--why 1 explains one token of each line; leave --tokens, --top, --attention, --oov",
        ),
        (("--why", 1, "--oov", "spell"), "--why 1 explains one token of each line; leave --tokens"),
    ],
)
def test_what_does_not_go_together_is_refused(run: Path, options: tuple[object, ...], message: str) -> None:
    result = chainrule("score", run, *options, stdin="abab\n")
    assert result.code == 2
    assert message in result.err
