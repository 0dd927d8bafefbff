"""Texts and corpora in memory: what is one text, what is a column, what is a path."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import polars
import pyarrow
import pytest

from chainrule.base.results import Results
from chainrule.data.in_memory import Columns, answer, corpus_paths, joined_paths, labelled_in, sentences_in, texts_in
from chainrule.errors import DataError

TEXTS = ["the cat sat", "", "a dog ran"]
TEXT = Columns(("text",), ("text",))
LABELS = Columns(("label", "text", "text_pair"), ("text", "label"), frozenset({"text_pair"}))
PAIRS = Columns(("source", "target"), ("source", "target"))
FRAMES = [pandas.DataFrame, polars.DataFrame, pyarrow.table, dict]


def content(data: Any, columns: Columns) -> list[Any]:
    """The records, or lines, of the file that holds some data."""
    (path,) = corpus_paths(data, columns)
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines] if path.endswith(".jsonl") else lines


@pytest.mark.parametrize(
    "texts",
    [
        TEXTS,
        tuple(TEXTS),
        (text for text in TEXTS),
        np.array(TEXTS),
        np.array(TEXTS, dtype=object),
        pandas.Series(TEXTS),
        polars.Series(TEXTS),
        pyarrow.array(TEXTS),
        pandas.DataFrame({"text": TEXTS, "n": [1, 2, 3]}),
        polars.DataFrame({"body": TEXTS}),
        pyarrow.table({"text": TEXTS}),
        {"text": TEXTS, "n": [1, 2, 3]},
        [text + "\n" for text in TEXTS],
    ],
    ids=lambda texts: type(texts).__name__,
)
def test_texts_in_any_container(texts: Any) -> None:
    assert list(texts_in(texts)) == TEXTS


def test_a_string_is_one_text_and_never_its_letters() -> None:
    assert list(texts_in("the cat sat")) == ["the cat sat"]
    assert answer("the cat", iter([1])) == 1
    many = answer(["a", "b"], iter([1, 2]))
    assert many == [1, 2]
    assert isinstance(many, Results)
    assert isinstance(answer(iter(["a", "b"]), iter([1, 2])), Iterator)
    assert list(labelled_in("one text", ("text", "text_pair"))) == ["one text"]
    assert list(sentences_in("Ada wrote it")) == [["Ada", "wrote", "it"]]


def test_pairs_and_sentences() -> None:
    fields = ("text", "text_pair")
    assert list(labelled_in([("a", "b"), "c"], fields)) == [("a", "b"), "c"]
    assert list(labelled_in(pandas.DataFrame({"text": ["a"], "text_pair": ["b"]}), fields)) == [("a", "b")]
    assert list(sentences_in([["Ada", "wrote"], "it now"])) == [["Ada", "wrote"], ["it", "now"]]


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["a", None], "row 1 (the first is row 0) is missing (None); expected a text; drop such rows or fill them in"),
        (pandas.Series(["a", float("nan")]), "row 1 (the first is row 0) is missing (nan); expected a text; drop such"),
        (polars.Series(["a", None]), "row 1 (the first is row 0) is missing (None)"),
        (pandas.Series(["a", pandas.NA], dtype="string"), "row 1 (the first is row 0) is missing"),
        ([3], "row 0 (the first is row 0) has type int; expected a text; convert or drop it"),
        (7, "got int where texts are expected; give a string or a list of strings"),
        (Path("book.txt"), "got the path 'book.txt' where texts are expected; read the file"),
        (pandas.DataFrame({"a": ["x"], "b": ["y"]}), "the DataFrame has no column 'text' (found a, b); name the right"),
    ],
    ids=str,
)
def test_what_is_no_text_is_refused_in_one_sentence(texts: Any, message: str) -> None:
    with pytest.raises(DataError) as caught:
        list(texts_in(texts))
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


# Corpora


def test_paths_stay_paths(tmp_path: Path) -> None:
    file = tmp_path / "a file of text"
    file.write_text("x\n")
    assert corpus_paths("book.txt", TEXT) == ["book.txt"]
    assert corpus_paths(Path("book.txt"), TEXT) == ["book.txt"]
    assert corpus_paths(["test.en", "test.de"], PAIRS) == ["test.en", "test.de"]
    assert corpus_paths([file, "data/more"], TEXT) == [str(file), "data/more"]
    assert corpus_paths([str(file), "-", "sample:english", "hf:name:train"], TEXT)[1:] == [
        "-",
        "sample:english",
        "hf:name:train",
    ]
    assert corpus_paths((), TEXT) == []


def test_a_text_in_place_of_a_path_is_explained() -> None:
    with pytest.raises(DataError, match=r"got a text of 2,000 characters where the path of a file is expected; give"):
        corpus_paths("ab" * 1000, TEXT)


@pytest.mark.parametrize("made", [list, pandas.Series, polars.Series, iter])
def test_texts_become_a_file_named_after_its_content(made: Any) -> None:
    assert content(made(TEXTS), TEXT) == TEXTS
    assert corpus_paths(made(TEXTS), TEXT) == corpus_paths(TEXTS, TEXT)
    assert corpus_paths(made(["other", "texts here"]), TEXT) != corpus_paths(TEXTS, TEXT)


@pytest.mark.parametrize("made", FRAMES)
def test_frames_of_labels_and_of_pairs(made: Any) -> None:
    labelled = made({"label": [1, 0], "text": ["a\tb", "c\nd"], "unused": [0.5, 1.5]})
    assert content(labelled, LABELS) == [{"label": 1, "text": "a\tb"}, {"label": 0, "text": "c\nd"}]
    paired = made({"target": ["x", "y"], "source": ["a", "b"]})
    assert content(paired, PAIRS) == [{"source": "a", "target": "x"}, {"source": "b", "target": "y"}]


def test_rows_and_columns() -> None:
    expected = [{"label": "pos", "text": "good"}, {"label": "neg", "text": "bad"}]
    assert content([("pos", "good"), ("neg", "bad")], LABELS) == expected
    assert content([["pos", "good"], ["neg", "bad"]], LABELS) == expected
    assert content(np.array([["pos", "good"], ["neg", "bad"]]), LABELS) == expected
    assert content(expected, LABELS) == expected
    assert content((["good", "bad"], ["pos", "neg"]), LABELS) == expected
    assert content((pandas.Series(["good", "bad"]), np.array(["pos", "neg"])), LABELS) == expected
    assert content([("pos", "q", "a")], LABELS) == [{"label": "pos", "text": "q", "text_pair": "a"}]
    assert content([{"label": ["a", "b"], "text": "t"}], LABELS) == [{"label": ["a", "b"], "text": "t"}]
    assert joined_paths([["good", "bad"], ["pos", "neg"]], LABELS) == corpus_paths(expected, LABELS)
    assert len(joined_paths([["one text"], ["another text"]], TEXT)) == 2


@pytest.mark.parametrize(
    ("data", "columns", "message"),
    [
        ([("a", "b")], TEXT, "row 0 has several values, but the model reads one text; give a list of strings, or"),
        (["a b"], LABELS, "row 0 (the first is row 0) is one text; expected (label, text, [text_pair]), or a mapping"),
        ([("a",)], PAIRS, "row 0 (the first is row 0) has 1 value; expected (source, target), or a mapping"),
        ([("a", "b"), ("c", None)], PAIRS, "row 1 of 'target' (the first is row 0) is missing (None); expected a text"),
        (
            {"text": ["a"], "label": []},
            LABELS,
            "the columns have different lengths ('label' has 0, 'text' has 1);",
        ),
        ({"text": ["a"]}, LABELS, "the dict has no column 'label' (found text); name the right column with field,"),
        (["a", "b\ud800"], TEXT, "row 1 (the first is row 0): character 1 is half of a surrogate pair; expected whole"),
    ],
    ids=str,
)
def test_rows_that_do_not_fit_are_refused(data: Any, columns: Columns, message: str) -> None:
    with pytest.raises(DataError) as caught:
        corpus_paths(data, columns)
    assert str(caught.value).startswith(message)


def test_no_library_of_frames_is_imported() -> None:
    code = (
        "import sys; from chainrule.data.in_memory import *; list(texts_in(['a'])); corpus_paths(['a b'], "
        "Columns(('text',), ('text',))); print([n for n in ('pandas', 'polars', 'pyarrow') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
