"""Resuming a run by its folder alone, and the suggestions for options that are misspelt or in no section."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import chainrule as cr
from builders import pairs_text
from chainrule.errors import ConfigError
from chainrule.training.request import make_config

SMALL: dict[str, Any] = {"model": "rnn", "tokenizer": "char", "embedding": 4, "hidden": 4}


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(pairs_text(50))
    return path


def test_the_folder_alone_resumes_a_run(text: Path, tmp_path: Path) -> None:
    run = cr.train(text, **SMALL, steps=2, out=tmp_path / "run")
    again = cr.train(out=tmp_path / "run")
    assert again.result == run.result
    longer = cr.train(out=tmp_path / "run", steps=5)
    assert longer.result["steps"] == 5


def test_without_data_there_must_be_a_run(tmp_path: Path) -> None:
    for out in (None, tmp_path / "none"):
        with pytest.raises(ConfigError, match="no data was given; name files to train on, or resume a run"):
            cr.train(out=out)


def test_a_misspelt_option_of_an_existing_run_gets_its_suggestion(text: Path, tmp_path: Path) -> None:
    cr.train(text, **SMALL, steps=1, out=tmp_path / "run")
    with pytest.raises(ConfigError, match=r"unknown option 'model.hiden': did you mean 'model.hidden'"):
        cr.train(text, **SMALL, steps=1, out=tmp_path / "run", hiden=64)
    with pytest.raises(ConfigError, match=r"model.layers was the default, now 2"):
        cr.train(text, **SMALL, steps=1, out=tmp_path / "run", layers=2)


@pytest.mark.parametrize(
    ("given", "suggested"), [({"hidden": 100}, "model.hidden=100"), ({"lr": 0.1}, "training.lr=0.1")]
)
def test_an_option_without_its_section_gets_it_suggested(given: dict[str, Any], suggested: str) -> None:
    with pytest.raises(ConfigError, match=f"did you mean --set {suggested}\\?"):
        make_config(None, {"model": {"name": "lstm"}}, given)
