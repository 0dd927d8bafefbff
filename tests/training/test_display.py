"""What a training in Python shows, and where."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

import chainrule as cr
from chainrule.training.display import display_for
from chainrule.training.fitting.fitting import TrainingListener

LINES = ["abab", "cdcd"] * 30


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def train(folder: Path, **options: bool) -> None:
    cr.train(LINES, model="ngram", tokenizer="char", order=2, out=folder, **options)


def test_progress_is_shown_on_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(tmp_path / "first", progress=False)  # imports everything before standard error is replaced
    monkeypatch.setattr(sys, "stderr", screen := Terminal())
    train(tmp_path / "shown")
    train(tmp_path / "shown")
    assert "is already finished" in " ".join(screen.getvalue().split())
    monkeypatch.setattr(sys, "stderr", silent := Terminal())
    train(tmp_path / "shown", progress=False)
    assert silent.getvalue() == ""


def test_nothing_is_shown_where_no_one_watches(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    train(tmp_path / "run")
    train(tmp_path / "run")
    assert capfd.readouterr() == ("", "")


def test_a_notebook_shows_it_too(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("chainrule.training.display.in_notebook", lambda: True)
    with display_for(None, True) as listener:
        listener.note("a message")
    assert capsys.readouterr().err == "a message\n"


def test_a_given_listener_is_used() -> None:
    given = TrainingListener()
    with display_for(given, True) as listener:
        assert listener is given
