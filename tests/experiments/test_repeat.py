"""The command that repeats a training makes the same weights."""

from __future__ import annotations

import shlex
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import chainrule as cr
from builders import letter_pairs, pairs_text, write_pairs
from chainrule.checkpoint.folder import RunFolder
from chainrule.config import parse_settings
from chainrule.experiments.repeat import repeat_command


def weights(path: Path) -> bytes:
    return (path / "model.safetensors").read_bytes()


def again(command: str) -> Path:
    """Do in this process what a command does."""
    name, verb, *words = shlex.split(command)
    assert (name, verb) == ("chainrule", "train")
    data = [word for place, word in enumerate(words) if "--" not in word and not words[place - 1].startswith("--")]
    flags = [(flag, value) for flag, value in pairwise(words) if flag.startswith("--")]
    named: dict[str, Any] = {
        flag[2:].replace("-", "_"): value for flag, value in flags if flag not in ("--set", "--valid")
    }
    for flag in ("steps", "vocab_size", "max_tokens", "seed"):
        if flag in named:
            named[flag] = int(named[flag])
    valid = [value for flag, value in flags if flag == "--valid"]
    settings = parse_settings([value for flag, value in flags if flag == "--set"])
    cr.train(*data, **named, valid=valid, settings=settings)
    return Path(named["out"])


def test_a_language_model(tmp_path: Path) -> None:
    text, valid = tmp_path / "a text.txt", tmp_path / "valid.txt"
    text.write_text(pairs_text(200), encoding="utf-8")
    valid.write_text(pairs_text(20), encoding="utf-8")
    settings = {"model": {"embedding": 8, "hidden": 8, "layers": 1}, "training": {"lr": 0.01, "threads": 1}}
    run = cr.train(
        text, valid=valid, model="gru", tokenizer="char", steps=6, seed=7, out=tmp_path / "run", settings=settings
    )
    command = repeat_command(run.folder)
    assert command is not None
    assert command.startswith(f"chainrule train '{text}' --valid {valid} --seed 7 ")
    assert "--set training.lr=0.01" in command
    assert "beta1" not in command  # defaults are left out
    assert command.endswith(f"--out {tmp_path / 'run'}-again")
    assert weights(again(command)) == weights(tmp_path / "run")


def test_a_translator_and_a_count(tmp_path: Path) -> None:
    paths = write_pairs(tmp_path, letter_pairs(60))
    shape = {"model": {"embedding": 8, "hidden": 8}, "training": {"threads": 1}}
    cr.train(*paths, model="seq2seq-rnn", tokenizer="char", steps=3, out=tmp_path / "pairs", settings=shape)
    cr.train(paths[0], model="ngram", tokenizer="char", order=3, out=tmp_path / "ngram")
    for name in ("pairs", "ngram"):
        command = repeat_command(RunFolder(tmp_path / name), out=tmp_path / f"{name}-2")
        assert command is not None
        assert weights(again(command)) == weights(tmp_path / name)


def test_a_mixture_has_no_such_command(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text(pairs_text(100), encoding="utf-8")
    runs = [
        cr.train(text, model="ngram", tokenizer="char", order=n, out=tmp_path / f"n{n}").folder.path for n in (1, 2)
    ]
    mixed = cr.mix(runs, valid=text, out=tmp_path / "mixture")
    assert repeat_command(mixed.folder) is None


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"model": 3}', '{"model": {}, "data": []}', '{"model": {"name": "lstm"}, "data": {}}']
)
def test_a_damaged_request_gives_none(tmp_path: Path, content: str) -> None:
    (tmp_path / "training").mkdir()
    (tmp_path / "training" / "request.json").write_text(content)
    assert repeat_command(RunFolder(tmp_path)) is None
