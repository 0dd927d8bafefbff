"""Rescoring of n-best lists: another program's score, plus a weighted log p of a language model and a word penalty.

    total = score + weight · log p(text) + word_penalty · words

Lists are lines `id ||| text ||| score` (Moses adds features before the score, and an alignment after it) or JSON lines
with `id`, `text` and `score`. Lines with one id form a list. The two weights can be fitted on lists with references:
a grid over both, refined around its best point.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from chainrule.base.arrays import Array
from chainrule.errors import DataError
from chainrule.evaluation.edits import WordErrorRate
from chainrule.evaluation.metrics import Bleu, Metric, choose_bleu_tokenizer
from chainrule.inference.score import score_lines
from chainrule.inference.subject import TextModel
from chainrule.inference.unknown_words import UNK_ONLY, UnknownWords

SEPARATOR = "|||"
MetricName = Literal["wer", "bleu"]

WEIGHTS = (0.0, *(0.01 * 1.5**step for step in range(18)))
PENALTIES = tuple(0.5 * step for step in range(-12, 13))
REFINEMENTS = 4


@dataclass(frozen=True)
class Candidate:
    """One hypothesis of an n-best list."""

    id: str
    text: str
    score: float
    log_prob: float | None = None  # of the language model, in nats; None: not scored yet
    given: float | None = None  # the score before rescoring
    source: tuple[str, ...] | Mapping[str, Any] = ()  # the fields or the object it was read from

    def __str__(self) -> str:
        """The candidate in the format it was read from."""
        if isinstance(self.source, Mapping):
            return json.dumps({**self.source, "score": self.score, "log_prob": self.log_prob}, ensure_ascii=False)
        fields = list(self.source or (self.id, self.text, ""))
        fields[2 if len(fields) == 3 else 3] = f"{self.score:.6g}"
        return f" {SEPARATOR} ".join(fields)


@dataclass(frozen=True)
class Rescoring:
    """Weights of a rescoring, and the metric that they reach on the lists they were fitted on."""

    weight: float
    word_penalty: float
    metric: str
    before: float  # of the order given
    after: float
    lists: int


def read_candidates(lines: Iterable[str]) -> Iterator[Candidate]:
    """Yield the candidates of an n-best file; empty lines are skipped."""
    for number, line in enumerate(lines, start=1):
        if line.strip():
            yield _from_json(line, number) if line.lstrip().startswith("{") else _from_fields(line, number)


def is_nbest_line(line: str) -> bool:
    """Whether a line is `id ||| text ||| score`, features before the score and an alignment after it allowed."""
    try:
        return SEPARATOR in line and bool(_from_fields(line, 1))
    except DataError:
        return False


def _from_fields(line: str, number: int) -> Candidate:
    fields = tuple(field.strip() for field in line.split(SEPARATOR))
    try:
        score = float(fields[2 if len(fields) == 3 else 3])
    except (IndexError, ValueError):
        raise DataError(
            f"line {number} of the n-best list is {line[:60]!r}; expected `id ||| text ||| score` or JSON"
        ) from None
    return Candidate(fields[0], fields[1], score, source=fields)


def _from_json(line: str, number: int) -> Candidate:
    try:
        values = json.loads(line)
        return Candidate(str(values["id"]), str(values["text"]), float(values["score"]), source=values)
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError):
        raise DataError(
            f"line {number} of the n-best list is {line[:60]!r}; expected an object with id, text and score"
        ) from None


def group_candidates(candidates: Iterable[Candidate]) -> list[list[Candidate]]:
    """The lists, one per id, in the order in which the ids first occur."""
    groups: dict[str, list[Candidate]] = {}
    for candidate in candidates:
        groups.setdefault(candidate.id, []).append(candidate)
    return list(groups.values())


def score_candidates(
    subject: TextModel, candidates: Sequence[Candidate], unknown: UnknownWords = UNK_ONLY
) -> list[Candidate]:
    """The candidates with their log p by a language model, end of line included."""
    scored = score_lines(subject, [candidate.text for candidate in candidates], unknown)
    return [replace(one, log_prob=line.log_prob) for one, line in zip(candidates, scored, strict=True)]


def rerank(candidates: Iterable[Candidate], weight: float, word_penalty: float) -> list[list[Candidate]]:
    """The lists of scored candidates with their new scores, best first; equal scores keep their order."""
    lists = []
    for group in group_candidates(candidates):
        rescored = [
            replace(one, given=one.score, score=total)
            for one, total in zip(group, _totals(group, weight, word_penalty).tolist(), strict=True)
        ]
        lists.append(sorted(rescored, key=lambda one: -one.score))
    return lists


def _totals(candidates: Sequence[Candidate], weight: float, word_penalty: float) -> Array:
    features = _Features.of(candidates)
    return features.totals(weight, word_penalty)


class _Features(NamedTuple):
    """What the total of each of N candidates is made of."""

    scores_N: Array
    log_probs_N: Array
    words_N: Array

    @classmethod
    def of(cls, candidates: Sequence[Candidate]) -> _Features:
        columns = [(one.score, one.log_prob, len(one.text.split())) for one in candidates]
        return cls(*np.array(columns, np.float64).reshape(-1, 3).T)

    def totals(self, weight: float, word_penalty: float) -> Array:
        weighted_N = weight * self.log_probs_N if weight else 0.0  # log p may be -inf
        return np.asarray(self.scores_N + weighted_N + word_penalty * self.words_N)


def fit_rescoring(
    candidates: Sequence[Candidate], references: Sequence[Sequence[str]], metric: MetricName = "wer"
) -> Rescoring:
    """The weights with the lowest word error rate, or the highest BLEU, of the best candidates of each list.

    `references` are sets of references, each with one text per list, in the order of the lists.
    """
    groups = group_candidates(candidates)
    for texts in references:
        if len(texts) != len(groups):
            raise DataError(
                f"there are {len(groups)} n-best lists and {len(texts)} references; give one reference per id, in order"
            )
    lists = _ScoredLists(groups, references, metric)
    step = (0.5, PENALTIES[1] - PENALTIES[0])
    best = min((lists.loss(weight, penalty) for weight in WEIGHTS for penalty in PENALTIES), key=_preference)
    for _ in range(REFINEMENTS):
        around = [
            lists.loss(max(0.0, best.weight * (1 + step[0] * w)), best.word_penalty + step[1] * p)
            for w in (-1, -0.5, 0, 0.5, 1)
            for p in (-1, -0.5, 0, 0.5, 1)
        ]
        best, step = min([best, *around], key=_preference), (step[0] / 2, step[1] / 2)
    after, before = lists.figure(best.loss), lists.figure(lists.loss(0.0, 0.0).loss)
    return Rescoring(round(best.weight, 6), round(best.word_penalty, 6), metric, before, after, len(groups))


class _Trial(NamedTuple):
    loss: float
    weight: float
    word_penalty: float


def _preference(trial: _Trial) -> tuple[float, float, float]:
    """Lower loss first; of equal ones the weights nearest to no change."""
    return round(trial.loss, 9), abs(trial.word_penalty), trial.weight


class _ScoredLists:
    """The statistics of every candidate against its references, so that a trial only sums rows."""

    def __init__(self, groups: list[list[Candidate]], references: Sequence[Sequence[str]], metric: str) -> None:
        words = choose_bleu_tokenizer(references)
        self.metric: Metric = Bleu(tokenizer=words) if metric == "bleu" else WordErrorRate(tokenizer=_spaced(words))
        flat = [one for group in groups for one in group]
        self.features = _Features.of(flat)
        sizes_P = np.array([len(group) for group in groups])
        self.begins_P = np.cumsum(sizes_P) - sizes_P
        owners = np.repeat(np.arange(len(groups)), sizes_P).tolist()
        own = [[texts[owner] for owner in owners] for texts in references]
        self.table_NF = self.metric.table([one.text for one in flat], own)

    def loss(self, weight: float, word_penalty: float) -> _Trial:
        """The metric of the first candidates under some weights, negated if larger is better."""
        totals_N = self.features.totals(weight, word_penalty)
        ends_P = [*self.begins_P[1:].tolist(), len(totals_N)]
        chosen_P = [
            begin + int(totals_N[begin:end].argmax()) for begin, end in zip(self.begins_P.tolist(), ends_P, strict=True)
        ]
        score = float(self.metric.scores(self.table_NF[chosen_P].sum(axis=0)[None])[0])
        return _Trial(score if self.metric.lower_is_better else -score, weight, word_penalty)

    def figure(self, loss: float) -> float:
        return loss if self.metric.lower_is_better else -loss


def _spaced(tokenizer: str) -> str:
    """The words of the error rate: those of a tokeniser for text without spaces, else those between spaces."""
    return tokenizer if tokenizer in ("zh", "char") else "none"
