"""ROUGE-N and ROUGE-L of outputs against references, with precision, recall and F1. Lin (2004), ROUGE.

The figures of each sentence equal those of rouge_score on ASCII text; of several references the one with the best F1
counts. `pooled_recall` is the formula of the paper: matched n-grams of all references over all their n-grams.
ROUGE-L needs little memory for long texts, where rouge_score builds a table of all pairs of words.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from chainrule.base.arrays import Array
from chainrule.errors import ConfigError
from chainrule.evaluation.metrics import HAN, WordMetric, ngram_counts


class _Rouge(WordMetric):
    """Statistics: F1, precision and recall of each sentence, 1 for the sentence, matches and units of references."""

    def __init__(self) -> None:
        self.settings = {"case": "lc", "stemmer": "no", "tok": WordTokenizer.signature}
        self._tokenize = WordTokenizer().tokenize

    def count(self, texts: list[Sequence[str]]) -> Array:
        matches_KP, output_P, units_KP = self.matches([list(map(self._tokenize, each)) for each in texts])
        precision_KP = matches_KP / np.maximum(output_P, 1)
        recall_KP = matches_KP / np.maximum(units_KP, 1)
        f1_KP = 2 * precision_KP * recall_KP / np.maximum(precision_KP + recall_KP, 1e-300)
        sentence_P = np.arange(len(output_P))
        best_P = f1_KP.argmax(axis=0)
        chosen = [part_KP[best_P, sentence_P] for part_KP in (f1_KP, precision_KP, recall_KP)]
        return np.stack([*chosen, np.ones(len(output_P)), matches_KP.sum(axis=0), units_KP.sum(axis=0)], axis=1)

    def matches(self, words: list[list[list[str]]]) -> tuple[Array, Array, Array]:
        """Return matches with each reference KP, units of the outputs P, and units of each reference KP."""
        raise TypeError(f"{type(self).__name__} must define matches")

    def scores(self, sums_KF: Array) -> Array:
        """Return the mean F1 of the sentences."""
        return np.asarray(100 * sums_KF[:, 0] / sums_KF[:, 3])

    def figures(self, sums_KF: Array) -> dict[str, Array]:
        """Mean recall and precision of the sentences, and the recall of all n-grams of all references."""
        return {
            "recall": 100 * sums_KF[:, 2] / sums_KF[:, 3],
            "precision": 100 * sums_KF[:, 1] / sums_KF[:, 3],
            "pooled_recall": 100 * sums_KF[:, 4] / np.maximum(sums_KF[:, 5], 1),
        }


class RougeN(_Rouge):
    """ROUGE-N: n-grams of words that an output and its reference share."""

    def __init__(self, order: int) -> None:
        super().__init__()
        if order < 1:
            raise ConfigError(f"the order of ROUGE-N is {order}; expected at least 1")
        self.order = order

    def matches(self, words: list[list[list[str]]]) -> tuple[Array, Array, Array]:
        ids: dict[str, int] = {}
        tokens = [ids.setdefault(word, len(ids)) for each in words for text in each for word in text]
        lengths_KP = np.array([[len(text) for text in each] for each in words])
        *_, (sentence_J, times_JK) = ngram_counts(np.array(tokens, np.int64), lengths_KP, self.order)
        shared_JK = np.minimum(times_JK[:, :1], times_JK[:, 1:])
        matches_KP = np.stack([np.bincount(sentence_J, shared_J, lengths_KP.shape[1]) for shared_J in shared_JK.T])
        units_KP = np.maximum(0, lengths_KP - self.order + 1)
        return matches_KP, units_KP[0], units_KP[1:]


class RougeL(_Rouge):
    """ROUGE-L: the longest common subsequence of words."""

    def matches(self, words: list[list[list[str]]]) -> tuple[Array, Array, Array]:
        outputs, *references = words
        matches_KP = [
            [_common_length(text, index_words(own)) for text, own in zip(outputs, each, strict=True)]
            for each in references
        ]
        lengths_KP = np.array([[len(text) for text in each] for each in words])
        return np.array(matches_KP), lengths_KP[0], lengths_KP[1:]


class WordTokenizer:
    """Words for ROUGE in any language: lower-cased runs of letters, marks and digits; each Chinese character is a word.

    The tokeniser of rouge_score drops every non-ASCII letter: "für" becomes "f", "r", and Chinese text has no words.
    On ASCII text the two are equal.
    """

    signature = "unicode-words+han-characters"

    def tokenize(self, text: str) -> list[str]:
        """Return the words of a text."""
        return text.lower().translate(_SPACING).split()


class _SpacingTable(dict[int, str]):
    """For each character code the text that puts spaces between words; filled when a character first occurs."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        if HAN.match(character):
            spaced = f" {character} "
        else:
            spaced = character if unicodedata.category(character)[0] in "LMN" else " "
        self[code] = spaced
        return spaced


_SPACING = _SpacingTable()


class WordIndex(NamedTuple):
    """The positions of each word of a text: bit i of bits[word] is set if it is the i-th word."""

    bits: dict[str, int]
    length: int


def index_words(words: Sequence[str]) -> WordIndex:
    """Return the positions of the words of a text."""
    bits: dict[str, int] = {}
    for position, word in enumerate(words):
        bits[word] = bits.get(word, 0) | 1 << position
    return WordIndex(bits, len(words))


def rouge_l(words: Sequence[str], reference: WordIndex) -> float:
    """Return F1 of the longest common subsequence of words, 0 to 1."""
    return 2 * _common_length(words, reference) / max(1, len(words) + reference.length)


def _common_length(words: Sequence[str], other: WordIndex) -> int:
    """The length of the longest common subsequence, by a whole row of its table at a time (Hyyrö, 2004).

    A bit of `flat` is 0 where the row is one larger than in the column before: the zeros of the last row add up to the
    length.
    """
    every = (1 << other.length) - 1
    flat = every
    for word in words:
        hits = flat & other.bits.get(word, 0)
        flat = (flat + hits | flat - hits) & every
    return other.length - flat.bit_count()
