"""Scores of lines: in one call where the model can, and the same one by one."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

import chainrule as cr
from chainrule.inference.score import LineScore
from chainrule.runs.language_model import LanguageModelRun

LINES = ["the cat sat", "", "a zzq on  the mat", " the", "the cat sat on the mat and ran"]


@pytest.fixture(scope="module", params=["word", "char"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LanguageModelRun:
    folder: Path = tmp_path_factory.mktemp("score")
    (folder / "text.txt").write_text("the cat sat on the mat\na dog ran to the cat\n" * 5)
    made = cr.train(folder / "text.txt", model="ngram", tokenizer=request.param, order=3, out=folder / "run")
    return cast(LanguageModelRun, made)


@pytest.mark.parametrize("oov", ["unk", "spell", "penalty"])
def test_a_list_has_the_scores_of_its_lines(run: LanguageModelRun, oov: str) -> None:
    scores = run.score(LINES, oov=oov)  # type: ignore[call-overload]
    assert scores == [run.score(line, oov=oov) for line in LINES]  # type: ignore[call-overload]
    for line, score in zip(LINES, scores, strict=True):
        assert score.log_prob == pytest.approx(sum(score.log_probs))
        assert score.tokens == len(score.pieces) == len(score.log_probs)
        assert score.pieces == [*map(run.tokenizer.piece, run.tokenizer.encode(line)), "<eos>"]


def test_a_text_with_newlines_is_one_text(run: LanguageModelRun) -> None:
    """Such a group cannot be scored as a block of lines."""
    (both, other), single = run.score(["the cat\nsat", "a dog"]), run.score("a dog")
    assert other.log_probs == pytest.approx(single.log_probs)
    assert both.tokens == len(run.tokenizer.encode("the cat\nsat")) + 1


def test_a_score_shows_and_compares_its_tokens() -> None:
    one = LineScore(-1.5, 2, ["a", "<eos>"], [-1.0, -0.5])
    assert repr(one) == "LineScore(log_prob=-1.5, tokens=2, pieces=['a', '<eos>'], log_probs=[-1.0, -0.5])"
    assert one == LineScore(-1.5, 2, ["a", "<eos>"], [-1.0, -0.5])
    assert one != LineScore(-1.5, 2, ["b", "<eos>"], [-1.0, -0.5])
