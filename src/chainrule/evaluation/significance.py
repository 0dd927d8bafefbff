"""What chance may have done to a BLEU or chrF: intervals of one system, and tests between two.

Both measures of a corpus are functions of counts summed over its sentences, so the counts are taken once, and every
resampled corpus is one row of a matrix product. The counts give sacreBLEU's figures, and the random numbers are drawn
as sacreBLEU draws them, so that intervals and p-values can be made again with it.

    bootstrap       Koehn (2004), Statistical Significance Tests for Machine Translation Evaluation; p as in sacreBLEU
    randomization   Riezler & Maxwell (2005), On Some Pitfalls in Automatic Evaluation and Significance Testing for MT

Legend: N sentences, K resamples, S statistics of a sentence, O orders of n-grams; R the texts of a sentence, its output
first; P places in all texts, G distinct n-grams of all sentences.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any

import numpy as np

from chainrule.errors import ConfigError, DataError, unknown_name

METRICS = ("bleu", "chrf")
TESTS = ("bootstrap", "randomization")
BLEU_TOKENIZERS = ("13a", "char", "intl", "none", "zh")
"""Those of sacreBLEU's that need no further package and no download."""

WORD_ORDERS = 4
CHARACTER_ORDERS = 6
RESAMPLES = 1000
SEED = 12345

HAN = re.compile("[\u3005-\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003fffd]")
"""One Chinese character."""
CHINESE_SHARE = 0.3
"""A text is Chinese if more than this share of its letters are Chinese characters."""

_TIE = 1e-9  # scores of the same counts may differ in their last bits
_BLOCK = 1 << 18  # characters whose n-grams are counted at once, but for whole sentences
_CELLS = 1 << 22  # of the matrix of resamples that is held at once

Array = np.ndarray[Any, Any]
References = Sequence[Sequence[str]]
"""Sets of references: references[r][i] is the r-th one for output i."""


