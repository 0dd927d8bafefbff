"""A text that is scored as it grows, against `score` of whole lines."""

from __future__ import annotations

from pathlib import Path

import pytest

import chainrule as cr
from builders import small_options

LINE = "the dog sat on a zzq mat"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prefix")
    (folder / "text.txt").write_text("the cat sat on a mat\na dog ran to the cat\n" * 20)
    for name in ("lstm", "transformer"):
        settings = {"model": small_options(name), "training": {"batch_size": 2, "length": 6, "device": "cpu"}}
        cr.train(folder / "text.txt", model=name, tokenizer="word", steps=2, out=folder / name, settings=settings)
    cr.train(folder / "text.txt", model="ngram", tokenizer="word", order=3, out=folder / "ngram")
    cr.mix([folder / "ngram", folder / "lstm"], valid=folder / "text.txt", out=folder / "mixture")
    return folder


@pytest.mark.parametrize("name", ["ngram", "lstm", "transformer", "mixture"])
def test_feeding_equals_scoring(place: Path, name: str) -> None:
    run = cr.load(place / name)
    (whole,) = run.score([LINE])
    for parts in ([LINE], LINE.split(), [LINE.split()[:3], "", LINE.split()[3:]]):
        prefix = run.start()
        fed = [one for part in parts for one in prefix.feed(part)] + [prefix.end()]
        assert [one.log_prob for one in fed] == pytest.approx(whole.log_probs, abs=2e-4)
        assert [one.piece for one in fed] == whole.pieces
        assert [one.oov for one in fed] == [piece == "<unk>" for piece in whole.pieces]
        assert prefix.log_prob == pytest.approx(whole.log_prob, abs=1e-3)
        assert prefix.tokens == whole.tokens


@pytest.mark.parametrize("name", ["ngram", "lstm", "transformer", "mixture"])
def test_copies_continue_independently(place: Path, name: str) -> None:
    run = cr.load(place / name)
    prefix = run.start()
    prefix.feed("the cat")
    other = prefix.copy()
    prefix.feed("sat on")
    other.feed("ran to")
    for one, text in ((prefix, "the cat sat on"), (other, "the cat ran to")):
        one.end()
        assert one.log_prob == pytest.approx(next(iter(run.score([text]))).log_prob, abs=1e-3)


def test_orders_are_those_of_the_whole_line(place: Path) -> None:
    from chainrule import kenlm

    run = cr.load(place / "ngram")
    expected = [order for _, order, _ in kenlm.Model(str(place / "ngram")).full_scores(LINE)]
    for parts in ([LINE], LINE.split()):
        prefix = run.start()
        fed = [one for part in parts for one in prefix.feed(part)] + [prefix.end()]
        assert [one.order for one in fed] == expected
    assert cr.load(place / "lstm").start().feed("the")[0].order is None
