"""Measures of texts against references without a run: BLEU, chrF, ROUGE, exact match, error rates, two systems.

Every figure has a 95% interval by the bootstrap, every metric a signature.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chainrule.base.tables import show_fields
from chainrule.errors import ConfigError
from chainrule.evaluation.edits import CharacterErrorRate, ExactMatch, WordErrorRate
from chainrule.evaluation.measurement import Measurement
from chainrule.evaluation.metrics import (
    WORD_ORDERS,
    Bleu,
    Chrf,
    Metric,
    References,
    check_counts,
    check_name,
    choose_bleu_tokenizer,
)
from chainrule.evaluation.rouge import RougeL, RougeN
from chainrule.evaluation.significance import (
    RESAMPLES,
    SEED,
    TESTS,
    PairedResult,
    compare_systems,
    interval,
    resample,
)
from chainrule.text.readers import lines_in, open_texts

ROUGE_ORDERS = 2
WORDS_WITHOUT_SPACES = ("char", "zh")
"""Tokenisers that the word error rate uses as well; with the others it splits at white space, as is usual for it."""


@dataclass(frozen=True)
class Figure(Measurement):
    """One metric: its score from 0 to 100, 95% intervals by name, the figures that explain it, and its signature."""

    score: float
    interval: tuple[float, float]
    parts: dict[str, float]
    intervals: dict[str, tuple[float, float]]
    lower_is_better: bool
    signature: str

    def to_dict(self) -> dict[str, Any]:
        """Return all values for JSON, the further figures beside the score."""
        values = super().to_dict()
        return {"score": values.pop("score"), **values.pop("parts"), **values}


@dataclass(frozen=True)
class Measures(Measurement):
    """The metrics of one system by name, those of a second one, and the tests of the difference between them."""

    sentences: int
    metrics: dict[str, Figure]
    against: dict[str, Figure]
    paired: list[PairedResult]

    def __getitem__(self, name: str) -> Figure:
        """Return a metric by name: `measures["bleu"].score`."""
        check_name("metric", name, list(self.metrics))
        return self.metrics[name]

    def to_dict(self) -> dict[str, Any]:
        """Return exact values for JSON: each metric under its name; with a second system also `against`, `paired`."""
        second = {
            "against": {name: figure.to_dict() for name, figure in self.against.items()},
            "paired": [test.to_dict() for test in self.paired],
        }
        own = {name: figure.to_dict() for name, figure in self.metrics.items()}
        return {"sentences": self.sentences, **own, **(second if self.paired else {})}

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per system and metric."""
        systems = [("first", self.metrics), ("second", self.against)]
        return [
            {"system": system, "metric": name, "score": one.score, "low": one.interval[0], "high": one.interval[1]}
            for system, metrics in systems
            for name, one in metrics.items()
        ]

    def show(self) -> str:
        """Return the scores with their intervals as text for people, then the tests."""
        rows: dict[str, Any] = {"sentences": self.sentences}
        for name, figure in self.metrics.items():
            rows[name] = _show_score(figure.score, figure.interval)
            rows |= {f"{name} {part}": value for part, value in figure.parts.items()}
        tests = {f"{test.metric} against": _show_test(test, self.metrics[test.metric]) for test in self.paired}
        return show_fields({**rows, **tests})


def _show_score(score: float, bounds: tuple[float, float]) -> str:
    return f"{score:.2f} ({bounds[0]:.2f} to {bounds[1]:.2f})"


def _show_test(test: PairedResult, figure: Figure) -> str:
    better = "better" if (test.difference > 0) != figure.lower_is_better else "worse"
    verdict = f"second system {better}" if test.p_value < 0.05 else "no significant difference"
    return f"{test.b:.2f}, difference {_show_score(test.difference, test.interval)}, p {test.p_value:.3f}, {verdict}"