class Metric(ABC):
    """A measure of a corpus by counts that are summed over its sentences."""

    def __init__(self, official: Any) -> None:
        self.official = official  # sacreBLEU's own

    def table(self, outputs: Sequence[str], references: References) -> Array:
        """The statistics of all sentences -> NS, whole numbers as float64. Memory is bounded by counting in blocks."""
        texts = [outputs, *references]
        characters = np.cumsum([sum(map(len, each)) for each in zip(*texts, strict=True)])
        ends = (np.flatnonzero(np.diff(characters // _BLOCK, append=-1)) + 1).tolist()
        blocks = zip([0, *ends], ends, strict=False)
        return np.concatenate([self.count([each[begin:end] for each in texts]) for begin, end in blocks])

    @abstractmethod
    def count(self, texts: list[Sequence[str]]) -> Array:
        """The statistics of some sentences: texts[0] are the outputs, the others sets of references -> NS."""

    @abstractmethod
    def scores(self, sums_KS: Array) -> Array:
        """The measure, 0 to 100, of each of K summed rows of statistics -> K."""


class Bleu(Metric):
    """BLEU. Statistics: tokens of the output and of the nearest reference, then matches and n-grams of each order."""

    def __init__(self, *, tokenizer: str = "13a", lowercase: bool = False, effective_order: bool = False) -> None:
        from sacrebleu.metrics.bleu import BLEU  # slow to import

        check_name("BLEU tokenizer", tokenizer, BLEU_TOKENIZERS)
        super().__init__(BLEU(lowercase=lowercase, tokenize=tokenizer, effective_order=effective_order, force=True))
        self._tokenize, self._lowercase, self._effective_order = self.official.tokenizer, lowercase, effective_order

    def count(self, texts: list[Sequence[str]]) -> Array:
        ids: dict[str, int] = {}
        tokens = [[ids.setdefault(word, len(ids)) for word in self._words(text)] for each in texts for text in each]
        lengths_RN = np.array([len(each) for each in tokens]).reshape(len(texts), -1)
        matches = [
            np.bincount(sentence_G, np.minimum(times_GR[:, 0], times_GR[:, 1:].max(axis=1)), lengths_RN.shape[1])
            for sentence_G, times_GR in _ngrams(np.array(list(chain(*tokens)), np.int64), lengths_RN, WORD_ORDERS)
        ]
        ngrams = [np.maximum(0, lengths_RN[0] - order) for order in range(WORD_ORDERS)]
        return np.stack([lengths_RN[0], _nearest(lengths_RN), *matches, *ngrams], axis=1)

    def scores(self, sums_KS: Array) -> Array:
        """The geometric mean of the precisions times the brevity penalty.

        The k-th order without a match counts as 1/2^k of one ("exp" smoothing). An order without n-grams makes the
        score 0, or is left out of the mean (effective order).
        """
        length_K1, reference_K1, matches_KO, ngrams_KO = np.split(sums_KS, (1, 2, 2 + WORD_ORDERS), axis=1)
        present_KO = ngrams_KO > 0
        missed_KO = present_KO & (matches_KO == 0)
        hits_KO = np.where(missed_KO, 0.5 ** np.cumsum(missed_KO, axis=1), matches_KO)
        logs_KO = np.log(100 * hits_KO / np.maximum(ngrams_KO, 1), where=present_KO, out=np.zeros_like(hits_KO))
        orders_K = present_KO.sum(axis=1)
        shortness_K = np.minimum(1 - reference_K1 / np.maximum(length_K1, 1), 0)[:, 0]
        scores_K = np.exp(shortness_K + logs_KO.sum(axis=1) / np.maximum(orders_K, 1))
        worthless_K = ~matches_KO.any(axis=1) | ((orders_K < WORD_ORDERS) & (not self._effective_order))
        return np.where(worthless_K, 0.0, scores_K)

    def _words(self, text: str) -> list[str]:
        tokenized: str = self._tokenize((text.lower() if self._lowercase else text).rstrip())
        return tokenized.split()


def _nearest(lengths_RN: Array) -> Array:
    """The length of the reference that is nearest to the output's, the shorter of two as near -> N."""
    references_RN = np.sort(lengths_RN[1:], axis=0)
    chosen_N = np.abs(references_RN - lengths_RN[0]).argmin(axis=0)
    return np.asarray(references_RN[chosen_N, np.arange(len(chosen_N))])


class Chrf(Metric):
    """chrF. Statistics: n-grams of the output, of the best reference, and matches, for each order in turn."""

    def __init__(self, *, lowercase: bool = False) -> None:
        from sacrebleu.metrics.chrf import CHRF  # slow to import

        super().__init__(CHRF(lowercase=lowercase))
        self._lowercase = lowercase

    def count(self, texts: list[Sequence[str]]) -> Array:
        lines = ["".join((text.lower() if self._lowercase else text).split()) for each in texts for text in each]
        lengths_RN = np.array([len(line) for line in lines]).reshape(len(texts), -1)
        characters = np.frombuffer("".join(lines).encode("utf-32-le", "surrogatepass"), np.uint32).astype(np.int64)
        table_RNS = np.zeros((len(texts) - 1, lengths_RN.shape[1], 3 * CHARACTER_ORDERS))
        for order, (sentence_G, times_GR) in enumerate(_ngrams(characters, lengths_RN, CHARACTER_ORDERS)):
            output_N, *others = np.maximum(0, lengths_RN - order)
            for reference, other_N in enumerate(others):
                matches_G = np.minimum(times_GR[:, 0], times_GR[:, 1 + reference])
                matches_N = np.bincount(sentence_G, matches_G, len(other_N))
                # What a reference is too short for is not held against the output.
                counted = np.where(other_N > 0, output_N, 0), other_N, matches_N
                table_RNS[reference, :, 3 * order : 3 * order + 3] = np.stack(counted, axis=1)
        best_N = np.array([self.scores(table_NS) for table_NS in table_RNS]).argmax(axis=0)
        return np.asarray(table_RNS[best_N, np.arange(len(best_N))])

    def scores(self, sums_KS: Array) -> Array:
        """F2 of the mean precision and the mean recall over the orders that both sides have."""
        outputs_KO, references_KO, matches_KO = (sums_KS[:, part::3] for part in range(3))
        both_KO = (outputs_KO > 0) & (references_KO > 0)
        orders_K = np.maximum(both_KO.sum(axis=1), 1)
        precision_K, recall_K = np.zeros((2, len(sums_KS)))
        for order in range(CHARACTER_ORDERS):  # one by one as sacreBLEU adds them, so that ties stay ties
            both_K, matches_K = both_KO[:, order], matches_KO[:, order]
            precision_K += np.where(both_K, matches_K / np.maximum(outputs_KO[:, order], 1), 0)
            recall_K += np.where(both_K, matches_K / np.maximum(references_KO[:, order], 1), 0)
        precision_K, recall_K = precision_K / orders_K, recall_K / orders_K
        weighted_K = 4 * precision_K + recall_K
        return np.asarray(100 * (5 * precision_K * recall_K / np.where(weighted_K > 0, weighted_K, 1)))


def _ngrams(tokens_P: Array, lengths_RN: Array, orders: int) -> Iterator[tuple[Array, Array]]:
    """For each order in turn the distinct n-grams of every sentence -> whose each is G, how often each text has it GR.

    `tokens_P` has first all outputs, then each set of references. An n-gram is known by its last token and by a number
    for what stands before that: the one of the n-gram that is shorter by one, at first that of the sentence.
    """
    texts, sentences = lengths_RN.shape
    text_P = np.repeat(np.arange(lengths_RN.size), lengths_RN.ravel())
    end_P = np.cumsum(lengths_RN)[text_P]
    begin, number, size = np.arange(len(tokens_P)), text_P % sentences, tokens_P.max(initial=0) + 1
    for order in range(orders):
        inside = begin + order < end_P[begin]
        begin, number = begin[inside], number[inside]
        distinct, number = np.unique(number * size + tokens_P[begin + order], return_inverse=True)
        text, sentence = np.divmod(text_P[begin], sentences)
        sentence_G = np.empty(len(distinct), np.int64)
        sentence_G[number] = sentence
        times = np.bincount(number * texts + text, minlength=len(distinct) * texts)
        yield sentence_G, times.reshape(-1, texts)


def make_metric(name: str, references: References, *, lowercase: bool = False, tokenizer: str | None = None) -> Metric:
    """BLEU or chrF; without a `tokenizer` BLEU takes the one that fits the references."""
    check_name("metric", name, METRICS)
    if name == "chrf":
        return Chrf(lowercase=lowercase)
    name = fitting_tokenizer(references) if tokenizer is None else tokenizer
    return Bleu(tokenizer=name, lowercase=lowercase)


def fitting_tokenizer(references: References) -> str:
    """sacreBLEU's tokeniser for the language of the references: "zh" for Chinese, else "13a"."""
    return "zh" if is_chinese("\n".join(text for texts in references for text in texts)) else "13a"


def is_chinese(text: str) -> bool:
    """Whether more than `CHINESE_SHARE` of the letters are Chinese characters."""
    if text.isascii():
        return False
    return len(HAN.findall(text)) > CHINESE_SHARE * sum(map(str.isalpha, text))


def check_name(what: str, name: str, known: Sequence[str]) -> None:
    """An error that suggests the nearest name, unless it is one of those known."""
    if name not in known:
        raise unknown_name(what, name, known)


def check_counts(outputs: Sequence[str], references: References) -> None:
    """An error unless there are outputs, and in each set as many references."""
    if not outputs:
        raise DataError("there are no outputs, so there is nothing to measure; give at least one sentence.")
    if not references or isinstance(references[0], str):
        raise DataError("expected one or more sets of references, each with a reference for every output; give a list.")
    for number, texts in enumerate(references, 1):
        if len(texts) != len(outputs):
            which = f"references in set {number}" if len(references) > 1 else "references"
            raise DataError(
                f"there are {len(outputs)} outputs and {len(texts)} {which}: expected as many of one as of the other; "
                "give files with the same number of lines."
            )


@dataclass(frozen=True)
class Paired:
    """Two systems on the same sentences. `difference` is b - a: above 0, b is the better one."""

    metric: str
    a: float
    b: float
    difference: float
    p_value: float  # how probable a difference as large is if the systems do not differ
    interval: tuple[float, float]  # 95%, of the difference
    test: str
    signature: str

    def to_dict(self) -> dict[str, Any]:
        """All of it as JSON values."""
        return asdict(self)


def paired(
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
) -> Paired:
    """Test whether two systems differ in corpus BLEU or chrF by more than the choice of sentences explains."""
    check_name("test", test, TESTS)
    for outputs in (outputs_a, outputs_b):
        check_counts(outputs, references)
    measure = make_metric(metric, references, lowercase=lowercase, tokenizer=tokenizer)
    a, b = (measure.official.corpus_score(outputs, references).score for outputs in (outputs_a, outputs_b))
    table_a_NS, table_b_NS = (measure.table(outputs, references) for outputs in (outputs_a, outputs_b))
    scores_a_K, scores_b_K = bootstrap(measure, [table_a_NS, table_b_NS], resamples, seed)
    if test == "bootstrap":
        distances_K = np.abs(scores_b_K - scores_a_K)
        distances_K -= distances_K.mean()
    else:
        distances_K = _randomized(measure, table_a_NS, table_b_NS, resamples, seed)
    return Paired(
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
    """Score corpora of N sentences drawn with replacement, the same ones for every table NS -> one K for each."""
    joined_NS = np.concatenate(tables, axis=1)
    sentences = len(joined_NS)
    rng = np.random.default_rng(seed)
    sums = []
    for rows in _pieces(resamples, sentences):
        drawn_KN = rng.integers(sentences, size=(rows, sentences))
        drawn_KN += np.arange(rows)[:, None] * sentences  # so that one count serves all resamples
        times_KN = np.bincount(drawn_KN.ravel(), minlength=drawn_KN.size).reshape(drawn_KN.shape)
        sums.append(times_KN.astype(np.float64) @ joined_NS)
    return [metric.scores(sums_KS) for sums_KS in np.split(np.concatenate(sums), len(tables), axis=1)]


def _randomized(metric: Metric, table_a_NS: Array, table_b_NS: Array, resamples: int, seed: int) -> Array:
    """How far apart two systems are that got each sentence's two outputs at random, one each -> K."""
    rng = np.random.default_rng(seed)
    apart_NS, total_S = table_a_NS - table_b_NS, (table_a_NS + table_b_NS).sum(axis=0)
    sums = []
    for rows in _pieces(resamples, len(apart_NS)):
        kept_KN = rng.integers(2, size=(rows, len(apart_NS)), dtype=bool)
        sums.append(kept_KN @ apart_NS)
    first_KS = table_b_NS.sum(axis=0) + np.concatenate(sums)
    return np.asarray(np.abs(metric.scores(first_KS) - metric.scores(total_S - first_KS)))


def _pieces(resamples: int, sentences: int) -> Iterator[int]:
    """How many resamples to draw at a time. Multiples of 32 draw the same random bits as all of them at once would."""
    if resamples < 1:
        raise ConfigError(f"resamples is {resamples}, but an interval needs at least 1; 1000 is usual.")
    size = max(1, _CELLS // sentences // 32) * 32
    for begin in range(0, resamples, size):
        yield min(size, resamples - begin)


def interval(scores_K: Array) -> tuple[float, float]:
    """The bounds that leave out 2.5% of the scores on either side."""
    ordered = np.sort(scores_K)
    beyond = len(ordered) // 40
    return float(ordered[beyond]), float(ordered[-1 - beyond])


def _p_value(distances_K: Array, distance: float) -> float:
    """The share of chance results at least as far out as the one observed, which counts as one of them."""
    return (int((distances_K >= distance - _TIE).sum()) + 1) / (len(distances_K) + 1)


def signature(metric: Metric, seed: int | None = None, *, bs: int | None = None, ar: int | None = None) -> str:
    """sacreBLEU's signature of the figure last measured, with the bootstrap and randomisation if there were any."""
    made = metric.official.get_signature()
    for name, value in (("bs", bs), ("ar", ar), ("seed", seed)):
        made.update(name, value)
    return str(made)
