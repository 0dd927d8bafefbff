"""Scores of translations, summaries and other generated texts against one or more references.

BLEU and chrF are computed by sacreBLEU, ROUGE-1 and ROUGE-2 by rouge_score. ROUGE-L equals that of rouge_score, but
needs little memory for long texts, where rouge_score builds a table of all pairs of words. Each score has a signature.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import NamedTuple

from chainrule.evaluation.measurement import Measurement
from chainrule.evaluation.significance import (
    HAN,
    RESAMPLES,
    SEED,
    Bleu,
    Chrf,
    Metric,
    References,
    bootstrap,
    check_counts,
    choose_bleu_tokenizer,
    interval,
    signature,
)


@dataclass(frozen=True)
class TranslationScores(Measurement):
    """Scores of outputs against references: BLEU, chrF and ROUGE from 0 to 100, exact match from 0 to 1."""

    bleu: float
    bleu_lowercase: float
    chrf: float
    rouge1: float  # F1, mean over sentences
    rouge2: float
    rougeL: float
    exact_match: float  # share of outputs that equal a reference
    bleu_interval: tuple[float, float]  # 95%
    chrf_interval: tuple[float, float]
    bleu_signature: str
    bleu_lowercase_signature: str
    chrf_signature: str
    rouge_signature: str
    sentences: int


def measure(
    outputs: Sequence[str],
    references: References,
    *,
    lowercase: bool = False,
    tokenizer: str | None = None,
    resamples: int = RESAMPLES,
    seed: int = SEED,
) -> TranslationScores:
    """Score outputs against sets of references: references[k][i] is the k-th reference of output i.

    `lowercase` ignores case in BLEU, chrF and exact match. `tokenizer` is the tokeniser that sacreBLEU uses for BLEU:
    one of `BLEU_TOKENIZERS`, or None to choose by the language of the references.
    """
    check_counts(outputs, references)
    name = choose_bleu_tokenizer(references) if tokenizer is None else tokenizer
    bleu = _corpus_score(Bleu(tokenizer=name, lowercase=lowercase), outputs, references, resamples, seed)
    chrf = _corpus_score(Chrf(lowercase=lowercase), outputs, references, resamples, seed)
    folded = Bleu(tokenizer=name, lowercase=True)
    return TranslationScores(
        bleu=bleu.score,
        bleu_lowercase=folded.official.corpus_score(outputs, references).score,
        chrf=chrf.score,
        **_rouge(outputs, references),
        exact_match=_exact_match(outputs, references, lowercase),
        bleu_interval=bleu.interval,
        chrf_interval=chrf.interval,
        bleu_signature=bleu.signature,
        bleu_lowercase_signature=signature(folded),
        chrf_signature=chrf.signature,
        rouge_signature=_rouge_signature(len(references)),
        sentences=len(outputs),
    )


class _CorpusScore(NamedTuple):
    score: float
    interval: tuple[float, float]
    signature: str


def _corpus_score(
    metric: Metric, outputs: Sequence[str], references: References, resamples: int, seed: int
) -> _CorpusScore:
    """The score by sacreBLEU itself, and its interval by the bootstrap."""
    score = metric.official.corpus_score(outputs, references).score
    (scores_K,) = bootstrap(metric, [metric.table(outputs, references)], resamples, seed)
    return _CorpusScore(score, interval(scores_K), signature(metric, seed, bs=resamples))


def _exact_match(outputs: Sequence[str], references: References, lowercase: bool) -> float:
    """The share of outputs that equal one of their references, ignoring surrounding white space."""

    def normalise(text: str) -> str:
        return text.strip().lower() if lowercase else text.strip()

    equal = [normalise(output) in map(normalise, own) for output, *own in zip(outputs, *references, strict=True)]
    return sum(equal) / len(equal)


def _rouge(outputs: Sequence[str], references: References) -> dict[str, float]:
    """F1 times 100 of each kind, mean over sentences; of several references the best one counts."""
    from rouge_score.rouge_scorer import RougeScorer  # slow to import

    tokenizer = WordTokenizer()
    scorer = RougeScorer(["rouge1", "rouge2"], tokenizer=tokenizer)
    sums = dict.fromkeys(("rouge1", "rouge2", "rougeL"), 0.0)
    for output, *own in zip(outputs, *references, strict=True):
        for kind, score in scorer.score_multi(own, output).items():
            sums[kind] += score.fmeasure
        words = tokenizer.tokenize(output)
        sums["rougeL"] += max(rouge_l(words, index_words(tokenizer.tokenize(reference))) for reference in own)
    return {kind: 100 * total / len(outputs) for kind, total in sums.items()}


def _rouge_signature(sets: int) -> str:
    return f"nrefs:{sets}|case:lc|stemmer:no|tok:{WordTokenizer.signature}|rouge_score:{version('rouge_score')}"


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
