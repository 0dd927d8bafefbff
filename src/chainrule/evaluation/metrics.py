"""Scores of a corpus of outputs against references, as functions of counts that are summed over its sentences.

The counts of every sentence are computed once (`Metric.table`). A score of the whole corpus, of a part of it, or of
a resampled one is then a function of summed rows. BLEU and chrF equal those of sacreBLEU.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, ClassVar

import numpy as np

from chainrule.base.arrays import Array
from chainrule.errors import ConfigError, DataError, unknown_name
from chainrule.evaluation.measurement import format_signature

METRICS = ("bleu", "chrf")
BLEU_TOKENIZERS = ("13a", "char", "intl", "none", "zh")
"""The tokenisers of sacreBLEU that need no further package and no download."""

WORD_ORDERS = 4
CHARACTER_ORDERS = 6

HAN = re.compile("[\u3005-\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003fffd]")
"""One Chinese character."""
CHINESE_SHARE = 0.3
"""A text counts as Chinese if more than this share of its letters are Chinese characters."""

_BLOCK = 1 << 18  # characters whose n-grams are counted at once, rounded to whole sentences

References = Sequence[Sequence[str]]
"""Sets of references: references[k][i] is the k-th reference of output i."""


class Metric(ABC):
    """A score of a corpus by counts that are summed over its sentences."""

    lower_is_better: ClassVar[bool] = False

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

    def figures(self, sums_KF: Array) -> dict[str, Array]:
        """Return further figures by name, of which the score is made or which explain it -> K each."""
        return {}

    def corpus_score(self, outputs: Sequence[str], references: References, table_PF: Array) -> float:
        """Return the score of a corpus, whose statistics are `table_PF`."""
        return float(self.scores(table_PF.sum(axis=0)[None])[0])

    @abstractmethod
    def signature(self, sets: int, seed: int | None = None, *, bs: int | None = None, ar: int | None = None) -> str:
        """Return what the score depends on: sets of references, draws of the bootstrap, random assignments, seed."""


class SacreMetric(Metric):
    """A metric of sacreBLEU, which gives the score of the corpus itself and the signature."""

    def __init__(self, official: Any) -> None:
        self.official = official

    def corpus_score(self, outputs: Sequence[str], references: References, table_PF: Array) -> float:
        score: float = self.official.corpus_score(outputs, references).score
        return score

    def signature(self, sets: int, seed: int | None = None, *, bs: int | None = None, ar: int | None = None) -> str:
        self.official.num_refs = sets
        line = self.official.get_signature()
        for name, value in (("bs", bs), ("ar", ar), ("seed", seed)):
            line.update(name, value)
        return str(line)


class WordMetric(Metric):
    """A metric of this package over words or characters; `settings` are the fields of its signature."""

    settings: dict[str, object]

    def signature(self, sets: int, seed: int | None = None, *, bs: int | None = None, ar: int | None = None) -> str:
        drawn = {name: value for name, value in (("bs", bs), ("ar", ar), ("seed", seed)) if value is not None}
        return format_signature({"nrefs": sets, **drawn, **self.settings})


class Bleu(SacreMetric):
    """BLEU. Statistics: lengths of the output and of the closest reference, then matches and n-grams of each order."""

    def __init__(
        self,
        *,
        tokenizer: str = "13a",
        lowercase: bool = False,
        effective_order: bool = False,
        max_order: int = WORD_ORDERS,
    ) -> None:
        from sacrebleu.metrics.bleu import BLEU  # slow to import

        check_name("BLEU tokenizer", tokenizer, BLEU_TOKENIZERS)
        if max_order < 1:
            raise ConfigError(f"the maximum order of BLEU is {max_order}; expected at least 1")
        official = BLEU(
            lowercase=lowercase,
            tokenize=tokenizer,
            effective_order=effective_order,
            max_ngram_order=max_order,
            force=True,
        )
        super().__init__(official)
        self.max_order = max_order
        self._tokenize, self._lowercase, self._effective_order = official.tokenizer, lowercase, effective_order

    def count(self, texts: list[Sequence[str]]) -> Array:
        ids: dict[str, int] = {}
        tokens = [[ids.setdefault(word, len(ids)) for word in self.words(text)] for each in texts for text in each]
        tokens_N = np.array(list(chain(*tokens)), np.int64)
        lengths_KP = np.array([len(each) for each in tokens]).reshape(len(texts), -1)
        matches = [
            np.bincount(sentence_J, np.minimum(times_JK[:, 0], times_JK[:, 1:].max(axis=1)), lengths_KP.shape[1])
            for sentence_J, times_JK in ngram_counts(tokens_N, lengths_KP, self.max_order)
        ]
        ngrams = [np.maximum(0, lengths_KP[0] - order) for order in range(self.max_order)]
        return np.stack([lengths_KP[0], _closest_length(lengths_KP), *matches, *ngrams], axis=1)

    def signature(self, sets: int, seed: int | None = None, *, bs: int | None = None, ar: int | None = None) -> str:
        line = super().signature(sets, seed, bs=bs, ar=ar)
        return line if self.max_order == WORD_ORDERS else f"{line}|order:{self.max_order}"  # sacreBLEU does not say

    def scores(self, sums_KF: Array) -> Array:
        """The geometric mean of the precisions times the brevity penalty.

        The k-th order without a match counts as 1/2^k matches ("exp" smoothing). An order without n-grams makes the
        score 0, or is left out of the mean (effective order).
        """
        precisions_KO, present_KO, brevity_K = self._parts(sums_KF)
        logs_KO = np.log(precisions_KO, where=present_KO, out=np.zeros_like(precisions_KO))
        orders_K = present_KO.sum(axis=1)
        scores_K = np.exp(brevity_K + logs_KO.sum(axis=1) / np.maximum(orders_K, 1))
        matched_K = sums_KF[:, 2 : 2 + self.max_order].any(axis=1)
        return np.where(matched_K & ((orders_K == self.max_order) | self._effective_order), scores_K, 0.0)

    def figures(self, sums_KF: Array) -> dict[str, Array]:
        """The precisions in percent, smoothed as in the score, the brevity penalty, and the ratio of the lengths."""
        precisions_KO, _, brevity_K = self._parts(sums_KF)
        precisions = {f"precision{order}": precisions_KO[:, order - 1] for order in range(1, self.max_order + 1)}
        ratio_K = sums_KF[:, 0] / np.maximum(sums_KF[:, 1], 1)
        return {**precisions, "brevity_penalty": np.exp(brevity_K), "length_ratio": ratio_K}

    def _parts(self, sums_KF: Array) -> tuple[Array, Array, Array]:
        """The precisions in percent, where there are n-grams, and the logarithm of the brevity penalty."""
        length_K1, reference_K1, matches_KO, ngrams_KO = np.split(sums_KF, (1, 2, 2 + self.max_order), axis=1)
        present_KO = ngrams_KO > 0
        missed_KO = present_KO & (matches_KO == 0)
        hits_KO = np.where(missed_KO, 0.5 ** np.cumsum(missed_KO, axis=1), matches_KO)
        brevity_K = np.minimum(1 - reference_K1 / np.maximum(length_K1, 1), 0)[:, 0]
        return 100 * hits_KO / np.maximum(ngrams_KO, 1), present_KO, brevity_K

    def words(self, text: str) -> list[str]:
        """Return the words of a text as the tokeniser splits them."""
        tokenized: str = self._tokenize((text.lower() if self._lowercase else text).rstrip())
        return tokenized.split()


def _closest_length(lengths_KP: Array) -> Array:
    """The length of the reference that is closest in length to the output, the shorter one of a tie -> P."""
    references_KP = np.sort(lengths_KP[1:], axis=0)
    chosen_P = np.abs(references_KP - lengths_KP[0]).argmin(axis=0)
    return np.asarray(references_KP[chosen_P, np.arange(len(chosen_P))])


class Chrf(SacreMetric):
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
        for order, (sentence_J, times_JK) in enumerate(ngram_counts(characters, lengths_KP, CHARACTER_ORDERS)):
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


def ngram_counts(tokens_N: Array, lengths_KP: Array, orders: int) -> Iterator[tuple[Array, Array]]:
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


def make_metric(
    name: str, references: References, *, lowercase: bool = False, tokenizer: str | None = None
) -> SacreMetric:
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
