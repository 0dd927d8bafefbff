"""Results as JSON values and as text."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass

import pytest

import chainrule as cr
from chainrule.base.tables import show_fields, show_table
from chainrule.evaluation.labels import ClassEvaluation, score_counts
from chainrule.evaluation.measurement import Measurement, format_signature, package_version
from chainrule.evaluation.tags import TagEvaluation
from chainrule.evaluation.text import Evaluation
from chainrule.evaluation.vectors import Analogies, AnalogySection


@dataclass(frozen=True)
class Part:
    share: float


@dataclass(frozen=True)
class Example(Measurement):
    token_count: int
    loss: float
    bound: float
    nothing: float | None
    interval: tuple[float, float]
    parts: list[Part]
    by_name: dict[str, Part]
    signature: str
    protocol: str


EXAMPLE = Example(
    12345, 0.123456, math.inf, math.nan, (1.0, 2.456), [Part(math.nan)], {"a": Part(0.5)}, "data:x", "in words"
)


def test_exact_values_are_json_and_keep_their_order() -> None:
    values = EXAMPLE.to_dict()
    assert values == {
        "token_count": 12345,
        "loss": 0.123456,
        "bound": None,
        "nothing": None,
        "interval": [1.0, 2.456],
        "parts": [{"share": None}],
        "by_name": {"a": {"share": 0.5}},
        "signature": "data:x",
        "protocol": "in words",
    }
    assert list(json.loads(json.dumps(values, allow_nan=False))) == list(values)


def test_figures_are_shown_without_protocol_and_nested_records() -> None:
    assert EXAMPLE.show() == (
        "token count  12,345\n"
        "loss         0.1235\n"
        "bound        inf\n"
        "nothing      none\n"
        "interval     1.00 to 2.46\n"
        "signature    data:x"
    )


def test_fields_and_tables_are_aligned() -> None:
    assert show_fields({"a": None, "long_name": 1.0, "b c": "text"}) == (
        "a          none\nlong name  1.0000\nb c        text"
    )
    assert show_table([["name", "n"], ["a", "10"], ["", "1"]]) == "name   n\na     10\n       1"


def test_signatures_end_with_the_version() -> None:
    assert format_signature({"data": "x", "tokens": 3}) == f"data:x|tokens:3|chainrule:{package_version()}"


def test_frames_have_the_rows_of_a_result() -> None:
    scores = {"pos": score_counts(2, 3, 4), "neg": score_counts(1, 1, 1)}
    classes = ClassEvaluation(5, 0.8, 0.7, 0.8, 0.1, scores, [[2, 1], [0, 1]], "signature", "protocol").to_pandas()
    assert classes.columns.tolist() == ["label", "precision", "recall", "f1", "examples"]
    assert classes["label"].tolist() == ["pos", "neg"]
    assert classes["precision"].tolist() == pytest.approx([2 / 3, 1])
    tags = TagEvaluation(1, 5, 0.8, 0.7, 0.8, 0.7, 0.1, scores, "signature", "protocol").to_pandas()
    assert tags[["kind", "recall", "examples"]].to_dict("list") == {
        "kind": ["pos", "neg"],
        "recall": [0.5, 1],
        "examples": [4, 1],
    }
    sections = Analogies(0.5, 1, 2, 0, [AnalogySection("capitals", 0.5, 1, 2)]).to_pandas()
    assert sections.to_dict("records") == [{"section": "capitals", "accuracy": 0.5, "correct": 1, "questions": 2}]


def test_a_frame_of_metrics_has_a_row_per_system_and_metric() -> None:
    measures = cr.measure(["a b c", "d e"], ["a b x", "d e"], against=["a b c", "d f"], metrics=["bleu", "wer"])
    frame = measures.to_pandas()
    assert frame[["system", "metric"]].values.tolist() == [
        ["first", "bleu"],
        ["first", "wer"],
        ["second", "bleu"],
        ["second", "wer"],
    ]
    assert frame["score"].tolist() == [
        *(measures.metrics[name].score for name in ("bleu", "wer")),
        *(measures.against[name].score for name in ("bleu", "wer")),
    ]
    assert (frame["low"] <= frame["score"]).all()
    assert (frame["score"] <= frame["high"]).all()


def test_a_result_without_rows_is_one_row() -> None:
    frame = Evaluation(10, 1, 50, 2.0, 7.4, 7.0, 1.5, "signature", "protocol").to_pandas()
    assert len(frame) == 1
    assert frame["perplexity"][0] == 7.4
    assert frame["signature"][0] == "signature"
