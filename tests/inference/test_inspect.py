"""Ranks, probabilities, entropies and alternatives of every token against plain steps, for every language model."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import chainrule as cr
from builders import Case, case_id, one_output, rows_by_steps, small_model, some_vocabulary, text_cases
from chainrule.errors import ConfigError
from chainrule.inference import inspect
from chainrule.inference.inspect import best_tokens, inspect_lines
from chainrule.inference.score import score_lines
from chainrule.inference.subject import TextModel
from chainrule.text.tokenizers.char import CharTokenizer
from commands import chainrule

TOKENIZER = CharTokenizer("abcdefghijk")  # with <unk> and <eos> the 13 tokens of the small models
LINE = "abacab?dkab"  # "?" is unknown


def small_subject(case: Case) -> TextModel:
    name, output, options = case
    return TextModel(small_model(name, output, some_vocabulary(eos=TOKENIZER.eos), **options), TOKENIZER, name)


@pytest.mark.parametrize("case", one_output(text_cases()), ids=case_id)
def test_details_are_those_of_steps(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspect, "CELLS", 60)  # four columns at a time
    subject = small_subject(case)
    (details,) = inspect_lines(subject, [LINE], top=3)
    tokens = [*TOKENIZER.encode(LINE), TOKENIZER.eos]
    with torch.no_grad():
        rows_TV = rows_by_steps(subject.model, torch.tensor([tokens]), eos=TOKENIZER.eos)[0, :-1].double()
    assert len(details) == len(tokens)
    ids = {TOKENIZER.piece(token): token for token in range(TOKENIZER.vocab_size)}
    for one, token, row_V in zip(details, tokens, rows_TV, strict=True):
        row, own = row_V.tolist(), float(row_V[token])
        close = sum(value == own or abs(value - own) < 2e-4 for value in row) - 1
        assert abs(one.rank - 1 - sum(value > own for value in row)) <= close
        assert one.log_prob == pytest.approx(own, abs=2e-4)
        assert one.probability == pytest.approx(math.exp(own), abs=2e-4)
        assert one.bits == pytest.approx(-own / math.log(2), abs=1e-3)
        assert one.entropy == pytest.approx(-sum(math.exp(v) * v for v in row if v > -1e9) / math.log(2), abs=1e-3)
        assert [p for _, p in one.best] == pytest.approx(sorted(map(math.exp, row))[-3:][::-1], abs=2e-4)
        for shown, p in one.best:
            assert p == pytest.approx(math.exp(row[ids[shown]]), abs=2e-4)
    (scored,) = score_lines(subject, [LINE])
    assert [one.log_prob for one in details] == pytest.approx(scored.log_probs, abs=2e-4)
    assert [one.token for one in details] == [*LINE, "<eos>"]
    assert [one.oov for one in details] == [token == "?" for token in [*LINE, "<eos>"]]


def test_the_best_of_equals_is_the_first() -> None:
    log_probs_TV = np.log(np.array([[0.1, 0.3, 0.3, 0.3], [0.4, 0.1, 0.1, 0.4]]))
    assert best_tokens(log_probs_TV, 4).tolist() == [[1, 2, 3, 0], [0, 3, 1, 2]]
    assert best_tokens(log_probs_TV, 1).tolist() == [[1], [0]]
    assert best_tokens(log_probs_TV, 0).shape == (2, 0)


def test_impossible_tokens_and_scores_that_are_no_probabilities() -> None:
    (details,) = inspect_lines(small_subject(("ngram", "softmax", {"order": 3, "smoothing": "mle"})), ["kkk"], top=13)
    impossible = [one for one in details if one.probability == 0]
    assert impossible
    assert all(one.bits == math.inf and one.entropy is not None and one.entropy < 4 for one in impossible)
    backing_off = small_subject(("ngram", "softmax", {"order": 3, "smoothing": "stupid-backoff"}))
    (details,) = inspect_lines(backing_off, ["abc"])
    assert [one.entropy for one in details] == [None] * 4


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inspect")
    (folder / "text.txt").write_text("the cat sat on a mat\na dog ran to the cat\n" * 20)
    (folder / "lines.txt").write_text("the cat zzq\n\n")
    cr.train(folder / "text.txt", model="ngram", tokenizer="word", order=3, out=folder / "run")
    return folder


def test_orders_are_those_of_kenlm_s_interface(place: Path) -> None:
    from chainrule.kenlm import Model

    text = "the cat sat on the zzq a dog ran mat"
    details = cr.load(place / "run").inspect(text)
    expected = list(Model(place / "run").full_scores(text))
    assert [one.order for one in details] == [matched for _, matched, _ in expected]
    assert {one.order for one in details} == {1, 2, 3}
    assert [one.oov for one in details] == [oov for _, _, oov in expected]


def test_python(place: Path) -> None:
    run: Any = cr.load(place / "run")
    details = run.inspect("the cat zzq", top=2)
    frame = details.to_pandas()
    assert frame["token"].tolist() == ["the", "cat", "zzq", "<eos>"]
    assert frame["rank"].tolist() == [one.rank for one in details]
    several = run.inspect(["the cat", "a"], top=0)
    assert [[one.token for one in text] for text in several] == [["the", "cat", "<eos>"], ["a", "<eos>"]]
    assert several.to_pandas().index.tolist() == [0, 0, 0, 1, 1]
    assert next(run.inspect(iter(["the"])))[0].token == "the"
    spelled, plain = (run.inspect("zzq", oov=oov)[0] for oov in ("spell", "unk"))
    assert spelled.log_prob == run.score("zzq", oov="spell").log_probs[0] < plain.log_prob
    assert spelled.rank == plain.rank
    assert spelled.bits == pytest.approx(-spelled.log_prob / math.log(2))
    with pytest.raises(ConfigError, match=r"^top is -1; expected the number of alternatives, at least 0$"):
        run.inspect("the", top=-1)


def test_the_command(place: Path) -> None:
    shown = chainrule("score", place / "run", place / "lines.txt", "--tokens", "--top", 2)
    assert shown.code == 0, shown.err
    first, second = shown.out.split("\n\n")
    assert first.splitlines()[0].split() == ["token", "rank", "p", "bits", "entropy", "order", "best"]
    assert [row.split()[0] for row in first.splitlines()] == ["token", "the", "cat", "zzq", "<eos>"]
    assert "zzq (OOV)" in first
    assert len(second.splitlines()) == 2
    records = [
        json.loads(line)
        for line in chainrule(
            "score", place / "run", place / "lines.txt", "--tokens", "--top", 2, "--json"
        ).out.splitlines()
    ]
    plain = [
        json.loads(line)
        for line in chainrule("score", place / "run", place / "lines.txt", "--tokens", "--json").out.splitlines()
    ]
    for one, other in zip(records, plain, strict=True):
        assert one["log_prob"] == pytest.approx(other["log_prob"], abs=1e-5)
        assert one["log_probs"] == pytest.approx(other["log_probs"], abs=1e-5)
        assert one["tokens"] == other["tokens"] == len(one["details"])
    assert records[0]["details"][0]["best"][0]["token"] in ("the", "a")
    refused = chainrule("score", place / "run", place / "lines.txt", "--top", 2)
    assert refused.code == 2
    assert "--top 2 shows the alternatives to every token; add --tokens, without --choices" in refused.err
