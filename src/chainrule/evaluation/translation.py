"""Scores of translations, summaries and other generated texts against one or more references.

BLEU and chrF are computed by sacreBLEU; ROUGE equals that of rouge_score. Each score has a signature.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from chainrule.evaluation.edits import ExactMatch
from chainrule.evaluation.measurement import Measurement
from chainrule.evaluation.metrics import (
    Bleu,
    Chrf,
    Metric,
    References,
    check_counts,
    choose_bleu_tokenizer,
)
from chainrule.evaluation.rouge import RougeL, RougeN
from chainrule.evaluation.significance import RESAMPLES, SEED, bootstrap, interval


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
    rouge: dict[str, Metric] = {"rouge1": RougeN(1), "rouge2": RougeN(2), "rougeL": RougeL()}
    return TranslationScores(
        bleu=bleu.score,
        bleu_lowercase=folded.official.corpus_score(outputs, references).score,
        chrf=chrf.score,
        **{name: _score(metric, outputs, references) for name, metric in rouge.items()},
        exact_match=_score(ExactMatch(lowercase=lowercase), outputs, references) / 100,
        bleu_interval=bleu.interval,
        chrf_interval=chrf.interval,
        bleu_signature=bleu.signature,
        bleu_lowercase_signature=folded.signature(len(references)),
        chrf_signature=chrf.signature,
        rouge_signature=rouge["rougeL"].signature(len(references)),
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
    table_PF = metric.table(outputs, references)
    (scores_K,) = bootstrap(metric, [table_PF], resamples, seed)
    score = metric.corpus_score(outputs, references, table_PF)
    return _CorpusScore(score, interval(scores_K), metric.signature(len(references), seed, bs=resamples))


def _score(metric: Metric, outputs: Sequence[str], references: References) -> float:
    return metric.corpus_score(outputs, references, metric.table(outputs, references))
