"""Verbs over columns: every row has its result or its error, whatever else is in the batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest

import chainrule as cr
from chainrule.distributed.bulk import VERBS, BulkJob, _open_run, with_columns
from chainrule.errors import ChainruleError, ConfigError

TEXTS = ["the cat sat", "the dog ran to the cat", "a cat"]


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a worker sets of its process is undone after each test."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run for each verb."""
    folder = tmp_path_factory.mktemp("runs")
    text = folder / "text.txt"
    text.write_text("".join(f"{line}\n" for line in TEXTS * 20))
    pairs, labels = folder / "pairs.tsv", folder / "labels.tsv"
    pairs.write_text("".join(f"{line}\t{line.upper()}\n" for line in TEXTS * 20))
    labels.write_text("".join(f"{'long' if len(line) > 12 else 'short'}\t{line}\n" for line in TEXTS * 20))
    small = {"model": {"embedding": 8, "hidden": 8}}
    brief: dict[str, Any] = {"steps": 3, "progress": False}
    cr.train(text, model="ngram", tokenizer="word", out=folder / "score", progress=False)
    cr.train(text, model="lstm", tokenizer="word", out=folder / "embed", settings=small, **brief)
    cr.train(pairs, model="seq2seq-rnn", tokenizer="char", out=folder / "translate", settings=small, **brief)
    cr.train(labels, model="classifier", out=folder / "classify", **brief)
    return {verb: folder / verb for verb in VERBS}


def direct(run: Any, verb: str, text: str) -> list[Any]:
    """The result of a verb for one text."""
    found = getattr(run, verb)(text)
    if verb == "score":
        return [found.log_prob, found.tokens]
    if verb == "classify":
        return [found[0].label, found[0].probability]
    return [found.tolist()] if verb == "embed" else [found]


@pytest.mark.parametrize("verb", list(VERBS))
def test_each_text_gets_its_own_result(runs: dict[str, Path], verb: str) -> None:
    job = BulkJob.of(runs[verb], verb, {})
    columns = job.apply([TEXTS[0], None, TEXTS[1], 7, TEXTS[2]])
    assert list(columns) == [*VERBS[verb].columns, "error"]
    assert columns["error"] == [None, "expected a text, got none", None, "expected a text, got int", None]
    run = cr.load(runs[verb])
    for place, text in ((0, TEXTS[0]), (2, TEXTS[1]), (4, TEXTS[2])):
        for name, wanted in zip(VERBS[verb].columns, direct(run, verb, text), strict=True):
            found = columns[name][place]
            if isinstance(wanted, str):
                assert found == wanted
            else:
                np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    for place in (1, 3):
        assert [columns[name][place] for name in VERBS[verb].columns] == [None] * len(VERBS[verb].columns)


def test_a_text_that_fails_does_not_harm_its_neighbours(runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    job, calls = BulkJob.of(runs["score"], "score", {}), []

    def fail_at_bad(run: Any, texts: list[str], options: dict[str, Any]) -> list[Any]:
        calls.append(len(texts))
        if "bad" in texts:
            raise ChainruleError("a bad text")
        return [(float(len(text)), 1) for text in texts]

    monkeypatch.setitem(VERBS, "score", type(VERBS["score"])("score", VERBS["score"].columns, fail_at_bad))
    texts = ["one"] * 5 + ["bad"] + ["three"] * 10
    columns = job.apply(texts)
    assert columns["error"] == [None if text != "bad" else "a bad text" for text in texts]
    assert columns["log_prob"] == [float(len(text)) if text != "bad" else None for text in texts]
    assert len(calls) <= 2 * 4 + 1  # halves, not row by row


def test_a_surrogate_is_an_error_of_its_row(runs: dict[str, Path]) -> None:
    columns = BulkJob.of(runs["translate"], "translate", {}).apply(["the cat", "\ud800", "the dog"])
    assert [error is None for error in columns["error"]] == [True, False, True]
    assert "is not UTF-8" in columns["error"][1]


def test_the_run_is_loaded_once(runs: dict[str, Path]) -> None:
    job = BulkJob.of(runs["score"], "score", {})
    job.apply(TEXTS)
    assert _open_run(job.run) is _open_run(job.run)


def test_tables_of_arrow_and_their_names(runs: dict[str, Path]) -> None:
    job = BulkJob.of(runs["embed"], "embed", {"pooling": "max"}, "cat_")
    table = with_columns(pyarrow.table({"id": [1, 2], "text": [TEXTS[0], None]}), job, "text")
    assert table.column_names == ["id", "text", "cat_vector", "cat_error"]
    wanted = cr.load(runs["embed"]).embed(TEXTS[0], pooling="max")
    np.testing.assert_allclose(table.column("cat_vector")[0].as_py(), wanted, rtol=1e-5, atol=1e-6)


def test_what_does_not_fit_is_refused_before_the_job(runs: dict[str, Path]) -> None:
    with pytest.raises(ConfigError, match="unknown verb 'scor': did you mean 'score'"):
        BulkJob.of(runs["score"], "scor", {})
    with pytest.raises(ChainruleError, match="has no translate"):
        BulkJob.of(runs["score"], "translate", {})
    with pytest.raises(ConfigError, match="unexpected keyword argument 'beams'"):
        BulkJob.of(runs["score"], "score", {"beams": 3})
    job = BulkJob.of(runs["score"], "score", {})
    with pytest.raises(ConfigError, match="the table has no column 'text'; it has id, line"):
        job.check_columns("text", ["id", "line"])
    with pytest.raises(ConfigError, match="already has a column 'tokens'; give prefix="):
        job.check_columns("text", ["text", "tokens"])
