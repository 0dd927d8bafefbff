"""Statistics, intervals and paired tests against sacreBLEU, and against enumeration on tiny corpora."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.significance import PairedTest

from chainrule.errors import ConfigError, DataError
from chainrule.evaluation import metrics, significance
from chainrule.evaluation.metrics import (
    BLEU_TOKENIZERS,
    Bleu,
    Chrf,
    SacreMetric,
    choose_bleu_tokenizer,
    is_chinese,
    make_metric,
)
from chainrule.evaluation.significance import bootstrap, interval, paired_test

WORDS = [
    "a",
    "A",
    "the",
    "cat",
    "Größe",
    "für",
    "3,5",
    "10-year",
    "end.",
    "&quot;x&quot;",
    "<skipped>",
    "猫",
    "坐在",
    "!",
    "",
]
SENTENCE = st.lists(st.sampled_from(WORDS), max_size=9).map(" ".join)


@st.composite
def corpora(draw: Any) -> tuple[list[str], list[list[str]]]:
    """Outputs, and one to three sets of references that often share words with them."""
    sentences, sets = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    outputs, *references = [[draw(SENTENCE) for _ in range(sentences)] for _ in range(1 + sets)]
    return outputs, references


def pairs_of(metric: SacreMetric, corpus: tuple[list[str], list[list[str]]]) -> tuple[float, float]:
    outputs, references = corpus
    ours = metric.scores(metric.table(outputs, references).sum(axis=0, keepdims=True))[0]
    return float(ours), metric.official.corpus_score(outputs, references).score


@given(corpora(), st.sampled_from(BLEU_TOKENIZERS), st.booleans(), st.booleans())
@settings(max_examples=80, deadline=None)
def test_bleu_of_summed_statistics_is_sacrebleus(
    corpus: tuple[list[str], list[list[str]]], tokenizer: str, lowercase: bool, effective: bool
) -> None:
    metric = Bleu(tokenizer=tokenizer, lowercase=lowercase, effective_order=effective)
    ours, official = pairs_of(metric, corpus)
    assert ours == pytest.approx(official, abs=1e-9)
    outputs, references = corpus
    for row, output, *own in zip(metric.table(outputs, references), outputs, *references, strict=True):
        score = metric.official.corpus_score([output], [[text] for text in own])
        assert row.tolist() == [score.sys_len, score.ref_len, *score.counts, *score.totals]


@given(corpora(), st.booleans())
@settings(max_examples=80, deadline=None)
def test_chrf_of_summed_statistics_is_sacrebleus(corpus: tuple[list[str], list[list[str]]], lowercase: bool) -> None:
    ours, official = pairs_of(Chrf(lowercase=lowercase), corpus)
    assert ours == pytest.approx(official, abs=1e-9)


def noisy(texts: Sequence[str], share: float, seed: int) -> list[str]:
    """The texts with this share of the words replaced by others."""
    rng = random.Random(seed)
    return [" ".join(rng.choice(w) if rng.random() < share else x for x in w) for w in map(str.split, texts)]


def corpus_of(sentences: int) -> list[str]:
    rng = random.Random(7)
    words = [
        "the",
        "a",
        "cat",
        "dog",
        "man",
        "sees",
        "eats",
        "on",
        "under",
        "red",
        "old",
        "small",
        "house",
        "tree",
        ".",
    ]
    return [" ".join(rng.choices(words, k=rng.randint(5, 15))) for _ in range(sentences)]


def test_block_size_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    references = [corpus_of(50), noisy(corpus_of(50), 0.5, 1)]
    outputs = noisy(references[0], 0.3, 2)
    whole = [metric.table(outputs, references) for metric in (Bleu(), Chrf())]
    monkeypatch.setattr(metrics, "_BLOCK", 300)
    for metric, before in zip((Bleu(), Chrf()), whole, strict=True):
        assert np.array_equal(metric.table(outputs, references), before)


@pytest.mark.parametrize("metric", [Bleu(), Chrf()], ids=["bleu", "chrf"])
def test_bootstrap_scores_real_corpora(metric: SacreMetric, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every resample has the score that sacreBLEU gives the resampled corpus, even if few are drawn at a time."""
    monkeypatch.setattr(significance, "_CELLS", 1)
    references, outputs = corpus_of(11), noisy(corpus_of(11), 0.3, 3)
    (scores,) = bootstrap(metric, [metric.table(outputs, [references])], 70, 5)
    drawn = np.random.default_rng(5).choice(11, size=(70, 11), replace=True)
    for score, rows in zip(scores, drawn, strict=True):
        texts = [[corpus[row] for row in rows] for corpus in (outputs, references)]
        assert score == pytest.approx(metric.official.corpus_score(texts[0], [texts[1]]).score, abs=1e-9)


