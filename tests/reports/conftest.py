"""Small runs and a test text, measured once for all tests of reports."""

from __future__ import annotations

import pytest

import chainrule as cr
from chainrule.text.samples.texts import english_text
from report_desk import SCRIPT, Desk


@pytest.fixture(scope="session")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    folder = tmp_path_factory.mktemp("desk")
    text = english_text()
    (folder / "book.txt").write_text(text[:60_000], encoding="utf-8")
    (folder / "valid.txt").write_text(text[60_000:63_000], encoding="utf-8")
    (folder / "test.txt").write_text(SCRIPT + text[63_000:70_000] + "no newline at the end", encoding="utf-8")
    data = {"valid": folder / "valid.txt", "progress": False}
    cr.train(folder / "book.txt", model="ngram", tokenizer="word", out=folder / "ngram", **data)
    cr.train(folder / "book.txt", model="ngram", tokenizer="char", out=folder / "chars", **data)
    small = {"model": {"embedding": 16, "hidden": 24, "layers": 1}, "training": {"log_steps": 5}}
    options = {"tokenizer": "bpe", "vocab_size": 300, "steps": 20, "settings": small, **data}
    cr.train(folder / "book.txt", model="lstm", out=folder / "lstm", **options)
    runs = [folder / name for name in ("lstm", "ngram", "chars")]
    return Desk(folder, cr.report(*runs, data=folder / "test.txt"))
