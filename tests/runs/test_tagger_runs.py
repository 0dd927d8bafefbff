"""Taggers from columns to columns: trained, measured, used and refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import chainrule as cr
from chainrule.evaluation.tags import find_spans
from chainrule.runs.base import MissingVerbError
from chainrule.runs.labels import TaggerRun
from chainrule.text.formats.tags import TaggedFiles
from chainrule.text.samples.labels import tagged_sentences, write_tagged_phrases
from chainrule.training.fitting.fitting import TrainingListener
from commands import chainrule

QUICK = {"training": {"lr": 0.01, "batch_size": 16, "threads": 1}, "model": {"embedding": 32, "hidden": 32}}


def train(*data: Path, **options: Any) -> TaggerRun:
    run = cr.train(*data, model="tagger", settings=QUICK, **options)
    assert isinstance(run, TaggerRun)
    return run


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tagger")
    paths = write_tagged_phrases(folder, {"train": 400, "valid": 60, "test": 60})
    train(paths["train"], valid=paths["valid"], encoder="lstm", crf=True, epochs=10, out=folder / "run")
    return folder


@pytest.fixture
def run(desk: Path) -> TaggerRun:
    loaded = cr.load(desk / "run")
    assert isinstance(loaded, TaggerRun)
    return loaded


def test_phrases_are_learned_and_measured_by_hand(run: TaggerRun, desk: Path) -> None:
    measured = run.evaluate(desk / "test.conll")
    assert measured.f1 > 0.8
    assert set(measured.kinds) == {"DATE", "NUMBER", "PRICE", "TIME"}
    sentences = list(TaggedFiles([desk / "test.conll"]).sentences())
    predicted = list(run.tag(one.words for one in sentences))
    assert [len(tags) for tags in predicted] == [len(one.words) for one in sentences]
    words = sum(len(one.words) for one in sentences)
    alike = sum(
        a == b for one, tags in zip(sentences, predicted, strict=True) for a, b in zip(one.tags, tags, strict=True)
    )
    assert measured.accuracy == alike / words
    actual = {(n, span) for n, one in enumerate(sentences) for span in find_spans(one.tags)}
    made = {(n, span) for n, tags in enumerate(predicted) for span in find_spans(tags)}
    assert measured.precision == pytest.approx(len(actual & made) / len(made))
    assert measured.recall == pytest.approx(len(actual & made) / len(actual))
    assert measured.words == words
    assert run.validation().sentences == 60


def test_other_sentences_change_nothing_and_empty_sentences_stay(run: TaggerRun) -> None:
    given = [words for words, _ in tagged_sentences(20, seed=9)]
    together = list(run.tag([[], *given, []]))
    assert together[0] == together[-1] == []
    assert [run.tag([words])[0] for words in given] == together[1:-1]
    assert list(run.tag([[], []])) == [[], []]


@pytest.mark.parametrize("tokenizer", ["char", "bpe"])
def test_words_of_many_pieces(desk: Path, tmp_path: Path, tokenizer: str) -> None:
    """Subwords and characters: a word is tagged by all its pieces, with spaces as in text."""
    made = cr.train(
        desk / "train.conll",
        model="tagger",
        tokenizer=tokenizer,
        vocab_size=300 if tokenizer == "bpe" else None,
        encoder="conv-attention",
        epochs=3,
        out=tmp_path / "run",
        settings=QUICK,
    )
    assert isinstance(made, TaggerRun)
    assert made.evaluate(desk / "test.conll").accuracy > 0.8


def test_long_sentences_are_read_in_parts_with_a_note(desk: Path, tmp_path: Path) -> None:
    notes: list[str] = []
    made = train(
        desk / "train.conll",
        encoder="bert",
        positions=8,
        steps=2,
        out=tmp_path / "run",
        listener=TrainingListener(note=notes.append),
    )
    sentences = list(TaggedFiles([desk / "train.conll"]).sentences())
    long = sum(len(one.words) > 7 for one in sentences)
    note = "sentences are longer than 8 tokens; the encoder reads them in parts"
    assert f"{long} {note}" in notes
    with pytest.warns(UserWarning, match=f"1 {note}"):
        assert [len(tags) for tags in made.tag([["we"] * 30])] == [30]


def test_what_a_tagger_does_not_do(run: TaggerRun, desk: Path) -> None:
    with pytest.raises(MissingVerbError) as caught:
        run.classify(["x"])  # type: ignore[attr-defined]
    assert str(caught.value) == (
        f"{desk / 'run'} (tagger) has no classify; classify works with classifier; this run has tag, eval, info, "
        "neighbours"
    )


# The command line


def test_columns_in_and_out(run: TaggerRun, desk: Path) -> None:
    given = "-DOCSTART- -X-\n\nwe PRP\nmet\tVBD\n\nthree\n"
    result = chainrule("tag", desk / "run", stdin=given)
    first, last = run.tag([["we", "met"], ["three"]])
    assert result.out == f"-DOCSTART- -X-\n\nwe PRP {first[0]}\nmet\tVBD\t{first[1]}\n\nthree {last[0]}\n"


def test_plain_sentences_and_json(run: TaggerRun, desk: Path) -> None:
    (tags,) = run.tag([["about", "seven", "people"]])
    result = chainrule("tag", desk / "run", "--plain", stdin="about seven people\n\n")
    assert result.out == f"about {tags[0]}\nseven {tags[1]}\npeople {tags[2]}\n\n\n"
    printed = json.loads(chainrule("tag", desk / "run", "--plain", "--json", stdin="about seven people\n").out)
    assert printed == {"words": ["about", "seven", "people"], "tags": tags}


def test_a_verb_of_other_models_names_them(desk: Path) -> None:
    result = chainrule("classify", desk / "run", stdin="x\n")
    assert result.code == 2
    assert result.err.splitlines()[-1] == (
        f"chainrule: {desk / 'run'} (tagger) has no classify; classify works with classifier; this run has tag, eval, "
        "info, neighbours"
    )