@pytest.mark.parametrize(("ours", "official"), [(Bleu(), BLEU()), (Chrf(), CHRF())], ids=["bleu", "chrf"])
def test_interval_is_sacrebleus(ours: SacreMetric, official: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SACREBLEU_SEED", "99")
    references, outputs = corpus_of(40), noisy(corpus_of(40), 0.3, 4)
    low, high = interval(bootstrap(ours, [ours.table(outputs, [references])], 200, 99)[0])
    score = official.corpus_score(outputs, [references], n_bootstrap=200)
    official_json = json.loads(score.format(width=6, signature=str(official.get_signature()), is_json=True))
    assert (high - low) / 2 == pytest.approx(official_json["confidence_var"], abs=1e-4)  # sacreBLEU sums in float32
    assert low < score.score < high


def test_interval_leaves_a_fortieth_on_either_side() -> None:
    assert interval(np.random.default_rng(0).permutation(1000).astype(float)) == (25.0, 974.0)
    assert interval(np.array([3.0, 1.0, 2.0])) == (1.0, 3.0)


@pytest.mark.parametrize("cells", [1 << 22, 1])
@pytest.mark.parametrize("metric", ["bleu", "chrf"])
@pytest.mark.parametrize(("test", "short"), [("bootstrap", "bs"), ("randomization", "ar")])
def test_p_values_are_sacrebleus(
    test: str, short: str, metric: str, cells: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(significance, "_CELLS", cells)
    references = [corpus_of(60)]
    a = noisy(references[0], 0.30, 5)
    for seed, share in enumerate((0.28, 0.33, 0.38, 0.5)):
        b = noisy(references[0], share, 10 + seed)
        result = paired_test(a, b, references, metric=metric, test=test, resamples=100)
        official = {"m": BLEU() if metric == "bleu" else CHRF()}
        _, scores = PairedTest([("a", a), ("b", b)], official, references, test_type=short, n_samples=100)()
        (baseline, system) = next(found for name, found in scores.items() if name != "System")
        assert (result.a, result.b) == pytest.approx((baseline.score, system.score), abs=1e-9)
        assert result.p_value == pytest.approx(system.p_value, abs=1e-9)


TINY = (["a b c d e", "f g h i j", "k l m n o"], [["a b c d e f", "f g x i j", "k l m n o"]])
OTHER = ["a x c x e", "f g h x j", "k l m n o p"]


def tiny_difference(rows: Sequence[int] = (0, 1, 2), swaps: Sequence[int] = (0, 0, 0)) -> float:
    """The difference in sacreBLEU's chrF of the two systems on these rows, some of them swapped."""
    systems, references, scores = (TINY[0], OTHER), TINY[1][0], []
    for system in (0, 1):
        outputs = [systems[system ^ swap][row] for row, swap in zip(rows, swaps, strict=True)]
        scores.append(CHRF().corpus_score(outputs, [[references[row] for row in rows]]).score)
    return float(scores[1] - scores[0])


def test_randomization_against_every_assignment() -> None:
    observed = tiny_difference()
    distances = np.abs([tiny_difference(swaps=swaps) for swaps in itertools.product((0, 1), repeat=3)])
    exact = np.mean(distances >= abs(observed) - 1e-9)
    result = paired_test(TINY[0], OTHER, TINY[1], metric="chrf", test="randomization", resamples=20_000)
    assert 2 / 8 <= exact < 1  # the observed outcome, and the one with all outputs swapped
    assert result.p_value == pytest.approx(exact, abs=0.015)
    assert result.difference == pytest.approx(observed)


def test_bootstrap_against_every_resample() -> None:
    observed = tiny_difference()
    differences = np.array([tiny_difference(rows) for rows in itertools.product(range(3), repeat=3)])
    distances = np.abs(differences) - np.abs(differences).mean()
    exact = np.mean(distances > abs(observed))
    result = paired_test(TINY[0], OTHER, TINY[1], metric="chrf", test="bootstrap", resamples=20_000)
    assert 0 < exact < 1
    assert result.p_value == pytest.approx(exact, abs=0.015)
    # The rarest outcomes have probability 1/27, more than the 1/40 that is left out.
    assert result.interval == pytest.approx((differences.min(), differences.max()), abs=1e-9)


@pytest.mark.parametrize("test", ["bootstrap", "randomization"])
def test_direction(test: str) -> None:
    """The difference is b - a; a system does not differ from itself."""
    references = [corpus_of(80)]
    good, bad = noisy(references[0], 0.1, 1), noisy(references[0], 0.6, 2)
    worse, better = paired_test(good, bad, references, test=test), paired_test(bad, good, references, test=test)
    assert worse.difference == -better.difference < 0
    assert worse.p_value < 0.01 > better.p_value
    assert worse.interval == pytest.approx([-bound for bound in reversed(better.interval)])
    assert better.interval[0] > 0
    same = paired_test(good, good, references, test=test)
    assert (same.difference, same.p_value, same.interval) == (0.0, 1.0, (0.0, 0.0))


def test_the_seed_determines_the_numbers() -> None:
    references = [corpus_of(30)]
    a, b = noisy(references[0], 0.3, 1), noisy(references[0], 0.35, 2)
    first, again, other = (paired_test(a, b, references, resamples=200, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first.interval != other.interval
    assert "|bs:200|seed:1|" in first.signature
    randomized = paired_test(
        a, b, references, resamples=200, seed=1, test="randomization", metric="chrf", lowercase=True
    )
    assert randomized.signature.startswith("nrefs:1|bs:200|ar:200|seed:1|case:lc|eff:yes|nc:6|nw:0|space:no|version:")
    assert json.loads(json.dumps(randomized.to_dict()))["interval"] == list(randomized.interval)


@pytest.mark.parametrize(
    ("text", "chinese"),
    [
        ("他坐在那里。", True),
        ("二〇二四年", True),
        ("Er sitzt dort.", False),
        ("", False),
        ("123, 456!", False),
        ("猫猫猫 abcdefg", False),  # 3 of 10 letters are not more than 0.3 of them
        ("猫猫猫猫 abcdefg", True),
        ("𠀀𠀁", True),
    ],
)
def test_chinese_is_recognised(text: str, chinese: bool) -> None:
    assert is_chinese(text) == chinese
    assert choose_bleu_tokenizer([[text], [""]]) == ("zh" if chinese else "13a")


def test_metrics_by_name() -> None:
    assert make_metric("bleu", [["猫坐着"]], lowercase=True).signature(1).startswith("nrefs:1|case:lc|eff:no|tok:zh|")
    assert "tok:intl" in make_metric("bleu", [["猫坐着"]], tokenizer="intl").signature(1)
    assert isinstance(make_metric("chrf", [[""]]), Chrf)


def test_errors() -> None:
    cases: list[tuple[type[Exception], str, dict[str, Any]]] = [
        (ConfigError, "unknown metric 'blue': did you mean 'bleu'? Known: bleu, chrf", {"metric": "blue"}),
        (
            ConfigError,
            "unknown test 'randomisation': did you mean 'randomization'? Known: bootstrap, randomization",
            {"test": "randomisation"},
        ),
        (
            ConfigError,
            "unknown BLEU tokenizer '13': did you mean '13a'? Known: 13a, char, intl, none, zh",
            {"tokenizer": "13"},
        ),
        (ConfigError, "resamples is 0, but an interval needs at least 1; 1000 is usual.", {"resamples": 0}),
    ]
    for kind, message, options in cases:
        with pytest.raises(kind) as caught:
            paired_test(["a"], ["b"], [["a"]], **options)
        assert str(caught.value) == message
    with pytest.raises(DataError) as caught:
        paired_test(["a", "b"], ["b"], [["a", "b"]])
    assert str(caught.value).startswith("there are 1 outputs and 2 references:")
