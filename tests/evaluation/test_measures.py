"""Measures of files against formulas by hand, sacreBLEU, rouge_score and a naive edit distance."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rouge_score.rouge_scorer import RougeScorer
from sacrebleu.metrics import BLEU, CHRF

import chainrule as cr
from chainrule.errors import ConfigError, DataError
from chainrule.evaluation.edits import edit_distance
from chainrule.evaluation.rouge import WordTokenizer
from commands import chainrule

OUTPUTS = ["the cat sat on the mat", "a dog barks loudly at night", "green men", "it rains in the old town"]
WORSE = ["the the the the", "a dog", "men", "sun"]
REFERENCES = ["the cat is on the mat", "a dog barks at night", "little green men", "it rains in the old town"]
MORE = ["there is a cat on the mat", "the dog barks", "green men", "rain falls"]
WORDS = st.lists(st.sampled_from(["a", "b", "c", "d"]), max_size=9)


def naive_distance(first: list[str], second: list[str]) -> int:
    rows = [list(range(len(second) + 1))]
    for i, one in enumerate(first, 1):
        row = [i]
        for j, other in enumerate(second, 1):
            row.append(min(rows[-1][j] + 1, row[-1] + 1, rows[-1][j - 1] + (one != other)))
        rows.append(row)
    return rows[-1][-1]


@given(WORDS, WORDS)
@settings(max_examples=300, deadline=None)
def test_edit_distance_is_that_of_its_table(first: list[str], second: list[str]) -> None:
    assert edit_distance(first, second) == naive_distance(first, second)


@pytest.mark.parametrize("order", [1, 2, 3, 5])
def test_bleu_of_any_order_is_the_formula_and_sacrebleu(order: int) -> None:
    found = cr.measure(OUTPUTS, REFERENCES, max_order=order, tokenizer="none", resamples=10)["bleu"]
    logs, length, closest = 0.0, 0, 0
    for n in range(1, order + 1):
        matches = total = 0
        for output, reference in zip(OUTPUTS, REFERENCES, strict=True):
            grams, others = (
                Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))
                for words in (output.split(), reference.split())
            )
            matches += sum((grams & others).values())
            total += sum(grams.values())
        logs += math.log(matches / total)
        assert found.parts[f"precision{n}"] == pytest.approx(100 * matches / total)
    length, closest = (sum(len(text.split()) for text in texts) for texts in (OUTPUTS, REFERENCES))
    brevity = min(1.0, math.exp(1 - closest / length))
    assert found.parts["brevity_penalty"] == pytest.approx(brevity)
    assert found.parts["length_ratio"] == pytest.approx(length / closest)
    assert found.score == pytest.approx(100 * brevity * math.exp(logs / order))
    official = BLEU(max_ngram_order=order, tokenize="none").corpus_score(OUTPUTS, [REFERENCES])
    assert found.score == pytest.approx(official.score)
    assert [found.parts[f"precision{n}"] for n in range(1, order + 1)] == pytest.approx(official.precisions)
    assert ("order:" in found.signature) == (order != 4)


def test_two_references_and_chrf_are_sacrebleus() -> None:
    found = cr.measure(OUTPUTS, REFERENCES, MORE, resamples=10)
    assert found["bleu"].score == BLEU().corpus_score(OUTPUTS, [REFERENCES, MORE]).score
    assert found["chrf"].score == CHRF().corpus_score(OUTPUTS, [REFERENCES, MORE]).score
    assert found["bleu"].signature.startswith("nrefs:2|bs:10|seed:12345|case:mixed|eff:no|tok:13a|")


@pytest.mark.parametrize("name", ["rouge1", "rouge3", "rouge5", "rougeL"])
def test_rouge_is_that_of_rouge_score(name: str) -> None:
    found = cr.measure(OUTPUTS, REFERENCES, MORE, rouge_orders=5, resamples=10)[name]
    scorer = RougeScorer([name], tokenizer=WordTokenizer())
    scores = [scorer.score_multi(list(own), text)[name] for text, *own in zip(OUTPUTS, REFERENCES, MORE, strict=True)]
    assert found.score == pytest.approx(100 * sum(one.fmeasure for one in scores) / 4)
    assert found.parts["recall"] == pytest.approx(100 * sum(one.recall for one in scores) / 4)
    assert found.parts["precision"] == pytest.approx(100 * sum(one.precision for one in scores) / 4)


def test_pooled_recall_is_the_papers_formula() -> None:
    """Matched bigrams of both references over all their bigrams, by hand."""
    found = cr.measure(["a b c d"], ["a b x c d"], ["b c"], resamples=1)["rouge2"]
    assert found.parts["pooled_recall"] == pytest.approx(100 * (2 + 1) / (4 + 1))


def test_error_rates_by_hand() -> None:
    found = cr.measure(["a x c", "b b"], ["a b c d", "b"], resamples=10)
    assert found["wer"].score == pytest.approx(100 * (2 + 1) / 5)
    assert found["cer"].score == pytest.approx(100 * (3 + 2) / 8)
    assert found["wer"].lower_is_better
    nearest = cr.measure(["a x c", "b b"], ["a b c d", "b"], ["a x c d e f", "b b"], resamples=10)
    assert nearest["wer"].score == pytest.approx(100 * (2 + 0) / (4 + 2))
    assert cr.measure(["A b"], ["a b"], lowercase=True, resamples=1)["wer"].score == 0


def test_words_of_chinese_are_characters() -> None:
    found = cr.measure(["猫坐在垫子上"], ["狗坐在垫子上"], resamples=1)
    assert found["wer"].score == pytest.approx(100 / 6)
    assert "tok:zh" in found["bleu"].signature
    assert "tok:zh" in found["wer"].signature
    assert cr.measure(["猫坐"], ["狗坐"], tokenizer="none", resamples=1)["wer"].score == 100


def test_two_systems() -> None:
    found = cr.measure(OUTPUTS * 10, REFERENCES * 10, against=WORSE * 10, resamples=200)
    tests = {test.metric: test for test in found.paired}
    assert set(tests) == set(found.metrics) == set(found.against)
    for name in ("bleu", "rouge1", "wer", "cer"):
        assert tests[name].p_value < 0.05
        assert (tests[name].difference < 0) != found[name].lower_is_better
        assert tests[name].b == found.against[name].score
    assert "second system worse" in found.show()
    same = cr.measure(OUTPUTS, REFERENCES, against=OUTPUTS, resamples=50, test="randomization", metrics=["wer"])
    assert same.paired[0].p_value == 1


def test_errors() -> None:
    cases: list[tuple[type[Exception], str, tuple[Any, ...], dict[str, Any]]] = [
        (ConfigError, "there are no references to measure against", (["a"],), {}),
        (DataError, "there are 1 outputs and 2 references", (["a"], ["a", "b"]), {}),
        (DataError, "there are 2 outputs and 1 references", (["a"], ["a"]), {"against": ["a", "b"]}),
        (ConfigError, "unknown metric 'wr': did you mean 'wer'?", (["a"], ["a"]), {"metrics": ["wr"]}),
        (ConfigError, "the maximum order of BLEU is 0; expected at least 1", (["a"], ["a"]), {"max_order": 0}),
        (ConfigError, "unknown test 'boot'", (["a"], ["a"]), {"test": "boot"}),
    ]
    for kind, message, arguments, options in cases:
        with pytest.raises(kind) as caught:
            cr.measure(*arguments, **options)
        assert message in str(caught.value)


def test_command(tmp_path: Path) -> None:
    for name, lines in (("a", OUTPUTS), ("b", WORSE), ("r", REFERENCES), ("m", MORE)):
        (tmp_path / name).write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    a, b, r, m = (tmp_path / name for name in "abrm")
    done = chainrule("measure", a, r, m, "--against", b, "--max-order", 2, "--resamples", 50, "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out) == json.loads(
        json.dumps(cr.measure(a, str(r), m, against=b, max_order=2, resamples=50).to_dict())
    )
    shown = chainrule("measure", a, r, "--metrics", "bleu, wer", "--resamples", 50)
    assert shown.out.splitlines()[0].split() == ["sentences", "4"]
    assert "bleu precision1" in shown.out
    assert "chrf" not in shown.out
    missing = chainrule("measure", a, tmp_path / "none")
    assert missing.code == 2
    assert "none" in missing.err
