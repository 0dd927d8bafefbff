"""Statistical significance of BLEU and chrF: confidence intervals of one system, and paired tests of two.

Both scores are functions of counts summed over the sentences of a corpus. So the counts are computed once, and every
resampled corpus is one row of a matrix product. The scores equal those of sacreBLEU, and random numbers are drawn in
the same way, so that sacreBLEU reproduces the intervals and p-values.

    bootstrap       Koehn (2004), Statistical Significance Tests for Machine Translation Evaluation; p as in sacreBLEU
    randomization   Riezler & Maxwell (2005), On Some Pitfalls in Automatic Evaluation and Significance Testing for MT
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from chainrule.base.arrays import Array
from chainrule.errors import ConfigError, DataError, unknown_name
from chainrule.evaluation.measurement import Measurement

METRICS = ("bleu", "chrf")
TESTS = ("bootstrap", "randomization")
BLEU_TOKENIZERS = ("13a", "char", "intl", "none", "zh")
"""The tokenisers of sacreBLEU that need no further package and no download."""

WORD_ORDERS = 4
CHARACTER_ORDERS = 6
RESAMPLES = 1000
SEED = 12345

HAN = re.compile("[\u3005-\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003fffd]")
"""One Chinese character."""
CHINESE_SHARE = 0.3
"""A text counts as Chinese if more than this share of its letters are Chinese characters."""

_TIE = 1e-9  # scores of equal counts may differ in their last bits
_BLOCK = 1 << 18  # characters whose n-grams are counted at once, rounded to whole sentences
_CELLS = 1 << 22  # cells of the matrix of resamples that are held at once

References = Sequence[Sequence[str]]
"""Sets of references: references[k][i] is the k-th reference of output i."""


class Metric(ABC):
    """A score of a corpus by counts that are summed over its sentences."""

    def __init__(self, official: Any) -> None:
        self.official = official  # the metric of sacreBLEU

    def table(self, outputs: Sequence[str], references: References) -> Array:
        """Return the statistics of all sentences -> PF, integers as float64. Counting in blocks bounds the memory."""
        texts = [outputs, *references]
        characters = np.cumsum([sum(map(len, each)) for each in zip(*texts, strict=True)])
        ends = (np.flatnonzero(np.diff(characters // _BLOCK, append=-1)) + 1).tolist()
        blocks = zip([0, *ends], ends, strict=False)
        return np.concatenate([self.count([each[begin:end] for each in texts]) for begin, end in blocks])

    @abstractmethod
    def count(self, texts: list[Sequence[str]]) -> Array:
        """Return the statistics of some sentences -> PF; texts: the outputs, then each set of references, K in all."""

    @abstractmethod
    def scores(self, sums_KF: Array) -> Array:
        """Return the score, 0 to 100, of each of K rows of summed statistics -> K."""


class Bleu(Metric):
    """BLEU. Statistics: lengths of the output and of the closest reference, then matches and n-grams of each order."""

    def __init__(self, *, tokenizer: str = "13a", lowercase: bool = False, effective_order: bool = False) -> None:
        from sacrebleu.metrics.bleu import BLEU  # slow to import

        check_name("BLEU tokenizer", tokenizer, BLEU_TOKENIZERS)
        super().__init__(BLEU(lowercase=lowercase, tokenize=tokenizer, effective_order=effective_order, force=True))
        self._tokenize, self._lowercase, self._effective_order = self.official.tokenizer, lowercase, effective_order

    def count(self, texts: list[Sequence[str]]) -> Array:
        ids: dict[str, int] = {}
        tokens = [[ids.setdefault(word, len(ids)) for word in self._words(text)] for each in texts for text in each]
        lengths_KP = np.array([len(each) for each in tokens]).reshape(len(texts), -1)
        matches = [
            np.bincount(sentence_J, np.minimum(times_JK[:, 0], times_JK[:, 1:].max(axis=1)), lengths_KP.shape[1])
            for sentence_J, times_JK in _ngrams(np.array(list(chain(*tokens)), np.int64), lengths_KP, WORD_ORDERS)
        ]
        ngrams = [np.maximum(0, lengths_KP[0] - order) for order in range(WORD_ORDERS)]
        return np.stack([lengths_KP[0], _closest_length(lengths_KP), *matches, *ngrams], axis=1)

    def scores(self, sums_KF: Array) -> Array:
        """The geometric mean of the precisions times the brevity penalty.

        The k-th order without a match counts as 1/2^k matches ("exp" smoothing). An order without n-grams makes the
        score 0, or is left out of the mean (effective order).
        """
        length_K1, reference_K1, matches_KO, ngrams_KO = np.split(sums_KF, (1, 2, 2 + WORD_ORDERS), axis=1)
        present_KO = ngrams_KO > 0
        missed_KO = present_KO & (matches_KO == 0)
        hits_KO = np.where(missed_KO, 0.5 ** np.cumsum(missed_KO, axis=1), matches_KO)
        logs_KO = np.log(100 * hits_KO / np.maximum(ngrams_KO, 1), where=present_KO, out=np.zeros_like(hits_KO))
        orders_K = present_KO.sum(axis=1)
        brevity_K = np.minimum(1 - reference_K1 / np.maximum(length_K1, 1), 0)[:, 0]
        scores_K = np.exp(brevity_K + logs_KO.sum(axis=1) / np.maximum(orders_K, 1))
        zero_K = ~matches_KO.any(axis=1) | ((orders_K < WORD_ORDERS) & (not self._effective_order))
        return np.where(zero_K, 0.0, scores_K)

    def _words(self, text: str) -> list[str]:
        tokenized: str = self._tokenize((text.lower() if self._lowercase else text).rstrip())
        return tokenized.split()


def _closest_length(lengths_KP: Array) -> Array:
    """The length of the reference that is closest in length to the output, the shorter one of a tie -> P."""
    references_KP = np.sort(lengths_KP[1:], axis=0)
    chosen_P = np.abs(references_KP - lengths_KP[0]).argmin(axis=0)
    return np.asarray(references_KP[chosen_P, np.arange(len(chosen_P))])


class Chrf(Metric):
    """chrF. Statistics: for each order the n-grams of the output, those of the best reference, and the matches."""

    def __init__(self, *, lowercase: bool = False) -> None:
        from sacrebleu.metrics.chrf import CHRF  # slow to import

        super().__init__(CHRF(lowercase=lowercase))
        self._lowercase = lowercase

    def count(self, texts: list[Sequence[str]]) -> Array:
        lines = ["".join((text.lower() if self._lowercase else text).split()) for each in texts for text in each]
        lengths_KP = np.array([len(line) for line in lines]).reshape(len(texts), -1)
        characters = np.frombuffer("".join(lines).encode("utf-32-le", "surrogatepass"), np.uint32).astype(np.int64)
        table_KPF = np.zeros((len(texts) - 1, lengths_KP.shape[1], 3 * CHARACTER_ORDERS))
        for order, (sentence_J, times_JK) in enumerate(_ngrams(characters, lengths_KP, CHARACTER_ORDERS)):
            output_P, *others = np.maximum(0, lengths_KP - order)
            for reference, other_P in enumerate(others):
                matches_J = np.minimum(times_JK[:, 0], times_JK[:, 1 + reference])
                matches_P = np.bincount(sentence_J, matches_J, len(other_P))
                # Orders for which the reference is too short do not lower the score.
                counted = np.where(other_P > 0, output_P, 0), other_P, matches_P
                table_KPF[reference, :, 3 * order : 3 * order + 3] = np.stack(counted, axis=1)
        best_P = np.array([self.scores(table_PF) for table_PF in table_KPF]).argmax(axis=0)
        return np.asarray(table_KPF[best_P, np.arange(len(best_P))])

    def scores(self, sums_KF: Array) -> Array:
        """Return F2 of the mean precision and the mean recall over the orders that both sides have."""
        outputs_KO, references_KO, matches_KO = (sums_KF[:, part::3] for part in range(3))
        both_KO = (outputs_KO > 0) & (references_KO > 0)
        orders_K = np.maximum(both_KO.sum(axis=1), 1)
        precision_K, recall_K = np.zeros((2, len(sums_KF)))
        for order in range(CHARACTER_ORDERS):  # one by one, as sacreBLEU adds them, to keep ties
            both_K, matches_K = both_KO[:, order], matches_KO[:, order]
            precision_K += np.where(both_K, matches_K / np.maximum(outputs_KO[:, order], 1), 0)
            recall_K += np.where(both_K, matches_K / np.maximum(references_KO[:, order], 1), 0)
        precision_K, recall_K = precision_K / orders_K, recall_K / orders_K
        weighted_K = 4 * precision_K + recall_K
        return np.asarray(100 * (5 * precision_K * recall_K / np.where(weighted_K > 0, weighted_K, 1)))


def _ngrams(tokens_N: Array, lengths_KP: Array, orders: int) -> Iterator[tuple[Array, Array]]:
    """For each order the J distinct n-grams of all sentences -> the sentence of each J, its count in each text JK.

    `tokens_N` has all outputs first, then each set of references. An n-gram is identified by its last token and the
    number of its prefix, which is the n-gram shorter by one, or the sentence at order 1.
    """
    texts, sentences = lengths_KP.shape
    text_N = np.repeat(np.arange(lengths_KP.size), lengths_KP.ravel())
    end_N = np.cumsum(lengths_KP)[text_N]
    begin, number, size = np.arange(len(tokens_N)), text_N % sentences, tokens_N.max(initial=0) + 1
    for order in range(orders):
        inside = begin + order < end_N[begin]
        begin, number = begin[inside], number[inside]
        distinct, number = np.unique(number * size + tokens_N[begin + order], return_inverse=True)
        text, sentence = np.divmod(text_N[begin], sentences)
        sentence_J = np.empty(len(distinct), np.int64)
        sentence_J[number] = sentence
        times = np.bincount(number * texts + text, minlength=len(distinct) * texts)
        yield sentence_J, times.reshape(-1, texts)


def make_metric(name: str, references: References, *, lowercase: bool = False, tokenizer: str | None = None) -> Metric:
    """Return BLEU or chrF; `tokenizer` is that of BLEU, None to choose by the language of the references."""
    check_name("metric", name, METRICS)
    if name == "chrf":
        return Chrf(lowercase=lowercase)
    name = choose_bleu_tokenizer(references) if tokenizer is None else tokenizer
    return Bleu(tokenizer=name, lowercase=lowercase)


def choose_bleu_tokenizer(references: References) -> str:
    """Return the tokeniser of sacreBLEU for the language of the references: "zh" for Chinese, else "13a"."""
    return "zh" if is_chinese("\n".join(text for texts in references for text in texts)) else "13a"


def is_chinese(text: str) -> bool:
    """Return whether more than `CHINESE_SHARE` of the letters are Chinese characters."""
    if text.isascii():
        return False
    return len(HAN.findall(text)) > CHINESE_SHARE * sum(map(str.isalpha, text))


def check_name(what: str, name: str, known: Sequence[str]) -> None:
    """Raise an error that suggests the closest name unless `name` is known."""
    if name not in known:
        raise unknown_name(what, name, known)


def check_counts(outputs: Sequence[str], references: References) -> None:
    """Raise an error unless there are outputs, and as many references in each set."""
    if not outputs:
        raise DataError("there are no outputs, so there is nothing to measure; give at least one sentence.")
    if not references or isinstance(references[0], str):
        raise DataError("expected one or more sets of references, each with a reference for every output; give a list.")
    for number, texts in enumerate(references, 1):
        if len(texts) != len(outputs):
            which = f"references in set {number}" if len(references) > 1 else "references"
            raise DataError(
                f"there are {len(outputs)} outputs and {len(texts)} {which}: expected equal numbers; give "
                "files with the same number of lines."
            )


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
    a, b = (measure.official.corpus_score(outputs, references).score for outputs in (outputs_a, outputs_b))
    table_a_PF, table_b_PF = (measure.table(outputs, references) for outputs in (outputs_a, outputs_b))
    scores_a_K, scores_b_K = bootstrap(measure, [table_a_PF, table_b_PF], resamples, seed)
    if test == "bootstrap":
        distances_K = np.abs(scores_b_K - scores_a_K)
        distances_K -= distances_K.mean()
    else:
        distances_K = _randomized_distances(measure, table_a_PF, table_b_PF, resamples, seed)
    return PairedResult(
        metric=metric,
        a=a,
        b=b,
        difference=b - a,
        p_value=_p_value(distances_K, abs(b - a)),
        interval=interval(scores_b_K - scores_a_K),
        test=test,
        signature=signature(measure, seed, bs=resamples, ar=resamples if test == "randomization" else None),
    )


def bootstrap(metric: Metric, tables: Sequence[Array], resamples: int = RESAMPLES, seed: int = SEED) -> list[Array]:
    """Score corpora of P sentences drawn with replacement, the same ones for every table PF -> a K for each table."""
    joined_PF = np.concatenate(tables, axis=1)
    sentences = len(joined_PF)
    rng = np.random.default_rng(seed)
    sums = []
    for rows in _pieces(resamples, sentences):
        drawn_KP = rng.integers(sentences, size=(rows, sentences))
        drawn_KP += np.arange(rows)[:, None] * sentences  # so that one bincount serves all resamples
        times_KP = np.bincount(drawn_KP.ravel(), minlength=drawn_KP.size).reshape(drawn_KP.shape)
        sums.append(times_KP.astype(np.float64) @ joined_PF)
    return [metric.scores(sums_KF) for sums_KF in np.split(np.concatenate(sums), len(tables), axis=1)]


def _randomized_distances(metric: Metric, table_a_PF: Array, table_b_PF: Array, resamples: int, seed: int) -> Array:
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


def signature(metric: Metric, seed: int | None = None, *, bs: int | None = None, ar: int | None = None) -> str:
    """Return sacreBLEU's signature of the last score, with the numbers of the bootstrap and the randomisation."""
    line = metric.official.get_signature()
    for name, value in (("bs", bs), ("ar", ar), ("seed", seed)):
        line.update(name, value)
    return str(line)
