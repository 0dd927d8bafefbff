"""The loops of word2vec against autograd, and their sampling tables against the definitions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from chainrule.engines.word2vec.kernels import MAX_SCORE, SweepOptions, Word2VecWeights, make_sweep
from chainrule.engines.word2vec.sampling import alias_table, keep_limits, sigmoid_table, softplus_table
from chainrule.engines.word2vec.sweeps import SweepPlan, WordList, aligned_zeros, make_tables
from engines.word2vec.naive import Naive, choose, stream

WIDTH = 8
WORDS = 30
SEED = 12345
WORD_LIST = WordList(np.arange(2, WORDS + 2), (600 / np.arange(1, WORDS + 1)).astype(np.int64), WORDS + 2, 1)


def options(**changes: Any) -> SweepOptions:
    usual = {"skip_gram": True, "hierarchical": False, "negatives": 5, "window": 3, "shrink": True, "mean": True}
    return SweepOptions(**{**usual, **changes})


def some_weights(chosen: SweepOptions, seed: int = 0) -> Word2VecWeights:
    rng = np.random.default_rng(seed)
    rows = [aligned_zeros(WORDS if used else 0, WIDTH) for used in (True, chosen.negatives, chosen.hierarchical)]
    for rows_VD in rows:
        rows_VD[:] = rng.normal(0, 0.15, rows_VD.shape)
    return Word2VecWeights(*rows)


def some_tokens(count: int = 200, seed: int = 0) -> np.ndarray[Any, Any]:
    """Frequent and rare words, unknown ones (0) and line ends (1)."""
    return np.minimum(np.random.default_rng(seed).zipf(1.3, count) - 1, WORDS + 1).astype(np.int32)


def swept(
    chosen: SweepOptions, weights: Word2VecWeights, tokens: Any, *, rate: float = 0.025, sample: float = 0.0
) -> Any:
    tables = make_tables(SweepPlan(chosen, sample, 0.75, SEED), WORD_LIST)
    totals = np.zeros(4)
    kernel = make_sweep(WIDTH, chosen.skip_gram, chosen.hierarchical, chosen.negatives > 0)
    kernel(tokens, tables, weights, chosen, np.float32(rate), np.uint64(SEED), totals)
    return tables, totals


CASES = [
    options(),
    options(shrink=False, negatives=2, window=2),
    options(hierarchical=True, negatives=0),
    options(hierarchical=True),
    options(skip_gram=False),
    options(skip_gram=False, mean=False, shrink=False),
    options(skip_gram=False, hierarchical=True, negatives=0),
]


@pytest.mark.parametrize("chosen", CASES, ids=lambda chosen: "-".join(map(str, chosen)))
def test_steps_equal_those_of_autograd(chosen: SweepOptions) -> None:
    weights, tokens = some_weights(chosen), some_tokens()
    before = Word2VecWeights(*(rows_VD.copy() for rows_VD in weights))
    tables, _ = swept(chosen, weights, tokens, sample=0.02)
    naive = Naive(tables, before, chosen, 0.025, SEED)
    naive.learn(tokens)
    for ours, theirs, old in zip(weights, (naive.inputs, naive.outputs, naive.nodes), before, strict=True):
        np.testing.assert_allclose(ours, theirs.detach().numpy(), rtol=0, atol=1e-5)
        assert not len(old) or abs(ours - old).max() > 0.01  # they did move


def test_the_measured_loss_is_correct() -> None:
    """With a rate of 0 nothing moves, so the loss can be computed afterwards."""
    chosen = options(shrink=False, negatives=1, window=1)
    weights, tokens = some_weights(chosen), np.array([5, 9], np.int32)
    before = [rows_VD.copy() for rows_VD in weights]
    tables, totals = swept(chosen, weights, tokens, rate=0.0)
    assert all((ours == old).all() for ours, old in zip(weights, before, strict=True))
    drawn = choose(next(stream(SEED, 2)), tables.aliases_V)
    centre, other = 3, 7  # a word is its id - 2; the first of a sentence is measured
    scores = [weights.outputs_VD[centre] @ weights.inputs_VD[other], -weights.outputs_VD[drawn] @ weights.inputs_VD[7]]
    expected = sum(math.log1p(math.exp(-score)) for score in (scores if drawn != centre else scores[:1]))
    assert totals.tolist()[:3] == [2, 2, 1]
    assert totals[3] == pytest.approx(expected, abs=1e-4)


def test_unknown_words_are_skipped_and_lines_are_separate() -> None:
    chosen = options(shrink=False, window=1)
    plain, with_unknown, two_lines = (some_weights(chosen) for _ in range(3))
    _, totals = swept(chosen, plain, np.array([4, 5], np.int32))
    _, unknown_totals = swept(chosen, with_unknown, np.array([4, 0, 0, 5], np.int32))
    _, line_totals = swept(chosen, two_lines, np.array([4, 1, 5], np.int32))
    assert (plain.inputs_VD == with_unknown.inputs_VD).all()
    assert (two_lines.inputs_VD == some_weights(chosen).inputs_VD).all()  # a single word has no context
    assert (totals[1], unknown_totals[1], line_totals[1]) == (2, 2, 0)
    assert unknown_totals[0] == 4  # unknown words count as words read


def test_a_score_beyond_the_table_has_no_gradient() -> None:
    chosen = options(shrink=False, negatives=1)
    weights = some_weights(chosen)
    weights.inputs_VD[:], weights.outputs_VD[:] = 1.0, MAX_SCORE
    swept(chosen, weights, np.array([4, 5], np.int32))
    assert (weights.inputs_VD == 1).all()
    assert (weights.outputs_VD == MAX_SCORE).all()


def test_negative_words_are_drawn_by_their_weights() -> None:
    weights_V = WORD_LIST.counts_V**0.75
    draws, table = stream(7, 2), alias_table(weights_V)
    seen_V = np.bincount([choose(next(draws), table) for _ in range(60_000)], minlength=WORDS)
    expected_V = weights_V / weights_V.sum() * seen_V.sum()
    assert ((seen_V - expected_V) ** 2 / expected_V).sum() < 58.3  # chi-square, 29 degrees of freedom, p = 0.001


@pytest.mark.parametrize("weights", [[1.0], [1, 1, 1], [5, 1e-9, 3], [1e12, 1, 1, 1]])
def test_an_alias_table_is_exact(weights: list[float]) -> None:
    """The probability of each word, summed over the entries of the table."""
    table = [int(entry) for entry in alias_table(np.array(weights))]
    chances = np.zeros(len(weights))
    for place, entry in enumerate(table):
        own = (entry >> 32) / 2**32
        chances[place] += own / len(table)
        chances[entry & 0xFFFFFFFF] += (1 - own) / len(table)
    np.testing.assert_allclose(chances, np.array(weights) / np.sum(weights), atol=1e-9)


def test_frequent_words_are_subsampled_as_published() -> None:
    counts_V = np.array([900_000, 50_000, 1000, 100])
    limits_V = keep_limits(counts_V, 1e-3)
    threshold = 1e-3 * counts_V.sum()
    expected = [min(1.0, (math.sqrt(count / threshold) + 1) * threshold / count) for count in counts_V]
    np.testing.assert_allclose(limits_V / (2**32 - 1), expected, atol=1e-9)
    assert (keep_limits(counts_V, 0.0) == 2**32 - 1).all()
    draws = stream(3, 0)
    kept = sum(next(draws) >> 32 <= int(limits_V[0]) for _ in range(50_000))
    assert kept / 50_000 == pytest.approx(expected[0], abs=4 * math.sqrt(expected[0] / 50_000))


def test_reaches_are_uniform() -> None:
    """In a long line, each centre except the outermost has twice its reach of predictions."""
    chosen = options(window=4, negatives=1)
    tokens = np.full(10_000, 4, np.int32)
    _, totals = swept(chosen, some_weights(chosen), tokens)
    draws = stream(SEED, 1)
    reaches = [4 - (((next(draws) >> 32) * 4) >> 32) for _ in range(10_000)]
    expected = sum(min(place, reach) + min(9_999 - place, reach) for place, reach in enumerate(reaches))
    assert totals[1] == expected
    seen = np.bincount(reaches)[1:]
    assert len(seen) == 4
    assert ((seen - 2500) ** 2 / 2500).sum() < 16.3  # chi-square, 3 degrees of freedom, p = 0.001


def test_a_sentence_of_more_than_ten_thousand_words_is_split() -> None:
    chosen = options(window=1, shrink=False, negatives=1)
    _, totals = swept(chosen, some_weights(chosen), np.full(10_001, 4, np.int32))
    assert totals[1] == 2 * 9_999  # the last word is a sentence alone


def test_tables_are_accurate_between_their_points() -> None:
    scores = np.linspace(-MAX_SCORE, MAX_SCORE, 10_001)
    points = np.linspace(-MAX_SCORE, MAX_SCORE, len(sigmoid_table()))
    np.testing.assert_allclose(np.interp(scores, points, sigmoid_table()), 1 / (1 + np.exp(-scores)), atol=4e-6)
    np.testing.assert_allclose(np.interp(scores, points, softplus_table()), np.log1p(np.exp(-scores)), atol=1e-5)
