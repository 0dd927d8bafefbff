"""--threads: every verb that computes has it, and it decides how many cores are used."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import typer.main

from chainrule.base.devices import physical_cores
from chainrule.cli.main import LIGHT_VERBS, VERBS, app
from chainrule.cli.threads import with_threads


@pytest.mark.parametrize("verb", [verb for group in VERBS.values() for verb in group])
def test_verbs_that_compute_have_the_option(verb: str) -> None:
    command: Any = typer.main.get_command(app)
    options = {flag for parameter in command.commands[verb].params for flag in parameter.opts}
    assert ("--threads" in options) == (verb not in LIGHT_VERBS)


def test_the_option_sets_the_number_of_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    seen: list[tuple[Path, int]] = []

    def verb(path: Path) -> None:
        seen.append((path, physical_cores()))

    with_threads(verb)(Path("a"))
    with_threads(verb)(path=Path("b"), threads=3)
    assert seen == [(Path("a"), 1), (Path("b"), 3)]
    assert os.environ["OMP_NUM_THREADS"] == "3"