def measure(
    hypotheses: str | Path | Iterable[str],
    *references: str | Path | Iterable[str],
    against: str | Path | Iterable[str] | None = None,
    metrics: Sequence[str] | None = None,
    max_order: int = WORD_ORDERS,
    rouge_orders: int = ROUGE_ORDERS,
    tokenizer: str | None = None,
    lowercase: bool = False,
    test: str = "bootstrap",
    resamples: int = RESAMPLES,
    seed: int = SEED,
) -> Measures:
    """Measure texts against one or more references, and test whether a second system differs.

    Args:
        hypotheses: The outputs of a system: the path of a file with one per line, or the texts themselves.
        references: One or more references: each a path, or texts, with as many lines as there are outputs.
        against: The outputs of a second system for the same lines; None: there is none.
        metrics: Names of the metrics to compute: bleu, chrf, rouge1 …, rougeL, exact_match, wer, cer. None: all.
        max_order: The longest n-grams of BLEU (BLEU-N).
        rouge_orders: The longest n-grams of ROUGE-N.
        tokenizer: How BLEU splits words: 13a, intl, zh, char or none. None: zh for Chinese, else 13a.
        lowercase: Whether case is ignored. ROUGE always ignores it.
        test: The paired test, "bootstrap" or "randomization".
        resamples: Number of draws of the bootstrap and of the test.
        seed: Random seed of the draws.
    """
    check_name("test", test, TESTS)
    outputs, second = _texts(hypotheses), None if against is None else _texts(against)
    sets = [_texts(each) for each in references]
    if not sets:
        raise ConfigError("there are no references to measure against; give at least one file or list of references")
    for some in (outputs, second):
        if some is not None:
            check_counts(some, sets)
    name = choose_bleu_tokenizer(sets) if tokenizer is None else tokenizer
    chosen = _choose(_all_metrics(max_order, rouge_orders, name, lowercase), metrics)
    draws = {"resamples": resamples, "seed": seed}
    return Measures(
        sentences=len(outputs),
        metrics={name: _figure(metric, outputs, sets, **draws) for name, metric in chosen.items()},
        against={} if second is None else {name: _figure(one, second, sets, **draws) for name, one in chosen.items()},
        paired=[]
        if second is None
        else [compare_systems(name, one, outputs, second, sets, test=test, **draws) for name, one in chosen.items()],
    )


def _all_metrics(max_order: int, rouge_orders: int, tokenizer: str, lowercase: bool) -> dict[str, Metric]:
    words = tokenizer if tokenizer in WORDS_WITHOUT_SPACES else "none"
    return {
        "bleu": Bleu(tokenizer=tokenizer, lowercase=lowercase, max_order=max_order),
        "chrf": Chrf(lowercase=lowercase),
        **{f"rouge{order}": RougeN(order) for order in range(1, rouge_orders + 1)},
        "rougeL": RougeL(),
        "exact_match": ExactMatch(lowercase=lowercase),
        "wer": WordErrorRate(tokenizer=words, lowercase=lowercase),
        "cer": CharacterErrorRate(lowercase=lowercase),
    }


def _choose(known: dict[str, Metric], names: Sequence[str] | None) -> dict[str, Metric]:
    for name in names or ():
        check_name("metric", name, list(known))
    return {name: metric for name, metric in known.items() if names is None or name in names}


def _figure(metric: Metric, outputs: Sequence[str], references: References, *, resamples: int, seed: int) -> Figure:
    table_PF = metric.table(outputs, references)
    drawn_KF = resample(table_PF, resamples, seed)
    return Figure(
        score=metric.corpus_score(outputs, references, table_PF),
        interval=interval(metric.scores(drawn_KF)),
        parts={name: float(one[0]) for name, one in metric.figures(table_PF.sum(axis=0)[None]).items()},
        intervals={name: interval(values_K) for name, values_K in metric.figures(drawn_KF).items()},
        lower_is_better=metric.lower_is_better,
        signature=metric.signature(len(references), seed, bs=resamples),
    )


def _texts(given: str | Path | Iterable[str]) -> list[str]:
    """The lines of a file, or texts as they are."""
    return list(lines_in(open_texts([given]))) if isinstance(given, str | Path) else list(given)
