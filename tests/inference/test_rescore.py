"""Rescoring of n-best lists against the formula, and fitted weights against a search of all rankings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import chainrule as cr
from chainrule.errors import DataError
from chainrule.inference.rescore import Candidate, fit_rescoring, read_candidates, rerank
from commands import chainrule

TEXT = "the cat sat on the mat\nthe dog sat on the log\na cat and a dog\n" * 5
LISTS = """1 ||| cat the sat on mat the ||| -1.0
1 ||| the cat sat on the mat ||| -1.5
2 ||| the dog sat ||| -2.0
2 ||| the dog sat on the log ||| -2.5
2 ||| the frog zat on the log ||| -1.9
"""
REFERENCES = ["the cat sat on the mat", "the dog sat on the log"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("rescore")
    (folder / "text.txt").write_text(TEXT)
    return cr.train(folder / "text.txt", model="ngram", order=3, tokenizer="word", out=folder / "run")


def test_the_total_is_the_formula(run: Any) -> None:
    lists = run.rescore(LISTS.splitlines(), weight=0.7, word_penalty=0.3, oov="unk")
    assert [[one.id for one in each] for each in lists] == [["1"] * 2, ["2"] * 3]
    for each in lists:
        assert [one.score for one in each] == sorted((one.score for one in each), reverse=True)
        for one in each:
            log_prob = run.score(one.text).log_prob
            assert one.log_prob == pytest.approx(log_prob)
            assert one.score == pytest.approx(one.given + 0.7 * log_prob + 0.3 * len(one.text.split()))
    assert lists[0][0].text == REFERENCES[0]
    plain = run.rescore(LISTS.splitlines(), weight=0.0)
    assert [each[0].score for each in plain] == [-1.0, -1.9]


def test_unknown_words_cost_their_spelling(run: Any) -> None:
    spelled, free = (run.rescore(LISTS.splitlines(), oov=oov)[1] for oov in ("spell", "unk"))
    log_probs = [{one.text: one.log_prob for one in each}["the frog zat on the log"] for each in (spelled, free)]
    assert log_probs[0] < log_probs[1] - 5
    assert run.rescore(LISTS.splitlines())[1] == spelled


def test_fitted_weights_are_the_best_there_are(run: Any) -> None:
    fitted = run.fit_rescoring(LISTS.splitlines(), REFERENCES)
    assert fitted.before == pytest.approx(100 * (4 + 2) / 12)  # the first by the scores given, by hand
    assert fitted.after == 0
    lists = run.rescore(LISTS.splitlines(), weight=fitted.weight, word_penalty=fitted.word_penalty)
    assert [each[0].text for each in lists] == REFERENCES
    by_bleu = run.fit_rescoring(LISTS.splitlines(), REFERENCES, metric="bleu")
    assert by_bleu.after == pytest.approx(100)
    assert by_bleu.before < 100


def test_a_useless_model_gets_no_weight() -> None:
    given = [Candidate("1", "a b", 0.0, -9.0), Candidate("1", "c d", -1.0, -1.0)]
    assert fit_rescoring(given, [["a b"]]).weight == 0
    assert fit_rescoring(given, [["c d"]]).weight > 0.125  # -1 - w > -9 w


def test_formats_are_kept() -> None:
    moses = "0 ||| a b ||| LM= -1 TM= -2 ||| -3.5 ||| 0-0 1-1"
    (one,) = read_candidates([moses, ""])
    assert (one.id, one.text, one.score) == ("0", "a b", -3.5)
    ranked = rerank([Candidate(**{**one.__dict__, "log_prob": -2.0})], 0.25, 0.0)
    assert str(ranked[0][0]) == "0 ||| a b ||| LM= -1 TM= -2 ||| -4 ||| 0-0 1-1"
    (other,) = read_candidates(['{"id": 7, "text": "a", "score": -1, "speaker": "x"}'])
    assert json.loads(str(rerank([Candidate(**{**other.__dict__, "log_prob": -2.0})], 1.0, 0.0)[0][0])) == {
        "id": 7,
        "text": "a",
        "score": -3.0,
        "speaker": "x",
        "log_prob": -2.0,
    }
    for bad in ("0 ||| a b", "0 ||| a ||| b", '{"id": 1}'):
        with pytest.raises(DataError, match="line 1 of the n-best list is"):
            list(read_candidates([bad]))
    with pytest.raises(DataError, match="there are 1 n-best lists and 2 references; give one reference per id"):
        fit_rescoring([one], [["a", "b"]])


def test_the_command(run: Any, tmp_path: Path) -> None:
    lists, references = tmp_path / "lists.txt", tmp_path / "references.txt"
    lists.write_text(LISTS)
    references.write_text("".join(line + "\n" for line in REFERENCES))
    done = chainrule("rescore", run.folder.path, lists, "--dev", lists, "--references", references, "--best")
    assert done.code == 0, done.err
    assert done.out.splitlines() == REFERENCES
    assert "wer 50.00 -> 0.00 on 2 lists" in done.err
    plain = chainrule("rescore", run.folder.path, "-", "--weight", 0.5, stdin=LISTS)
    assert plain.out.splitlines() == [str(one) for each in run.rescore(LISTS.splitlines(), weight=0.5) for one in each]
    records = chainrule("rescore", run.folder.path, lists, "--json").out.splitlines()
    assert set(json.loads(records[0])) == {"id", "text", "score", "log_prob", "given"}
    wrong = chainrule("rescore", run.folder.path, lists, "--dev", lists)
    assert wrong.code == 2
    assert "--dev and --references belong together" in wrong.err
    both = chainrule("rescore", run.folder.path, lists, "--dev", lists, "--references", references, "--weight", 1)
    assert "--dev fits the weights; leave --weight and --word-penalty out" in both.err
