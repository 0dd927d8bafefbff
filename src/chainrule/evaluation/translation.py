"""The measures of translations, summaries and other texts made from texts, against one or more references.

BLEU and chrF are sacreBLEU's, ROUGE-1 and ROUGE-2 are rouge_score's. ROUGE-L equals rouge_score's, whose table of all
pairs of words has no room for a long text. Each figure comes with the signature that says how it was made.

Legend: N sentences, K resamples, S statistics of a sentence.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any, NamedTuple

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
    fitting_tokenizer,
    interval,
    signature,
)


@dataclass(frozen=True)
class Measures:
    """Outputs measured against references: BLEU, chrF and ROUGE from 0 to 100, exact match from 0 to 1."""

    bleu: float
    bleu_lowercase: float
    chrf: float
    rouge1: float  # F1, the mean over sentences
    rouge2: float
    rougeL: float
    exact_match: float  # the share of outputs that equal a reference
    bleu_interval: tuple[float, float]  # 95%
    chrf_interval: tuple[float, float]
    bleu_signature: str
    bleu_lowercase_signature: str
    chrf_signature: str
    rouge_signature: str
    sentences: int

    def to_dict(self) -> dict[str, Any]:
        """All of it as JSON values."""
        return asdict(self)


def measure(
    outputs: Sequence[str],
    references: References,
    *,
    lowercase: bool = False,
    tokenizer: str | None = None,
    resamples: int = RESAMPLES,
    seed: int = SEED,
) -> Measures:
    """Measure N outputs against sets of N references each: references[r][i] is the r-th one for output i.

    `lowercase` takes BLEU, chrF and exact match without regard to case. `tokenizer` is sacreBLEU's for BLEU: one of
    `BLEU_TOKENIZERS`, or None for the one that fits the references.
    """
    check_counts(outputs, references)
    name = fitting_tokenizer(references) if tokenizer is None else tokenizer
    bleu = _measured(Bleu(tokenizer=name, lowercase=lowercase), outputs, references, resamples, seed)
    chrf = _measured(Chrf(lowercase=lowercase), outputs, references, resamples, seed)
    folded = Bleu(tokenizer=name, lowercase=True)
    return Measures(
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


class _Measured(NamedTuple):
    score: float
    interval: tuple[float, float]
    signature: str


def _measured(metric: Metric, outputs: Sequence[str], references: References, resamples: int, seed: int) -> _Measured:
    """The figure by sacreBLEU itself, and its interval by the bootstrap."""
    score = metric.official.corpus_score(outputs, references).score
    (scores_K,) = bootstrap(metric, [metric.table(outputs, references)], resamples, seed)
    return _Measured(score, interval(scores_K), signature(metric, seed, bs=resamples))


def _exact_match(outputs: Sequence[str], references: References, lowercase: bool) -> float:
    """The share of outputs that are one of their references, but for white space around them."""

    def shown(text: str) -> str:
        return text.strip().lower() if lowercase else text.strip()

    equal = [shown(output) in map(shown, own) for output, *own in zip(outputs, *references, strict=True)]
    return sum(equal) / len(equal)


def _rouge(outputs: Sequence[str], references: References) -> dict[str, float]:
    """F1 times 100 of each kind, the mean over sentences; of several references the best counts."""
    from rouge_score.rouge_scorer import RougeScorer  # slow to import

    tokenizer = WordTokenizer()
    scorer = RougeScorer(["rouge1", "rouge2"], tokenizer=tokenizer)
    sums = dict.fromkeys(("rouge1", "rouge2", "rougeL"), 0.0)
    for output, *own in zip(outputs, *references, strict=True):
        for kind, score in scorer.score_multi(own, output).items():
            sums[kind] += score.fmeasure
        words = tokenizer.tokenize(output)
        sums["rougeL"] += max(rouge_l(words, places_of(tokenizer.tokenize(reference))) for reference in own)
    return {kind: 100 * total / len(outputs) for kind, total in sums.items()}


def _rouge_signature(sets: int) -> str:
    return f"nrefs:{sets}|case:lc|stemmer:no|tok:{WordTokenizer.signature}|rouge_score:{version('rouge_score')}"


class WordTokenizer:
    """Words for ROUGE in any language: lower-cased runs of letters, marks and digits; each Chinese character is a word.

    rouge_score's own drops every letter that is not ASCII, so that "für" becomes "f", "r" and Chinese becomes nothing.
    On ASCII text the two are equal.
    """

    signature = "unicode-words+han-characters"

    def tokenize(self, text: str) -> list[str]:
        """The words of a text."""
        return text.lower().translate(_SPACED).split()


class _Spaced(dict[int, str]):
    """What to write for a character (by its code) so that words stand between spaces; filled as characters come up."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        if HAN.match(character):
            spaced = f" {character} "
        else:
            spaced = character if unicodedata.category(character)[0] in "LMN" else " "
        self[code] = spaced
        return spaced


_SPACED = _Spaced()


class Places(NamedTuple):
    """Where in a text each of its words stands: bit i of bits[word] is set if word i is this one."""

    bits: dict[str, int]
    length: int


def places_of(words: Sequence[str]) -> Places:
    """The places of the words of a text."""
    bits: dict[str, int] = {}
    for place, word in enumerate(words):
        bits[word] = bits.get(word, 0) | 1 << place
    return Places(bits, len(words))


def rouge_l(words: Sequence[str], reference: Places) -> float:
    """F1 of the longest common subsequence of words, 0 to 1."""
    return 2 * _common(words, reference) / max(1, len(words) + reference.length)


def _common(words: Sequence[str], other: Places) -> int:
    """The length of the longest common subsequence, a whole row of its table at a time (Hyyrö, 2004).

    A bit of `flat` is 0 where the row rises by one from the column before, so the zeros of the last row are its sum.
    """
    every = (1 << other.length) - 1
    flat = every
    for word in words:
        hits = flat & other.bits.get(word, 0)
        flat = (flat + hits | flat - hits) & every
    return other.length - flat.bit_count()
