"""`chainrule mix`: the mixture, its result and its messages."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import chainrule as cr
from builders import pairs_text
from chainrule.cli.main import main


class Result(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def chainrule(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Run `chainrule ARGUMENTS…` in this process."""

    def call(*arguments: object) -> Result:
        monkeypatch.setattr(sys, "argv", ["chainrule", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        return Result(int(ended.value.code or 0), *capsys.readouterr())

    return call


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two small runs and a text to fit the weights on."""
    folder = tmp_path_factory.mktemp("mix")
    (folder / "text.txt").write_text(pairs_text(200))
    (folder / "valid.txt").write_text(pairs_text(60, seed=5))
    (folder / "test.txt").write_text(pairs_text(20, seed=6))
    for model, options in (("lstm", {"embedding": 8, "hidden": 8, "layers": 1}), ("average", {"embedding": 8})):
        settings: dict[str, Any] = {"model": options, "training": {"batch_size": 8, "length": 8, "lr": 0.02}}
        cr.train(folder / "text.txt", model=model, tokenizer="char", steps=40, out=folder / model, settings=settings)
    return folder


def test_two_runs_become_one(place: Path, chainrule: Callable[..., Result]) -> None:
    command = ["mix", place / "lstm", place / "average", "--valid", place / "valid.txt", "--out", place / "mixed"]
    command += ["--cache", "unigram", "--cache", "continuous", "--set", "cache.decay=0.9", "--set", "cache.theta=0.3"]
    done = chainrule(*command, "--buckets", "--json")
    assert done.code == 0, done.err
    result = json.loads(done.out)
    assert set(result) == {
        "run",
        "steps",
        "seconds",
        "parameters",
        "tokens_per_second",
        "peak_memory",
        "weights",
        "valid",
    }
    assert result["run"] == str(place / "mixed")
    assert sum(result["weights"].values()) == pytest.approx(1, abs=1e-5)
    assert done.err.splitlines() == [
        "unigram cache: decay 0.9",
        "continuous cache: part 0, theta 0.3, window 2000",
        "continuous cache: part 1, theta 0.3, window 2000",
    ]
    parts = [
        json.loads(chainrule("eval", place / name, place / "valid.txt", "--json").out) for name in ("lstm", "average")
    ]
    assert result["valid"]["perplexity"] < min(part["perplexity"] for part in parts)
    measured = chainrule("eval", place / "mixed", place / "valid.txt", "--json")
    assert json.loads(measured.out) == result["valid"]

    again = chainrule(*command, "--buckets")
    assert again.code == 0
    assert again.err.startswith(f"{place / 'mixed'} is already finished; choose another --out to mix again\n")
    shown = dict(line.split("  ", 1) for line in again.out.splitlines())
    assert float(shown["weight of 0:lstm".ljust(16)].strip()) == pytest.approx(result["weights"]["0:lstm"], abs=1e-4)

    other = chainrule(*command)
    assert (other.code, other.out) == (2, "")
    assert (
        other.err
        == f"chainrule: {place / 'mixed'} is not empty and was not made by this command; choose another place\n"
    )


def test_one_run_alone_is_an_error(place: Path, chainrule: Callable[..., Result]) -> None:
    done = chainrule("mix", place / "lstm", "--valid", place / "valid.txt", "--out", place / "alone")
    assert (done.code, done.out) == (2, "")
    assert done.err == (
        "chainrule: mixing needs two runs, or one run and a cache, but got 1 run and no cache; name another run, "
        "or add --cache unigram\n"
    )
    assert not (place / "alone").exists()
