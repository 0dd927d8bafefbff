"""Training, measuring and answering with data in memory gives what the same data in files gives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import polars
import pytest

import chainrule as cr
from builders import pairs_text
from chainrule.base.results import Results
from chainrule.errors import DataError

LINES = pairs_text(60).splitlines()
SMALL = {"model": {"embedding": 8, "hidden": 8}, "training": {"batch_size": 4}}


@pytest.fixture(scope="module")
def ngram(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return cr.train(LINES, model="ngram", tokenizer="char", order=3, out=tmp_path_factory.mktemp("runs") / "ngram")


@pytest.fixture(scope="module")
def labelled() -> dict[str, list[str]]:
    texts = [f"{word} {number}" for number in range(12) for word in ("good fine", "bad awful")]
    return {"body": texts, "topic": ["pos" if "good" in text else "neg" for text in texts]}


@pytest.fixture(scope="module")
def classifier(labelled: dict[str, list[str]], tmp_path_factory: pytest.TempPathFactory) -> Any:
    return cr.train(
        pandas.DataFrame(labelled),
        model="classifier",
        field="body",
        label_field="topic",
        steps=30,
        out=tmp_path_factory.mktemp("runs") / "topics",
        settings=SMALL,
    )


def test_a_list_trains_the_model_of_its_file(ngram: Any, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("".join(line + "\n" for line in LINES))
    other = cr.train(tmp_path / "text.txt", model="ngram", tokenizer="char", order=3, out=tmp_path / "run")
    assert other.fingerprint == ngram.fingerprint
    assert other.folder.read_signature() == ngram.folder.read_signature()


def test_a_string_is_a_path_where_a_corpus_is_read(ngram: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match="there is no file 'abab cdcd'"):
        ngram.evaluate("abab cdcd")
    with pytest.raises(DataError, match="there is no file 'abab cdcd'"):
        cr.train(LINES, valid="abab cdcd", model="ngram", tokenizer="char", out=tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    Path("abab cdcd").write_text("abab\n")
    assert ngram.evaluate("abab cdcd") == ngram.evaluate(["abab"])


def test_a_misspelt_parameter_is_no_option_of_the_model(tmp_path: Path) -> None:
    with pytest.raises(cr.ChainruleError, match=r"^unknown parameter 'step': did you mean 'steps'\?$"):
        cr.train(LINES, model="lstm", step=1, out=tmp_path / "run")
    with pytest.raises(cr.ChainruleError, match=r"unknown option 'model\.hiden': did you mean 'model\.hidden'"):
        cr.train(LINES, model="lstm", hiden=1, out=tmp_path / "run")


def test_runs_without_vectors_do_not_offer_them(ngram: Any) -> None:
    assert {"embed", "neighbours"}.isdisjoint(ngram.available_verbs)
    assert {"score", "generate"} <= set(ngram.available_verbs)
    with pytest.raises(cr.ChainruleError, match=r"mix, eval, info$"):
        ngram.translate("a")


def test_the_same_list_resumes_and_another_is_refused(tmp_path: Path) -> None:
    options: dict[str, Any] = {"model": "lstm", "tokenizer": "char", "out": tmp_path / "run", "settings": SMALL}
    assert cr.train(LINES, steps=2, **options).result["steps"] == 2
    assert cr.train(pandas.Series(LINES), steps=4, **options).result["steps"] == 4
    assert cr.load(tmp_path / "run").evaluate_held_out().tokens > 0
    with pytest.raises(cr.ChainruleError, match="data"):
        cr.train(LINES[:30], steps=6, **options)


@pytest.mark.parametrize("made", [list, pandas.Series, polars.Series, lambda lines: pandas.DataFrame({"text": lines})])
def test_evaluate_takes_what_train_takes(ngram: Any, tmp_path: Path, made: Any) -> None:
    (tmp_path / "test.txt").write_text("abab\ncdcd\n")
    assert ngram.evaluate(made(["abab", "cdcd"])) == ngram.evaluate(tmp_path / "test.txt")


def test_one_text_gives_one_score_and_a_list_a_list(ngram: Any) -> None:
    one, many = ngram.score("abab"), ngram.score(["abab", "cdcd"])
    assert one.pieces == ["a", "b", "a", "b", "<eos>"]
    assert isinstance(many, Results)
    assert many[0] == one
    assert many.to_pandas()["tokens"].tolist() == [5, 5]
    assert ngram.score(pandas.Series(["abab", "cdcd"])) == many
    streamed = ngram.score(iter(["abab", "cdcd"]))
    assert next(streamed) == one
    with pytest.raises(DataError, match=r"row 1 \(the first is row 0\) is missing \(None\); expected a text"):
        ngram.score(["abab", None])


def test_choices_after_one_prompt_or_several(ngram: Any) -> None:
    one, many = ngram.choose("ab", ["ab", "cd"]), ngram.choose(["ab", "cd"], ["ab", "cd"])
    assert [choice.text for choice in one] == ["ab", "cd"]
    assert many[0] == one
    assert ngram.choose("ab\n", ["ab"]) != ngram.choose("ab", ["ab"])  # the newline of a prompt is part of it
    with pytest.raises(DataError, match="the choices are one string, 'cd'; expected a list of texts; give"):
        ngram.choose("ab", "cd")


def test_a_frame_trains_a_classifier(classifier: Any, labelled: dict[str, list[str]], tmp_path: Path) -> None:
    assert classifier.labels == ("neg", "pos")
    frame = polars.DataFrame(labelled)
    with (tmp_path / "test.jsonl").open("w") as file:
        for body, topic in zip(*labelled.values(), strict=True):
            file.write(json.dumps({"body": body, "topic": topic}) + "\n")
    measured = classifier.evaluate(frame)
    assert measured == classifier.evaluate(tmp_path / "test.jsonl")
    assert measured == classifier.evaluate(list(zip(labelled["topic"], labelled["body"], strict=True)))
    assert measured == classifier.evaluate((labelled["body"], labelled["topic"]))
    one = classifier.classify("good fine 3")
    assert [found.label for found in one] == ["pos"]
    table = classifier.classify(frame, top=2).to_pandas()
    assert len(table) == 2 * len(frame)
    assert list(table.columns) == ["rank", "label", "probability"]
    probabilities_PC = classifier.probabilities(labelled["body"])
    assert probabilities_PC.sum(1) == pytest.approx(np.ones(24))
    assert classifier.probabilities("good fine 3").shape == (2,)


def test_texts_and_labels_train_the_model_of_their_frame(classifier: Any, labelled: Any, tmp_path: Path) -> None:
    options: dict[str, Any] = {"model": "classifier", "steps": 30, "settings": SMALL}
    other = cr.train(labelled["body"], np.array(labelled["topic"]), out=tmp_path / "run", **options)
    assert other.probabilities("bad awful 2") == pytest.approx(classifier.probabilities("bad awful 2"))


def test_pairs_train_a_translator(tmp_path: Path) -> None:
    sources, targets = ["a b", "b c", "c a"] * 8, ["x y", "y z", "z x"] * 8
    options: dict[str, Any] = {
        "model": "seq2seq-rnn",
        "tokenizer": "word",
        "steps": 2,
        "settings": {"model": SMALL["model"]},
    }
    run: Any = cr.train(sources, targets, out=tmp_path / "columns", **options)
    same: Any = cr.train(list(zip(sources, targets, strict=True)), out=tmp_path / "rows", **options)
    assert run.fingerprint == same.fingerprint
    assert isinstance(run.translate("a b"), str)
    assert run.translate(["a b", "c a"]) == [run.translate("a b"), run.translate("c a")]
    assert run.evaluate((sources[:3], targets[:3])).to_dict()["bleu"] >= 0


def test_one_vector_for_one_text(tmp_path: Path) -> None:
    words = ["the king and the queen", "the man and the woman"] * 20
    run: Any = cr.train(words, model="word2vec", epochs=1, vector_size=8, min_count=1, out=tmp_path / "run")
    assert run.embed("the king").shape == (8,)
    assert run.embed(["the king", "the man"]).shape == (2, 8)
    np.testing.assert_array_equal(run.embed(pandas.Series(["the king"]))[0], run.embed("the king"))


def test_a_mixture_and_a_comparison_of_data_in_memory(ngram: Any, tmp_path: Path) -> None:
    rows = cr.compare(
        LINES, models="ngram(order=1),ngram(order=2)", test=["abab", "cdcd"], tokenizer="char", out=tmp_path / "compare"
    )
    assert rows.to_pandas()["model"].tolist() == [row.model for row in rows]
    mixture = cr.mix([row.run for row in rows], valid=LINES[:10], out=tmp_path / "mixture")
    assert mixture.evaluate_held_out().tokens == sum(map(len, LINES[:10])) + 10


def test_public_names_and_methods_can_be_found(ngram: Any, classifier: Any) -> None:
    assert {"train", "load", "compare", "__version__"} <= set(dir(cr))
    assert "annotations" not in dir(cr)
    assert isinstance(cr.__version__, str)
    assert {"score", "generate", "evaluate"} <= set(dir(ngram))
    assert not {"embed", "search", "neighbours", "analogy", "classify"} & set(dir(ngram))
    assert "neighbours" in dir(classifier)
