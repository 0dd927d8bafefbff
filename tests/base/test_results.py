"""Results in rows."""

from __future__ import annotations

import sys
from typing import NamedTuple

import pytest

from chainrule.base.results import Results
from chainrule.errors import ConfigError
from chainrule.inference.score import LineScore
from chainrule.runs.labels import Labelled


class Pair(NamedTuple):
    word: str
    cosine: float


def test_results_are_a_list_and_a_frame() -> None:
    scores = Results([LineScore(-1.0, 2, ["a", "b"], [-0.5, -0.5]), LineScore(-2.0, 1, ["c"], [-2.0])])
    assert scores[1].tokens == 1
    frame = scores.to_pandas()
    assert list(frame.columns) == ["log_prob", "tokens", "pieces", "log_probs"]
    assert frame["log_prob"].tolist() == [-1.0, -2.0]
    assert Results([Pair("a", 0.5)]).to_pandas().to_dict("records") == [{"word": "a", "cosine": 0.5}]
    assert Results(["x"]).to_pandas()["result"].tolist() == ["x"]
    assert len(Results([]).to_pandas()) == 0


def test_several_answers_per_text_are_ranked_rows() -> None:
    labels = Results([[Labelled("a", 0.9), Labelled("b", 0.1)], [Labelled("b", 0.8), Labelled("a", 0.2)]])
    frame = labels.to_pandas()
    assert frame.index.tolist() == [0, 0, 1, 1]
    assert frame["rank"].tolist() == [1, 2, 1, 2]
    assert frame["label"].tolist() == ["a", "b", "b", "a"]


def test_without_pandas_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ConfigError, match="to_pandas needs pandas; install it: pip install pandas"):
        Results(["x"]).to_pandas()


def test_a_notebook_shows_a_table_with_escaped_texts() -> None:
    shown = Results([{"text": "<b>", "bits": 1.5}] * 101)._repr_html_()
    assert shown.count("<tr>") == 101
    assert "&lt;b&gt;" in shown
    assert "<b>" not in shown
    assert "1 more" in shown
