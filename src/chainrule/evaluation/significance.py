"""Statistical significance of corpus scores: confidence intervals of one system, and paired tests of two.

The scores are functions of counts summed over the sentences of a corpus. So the counts are computed once, and every
resampled corpus is one row of a matrix product. Random numbers are drawn as in sacreBLEU, so that it reproduces the
intervals and p-values of BLEU and chrF.

    bootstrap       Koehn (2004), Statistical Significance Tests for Machine Translation Evaluation; p as in sacreBLEU
    randomization   Riezler & Maxwell (2005), On Some Pitfalls in Automatic Evaluation and Significance Testing for MT
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from chainrule.base.arrays import Array
from chainrule.errors import ConfigError
from chainrule.evaluation.measurement import Measurement
from chainrule.evaluation.metrics import Metric, References, check_counts, check_name, make_metric

TESTS = ("bootstrap", "randomization")
RESAMPLES = 1000
SEED = 12345

_TIE = 1e-9  # scores of equal counts may differ in their last bits
_CELLS = 1 << 22  # cells of the matrix of resamples that are held at once


class SummedScore(Protocol):
    """A score that is a function of statistics summed over the items of a test set."""

    def scores(self, sums_KF: Array) -> Array:
        """The score of each of K rows of summed statistics -> K."""
        ...


class Ratio:
    """The first statistic over the second: bits per byte, or the share of correct labels."""

    def scores(self, sums_KF: Array) -> Array:
        return np.asarray(sums_KF[:, 0] / sums_KF[:, 1])


@dataclass(frozen=True)
class PairedResult(Measurement):
    """Two systems compared on the same sentences. `difference` is b - a: if positive, b is better."""

    metric: str
    a: float
    b: float
    difference: float
    p_value: float  # probability of a difference at least as large if the systems do not differ
    interval: tuple[float, float]  # 95%, of the difference
    test: str
    signature: str


def paired_test(
    outputs_a: Sequence[str],
    outputs_b: Sequence[str],
    references: References,
    *,
    metric: str = "bleu",
    test: str = "bootstrap",
    lowercase: bool = False,
    tokenizer: str | None = None,
    resamples: int = RESAMPLES,
    seed: int = SEED,
) -> PairedResult:
    """Test whether two systems differ in corpus BLEU or chrF by more than the choice of sentences explains."""
    check_name("test", test, TESTS)
    for outputs in (outputs_a, outputs_b):
        check_counts(outputs, references)
    measure = make_metric(metric, references, lowercase=lowercase, tokenizer=tokenizer)
    return compare_systems(metric, measure, outputs_a, outputs_b, references, test=test, resamples=resamples, seed=seed)


def compare_systems(
    name: str,
    metric: Metric,
    outputs_a: Sequence[str],
    outputs_b: Sequence[str],
    references: References,
    *,
    test: str = "bootstrap",
    resamples: int = RESAMPLES,
    seed: int = SEED,
) -> PairedResult:
    """Test whether two systems differ in a metric by more than the choice of sentences explains."""
    table_a_PF, table_b_PF = (metric.table(outputs, references) for outputs in (outputs_a, outputs_b))
    drawn = resamples if test == "randomization" else None
    return compare_tables(
        name,
        metric,
        (table_a_PF, table_b_PF),
        (
            metric.corpus_score(outputs_a, references, table_a_PF),
            metric.corpus_score(outputs_b, references, table_b_PF),
        ),
        signature=metric.signature(len(references), seed, bs=resamples, ar=drawn),
        test=test,
        resamples=resamples,
        seed=seed,
    )


def compare_tables(
    name: str,
    metric: SummedScore,
    tables: tuple[Array, Array],
    scores: tuple[float, float],
    *,
    signature: str,
    test: str = "bootstrap",
    resamples: int = RESAMPLES,
    seed: int = SEED,
) -> PairedResult:
    """Test whether two systems, given by their statistics of the same items, PF each, and their scores, differ."""
    (table_a_PF, table_b_PF), (a, b) = tables, scores
    scores_a_K, scores_b_K = bootstrap(metric, [table_a_PF, table_b_PF], resamples, seed)
    if test == "bootstrap":
        distances_K = np.abs(scores_b_K - scores_a_K)
        distances_K -= distances_K.mean()
    else:
        distances_K = _randomized_distances(metric, table_a_PF, table_b_PF, resamples, seed)
    return PairedResult(
        metric=name,
        a=a,
        b=b,
        difference=b - a,
        p_value=_p_value(distances_K, abs(b - a)),
        interval=interval(scores_b_K - scores_a_K),
        test=test,
        signature=signature,
    )


def bootstrap(
    metric: SummedScore, tables: Sequence[Array], resamples: int = RESAMPLES, seed: int = SEED
) -> list[Array]:
    """Score corpora of P sentences drawn with replacement, the same ones for every table PF -> a K for each table."""
    sums_KF = resample(np.concatenate(tables, axis=1), resamples, seed)
    return [metric.scores(part_KF) for part_KF in np.split(sums_KF, len(tables), axis=1)]


def resample(table_PF: Array, resamples: int = RESAMPLES, seed: int = SEED) -> Array:
    """Sum the statistics of K corpora of P sentences drawn with replacement -> KF."""
    sentences = len(table_PF)
    rng = np.random.default_rng(seed)
    sums = []
    for rows in _pieces(resamples, sentences):
        drawn_KP = rng.integers(sentences, size=(rows, sentences))
        drawn_KP += np.arange(rows)[:, None] * sentences  # so that one bincount serves all resamples
        times_KP = np.bincount(drawn_KP.ravel(), minlength=drawn_KP.size).reshape(drawn_KP.shape)
        sums.append(times_KP.astype(np.float64) @ table_PF)
    return np.concatenate(sums)


def _randomized_distances(
    metric: SummedScore, table_a_PF: Array, table_b_PF: Array, resamples: int, seed: int
) -> Array:
    """Distances of the scores if the two outputs of each sentence are assigned to the systems at random -> K."""
    rng = np.random.default_rng(seed)
    difference_PF, total_F = table_a_PF - table_b_PF, (table_a_PF + table_b_PF).sum(axis=0)
    sums = []
    for rows in _pieces(resamples, len(difference_PF)):
        kept_KP = rng.integers(2, size=(rows, len(difference_PF)), dtype=bool)
        sums.append(kept_KP @ difference_PF)
    first_KF = table_b_PF.sum(axis=0) + np.concatenate(sums)
    return np.asarray(np.abs(metric.scores(first_KF) - metric.scores(total_F - first_KF)))


def _pieces(resamples: int, sentences: int) -> Iterator[int]:
    """Numbers of resamples to draw at a time. Multiples of 32 use the same random bits as one draw of all."""
    if resamples < 1:
        raise ConfigError(f"resamples is {resamples}, but an interval needs at least 1; 1000 is usual.")
    size = max(1, _CELLS // sentences // 32) * 32
    for begin in range(0, resamples, size):
        yield min(size, resamples - begin)


def interval(scores_K: Array) -> tuple[float, float]:
    """Return the bounds that leave out 2.5% of the scores on either side."""
    ordered = np.sort(scores_K)
    outside = len(ordered) // 40
    return float(ordered[outside]), float(ordered[-1 - outside])


def _p_value(distances_K: Array, distance: float) -> float:
    """The share of random results that are at least as large as the observed one, which is counted as one of them."""
    return (int((distances_K >= distance - _TIE).sum()) + 1) / (len(distances_K) + 1)
