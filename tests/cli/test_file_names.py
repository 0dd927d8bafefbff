"""An argument that names a file is a file name on the command line, whatever it looks like: never a text in memory."""

from __future__ import annotations

from pathlib import Path

import pytest

import chainrule as cr
from builders import pairs_text
from commands import chainrule

TRAIN = ("train", "{place}/text.txt", "--model", "ngram", "--order", "2", "--tokenizer", "char")

COMMANDS = {
    "eval": ("eval", "{place}/one", "no such text"),
    "train": (*TRAIN, "--valid", "no such text", "--out", "{place}/new"),
    "compare": ("compare", "{place}/text.txt", "--models", "ngram", "--test", "no such text", "--out", "{place}/new"),
    "mix": ("mix", "{place}/one", "{place}/two", "--valid", "no such text", "--out", "{place}/new"),
    "tune": ("tune", "{place}/mixture", "--valid", "no such text"),
    "report": ("report", "{place}/one", "--data", "no such text", "--out", "{place}/new.html"),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("names")
    (folder / "text.txt").write_text(pairs_text(60))
    for name, order in (("one", 1), ("two", 2)):
        cr.train(folder / "text.txt", model="ngram", tokenizer="char", order=order, out=folder / name)
    cr.mix(
        [folder / "one", folder / "two"], valid=folder / "text.txt", out=folder / "mixture", note=lambda message: None
    )
    return folder


@pytest.mark.parametrize("verb", COMMANDS)
def test_a_missing_file_is_missing_though_its_name_reads_as_a_text(verb: str, place: Path) -> None:
    done = chainrule(*(part.format(place=place) for part in COMMANDS[verb]))
    assert (done.code, done.out) == (2, "")
    assert done.err.splitlines()[-1] == "chainrule: there is no file 'no such text': check the name and the folder."
    assert not (place / "new" / "result.json").exists()


def test_a_file_whose_name_reads_as_a_text_is_read(place: Path) -> None:
    named, plain = place / "my test set", place / "plain.txt"
    for file in (named, plain):
        file.write_text("abab\ncdcd\n")
    measured = [chainrule("eval", place / "one", file).out for file in (named, plain)]
    assert measured[0] == measured[1]
    assert "bytes" in measured[0]
