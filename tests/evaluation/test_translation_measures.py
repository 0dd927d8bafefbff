"""Scores of translations against sacreBLEU and rouge_score called directly, and against counts by hand."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import math
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rouge_score.rouge_scorer import RougeScorer
from rouge_score.tokenizers import DefaultTokenizer
from sacrebleu.metrics import BLEU, CHRF

from chainrule.errors import ConfigError, DataError
from chainrule.evaluation import rewards, significance, translation
from chainrule.evaluation.rouge import WordTokenizer, _common_length, index_words
from chainrule.evaluation.translation import measure

ROUGE = ["rouge1", "rouge2", "rougeL"]
OUTPUTS = ["The cat sat on the mat .", "a Dog barks", "", "It costs 3,500 dollars.", "green men"]
REFERENCES = ["The cat is sitting on the mat.", "A dog barks", "nothing", "It cost 3,500 dollars.", "little green men"]
MORE = ["the cat sat upon a mat.", "The dog barks.", "", "Price: $3,500", "green men"]


@pytest.mark.parametrize("references", [[REFERENCES], [REFERENCES, MORE]], ids=["one", "two"])
@pytest.mark.parametrize("lowercase", [False, True])
@pytest.mark.parametrize("tokenizer", [None, "13a", "intl", "char", "none"])
def test_scores_equal_the_libraries(references: list[list[str]], lowercase: bool, tokenizer: str | None) -> None:
    found = measure(OUTPUTS, references, lowercase=lowercase, tokenizer=tokenizer, resamples=50)
    bleu = BLEU(lowercase=lowercase, tokenize=tokenizer, force=True)
    folded, chrf = BLEU(lowercase=True, tokenize=tokenizer, force=True), CHRF(lowercase=lowercase)
    assert found.bleu == bleu.corpus_score(OUTPUTS, references, n_bootstrap=50).score
    assert found.bleu_lowercase == folded.corpus_score(OUTPUTS, references).score
    assert found.chrf == chrf.corpus_score(OUTPUTS, references, n_bootstrap=50).score
    assert found.bleu_signature == str(bleu.get_signature())
    assert found.bleu_lowercase_signature == str(folded.get_signature())
    assert found.chrf_signature == str(chrf.get_signature())
    scorer = RougeScorer(ROUGE)
    scores = [scorer.score_multi(own, output) for output, *own in zip(OUTPUTS, *references, strict=True)]
    for kind in ROUGE:
        mean = sum(score[kind].fmeasure for score in scores) / len(scores)
        assert getattr(found, kind) == pytest.approx(100 * mean, abs=1e-9)
    assert found.sentences == 5


def test_bleu_by_hand() -> None:
    """Precisions 5/6, 3/5, 1/4 and half of 1/3; six words against seven."""
    found = measure(["the cat sat on the mat"], [["the cat is on the mat now"]])
    precisions = (5 / 6, 3 / 5, 1 / 4, 1 / 2 / 3)
    assert found.bleu == pytest.approx(100 * math.exp(1 - 7 / 6) * math.prod(precisions) ** (1 / 4))
    assert found.bleu_interval == pytest.approx((found.bleu, found.bleu))  # one sentence resamples to itself


def test_rouge_by_hand_in_german() -> None:
    """für, Größe and über are words: 3 of 4 words, 1 of 3 pairs, and für _ _ Größe in order."""
    found = measure(["Für uns über Größe"], [["für die Größe über"]])
    assert found.rouge1 == pytest.approx(75)
    assert found.rouge2 == 0
    assert found.rougeL == pytest.approx(50)
    assert measure(["Für die Größe"], [["für die Größe"]]).rouge2 == 100


def test_chinese_is_measured_by_characters() -> None:
    found = measure(["我喜欢猫。"], [["我喜欢狗。"]])
    assert "|tok:zh|" in found.bleu_signature
    assert "|tok:zh|" in found.bleu_lowercase_signature
    assert found.bleu == pytest.approx(100 * (4 / 5 * 2 / 4 * 1 / 3 * 1 / 2 / 2) ** (1 / 4))
    assert found.rouge1 == pytest.approx(75)
    assert found.rouge2 == pytest.approx(100 * 2 / 3)
    assert found.rougeL == pytest.approx(75)
    assert "|tok:13a|" in measure(["我喜欢猫。"], [["我喜欢狗。"]], tokenizer="13a").bleu_signature


@given(st.text(st.characters(max_codepoint=127)))
@settings(max_examples=100, deadline=None)
def test_words_of_ascii_are_rouge_scores(text: str) -> None:
    assert WordTokenizer().tokenize(text) == DefaultTokenizer().tokenize(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Die Größe, für 3,5 €!", ["die", "größe", "für", "3", "5"]),
        ("我爱Python3吗？二〇二四年", ["我", "爱", "python3", "吗", "二", "〇", "二", "四", "年"]),
        ("नमस्ते दुनिया।", ["नमस्ते", "दुनिया"]),  # vowel signs are marks, not letters
        ("fu\u0308r snake_case it's", ["fu\u0308r", "snake", "case", "it", "s"]),
        ("Привет, мир", ["привет", "мир"]),
        ("", []),
    ],
)
def test_words_of_other_scripts(text: str, words: list[str]) -> None:
    assert WordTokenizer().tokenize(text) == words


WORDS = st.lists(st.sampled_from("abcd"), max_size=80)


@given(WORDS, WORDS)
@settings(max_examples=100, deadline=None)
def test_common_subsequence_against_its_table(first: list[str], second: list[str]) -> None:
    table = np.zeros((len(first) + 1, len(second) + 1), int)
    for i, one in enumerate(first, 1):
        for j, other in enumerate(second, 1):
            longest = max(table[i - 1, j], table[i, j - 1])
            table[i, j] = table[i - 1, j - 1] + 1 if one == other else longest
    assert _common_length(first, index_words(second)) == table[-1, -1]


def test_long_lines_need_little_memory() -> None:
    """100,000 characters in 20,000 words; the output lacks every tenth word."""
    words = [f"w{number % 1000:03}" for number in range(20_000)]
    kept = [word for place, word in enumerate(words) if place % 10]
    found = measure([" ".join(kept)], [[" ".join(words)]], resamples=1)
    assert found.rouge1 == pytest.approx(100 * 2 * 18_000 / 38_000)
    assert found.rougeL == pytest.approx(found.rouge1)


def test_exact_match_by_hand() -> None:
    outputs = ["one ", "Two", "three", "four"]
    references = [["one", "two", "3", "five"], ["1", "2", " three", "5"]]
    assert measure(outputs, references, resamples=1).exact_match == 2 / 4
    assert measure(outputs, references, resamples=1, lowercase=True).exact_match == 3 / 4
    assert measure(outputs, references[:1], resamples=1).exact_match == 1 / 4


def test_nothing_and_all() -> None:
    nothing = measure(["", ""], [["a b c d e", "f"]])
    assert [nothing.bleu, nothing.chrf, nothing.rouge1, nothing.rougeL, nothing.exact_match] == [0] * 5
    assert nothing.bleu_interval == nothing.chrf_interval == (0.0, 0.0)
    everything = measure(REFERENCES, [REFERENCES])
    for name in ("bleu", "bleu_lowercase", "chrf", "rouge1", "rougeL"):
        assert getattr(everything, name) == pytest.approx(100)
    assert everything.exact_match == 1


def test_intervals_are_reproducible_by_their_seed() -> None:
    first, again, other = (measure(OUTPUTS, [REFERENCES], resamples=100, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first.chrf == other.chrf
    assert first.chrf_interval != other.chrf_interval
    assert first.chrf_interval[0] < first.chrf < first.chrf_interval[1]
    assert "|bs:100|seed:1|" in first.chrf_signature


def test_to_dict_is_json() -> None:
    found = measure(OUTPUTS, [REFERENCES, MORE], resamples=10)
    back: dict[str, Any] = json.loads(json.dumps(found.to_dict()))
    assert list(back) == [field.name for field in dataclasses.fields(found)]
    assert back["bleu_interval"] == list(found.bleu_interval)
    assert back["rouge_signature"] == found.rouge_signature
    assert found.rouge_signature.startswith("nrefs:2|case:lc|stemmer:no|tok:unicode-words+han-characters|chainrule:")


def test_errors() -> None:
    cases: list[tuple[type[Exception], str, Any, Any, dict[str, Any]]] = [
        (
            DataError,
            "there are no outputs, so there is nothing to measure; give at least one sentence.",
            [],
            [[]],
            {},
        ),
        (
            DataError,
            "there are 2 outputs and 1 references: expected equal numbers; give files with the same number of lines.",
            ["a", "b"],
            [["a"]],
            {},
        ),
        (
            DataError,
            "there are 2 outputs and 3 references in set 2: expected equal numbers; give files with the same "
            "number of lines.",
            ["a", "b"],
            [["a", "b"], ["a", "b", "c"]],
            {},
        ),
        (
            DataError,
            "expected one or more sets of references, each with a reference for every output; give a list.",
            ["a"],
            ["a"],
            {},
        ),
        (
            ConfigError,
            "unknown BLEU tokenizer 'international': choose one of these. Known: 13a, char, intl, none, zh",
            ["a"],
            [["a"]],
            {"tokenizer": "international"},
        ),
        (
            ConfigError,
            "resamples is 0, but an interval needs at least 1; 1000 is usual.",
            ["a"],
            [["a"]],
            {"resamples": 0},
        ),
    ]
    for kind, message, outputs, references, options in cases:
        with pytest.raises(kind) as caught:
            measure(outputs, references, **options)
        assert str(caught.value) == message


@pytest.mark.parametrize("module", [translation, significance, rewards], ids=lambda module: module.__name__)
def test_slow_libraries_are_imported_when_something_is_measured(module: ModuleType) -> None:
    """Importing them takes tenths of a second, which every command would pay."""
    imports = [
        node for node in ast.parse(inspect.getsource(module)).body if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    names = {node.module or "" for node in imports if isinstance(node, ast.ImportFrom)}
    names |= {alias.name for node in imports for alias in node.names}
    assert names
    assert not {name.split(".")[0] for name in names} & {"sacrebleu", "rouge_score", "nltk"}
