"""Rewards for training on the measure itself: each output against its reference, quickly.

`bleu` and `chrf` are sacreBLEU's sentence scores and `rouge` is rouge_score's ROUGE-L, all from 0 to 1. What is needed
of a reference is kept, as it comes back with every sample drawn for its source.

Legend: N sentences, S statistics of a sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import compress
from typing import Any

import numpy as np

from chainrule.errors import DataError
from chainrule.evaluation.significance import Bleu, Chrf, Metric, check_name, is_chinese
from chainrule.evaluation.translation import Places, WordTokenizer, places_of, rouge_l

KEPT = 1 << 16
"""References of which is kept what is needed; sacreBLEU keeps as many tokenised texts."""

Array = np.ndarray[Any, Any]
Reward = Callable[[Sequence[str], Sequence[str]], Array]
"""Takes N outputs and their N references, gives N rewards from 0 to 1 in float64."""


def make_reward(name: str) -> Reward:
    """The reward of this name: one of `REWARDS`."""
    check_name("reward", name, REWARDS)
    reward = _REWARDS[name]()

    def checked(outputs: Sequence[str], references: Sequence[str]) -> Array:
        if len(outputs) != len(references):
            raise DataError(
                f"there are {len(outputs)} outputs and {len(references)} references: expected one reference for each "
                "output; repeat it where a source has several outputs."
            )
        return reward(outputs, references) if outputs else np.zeros(0)

    return checked


def _bleu() -> Reward:
    """Sentence BLEU with "exp" smoothing and effective order; each reference says whether to tokenise as Chinese."""
    western, chinese = (Bleu(tokenizer=name, effective_order=True) for name in ("13a", "zh"))
    kept_is_chinese = lru_cache(KEPT)(is_chinese)

    def reward(outputs: Sequence[str], references: Sequence[str]) -> Array:
        chinese_N = np.array([kept_is_chinese(reference) for reference in references])
        scores_N = np.empty(len(outputs))
        for metric, own_N in ((western, ~chinese_N), (chinese, chinese_N)):
            if own_N.any():
                pairs = compress(zip(outputs, references, strict=True), own_N)
                scores_N[own_N] = _scores(metric, *zip(*pairs, strict=True))
        return scores_N

    return reward


def _chrf() -> Reward:
    metric = Chrf()
    return lambda outputs, references: _scores(metric, outputs, references)


def _scores(metric: Metric, outputs: Sequence[str], references: Sequence[str]) -> Array:
    """The measure of each sentence by itself -> N."""
    scores_N = metric.scores(metric.table(outputs, [references]))
    return np.minimum(scores_N / 100, 1.0)  # a perfect BLEU is 100 but for rounding


def _rouge() -> Reward:
    """F1 of the longest common subsequence of words."""
    tokenize = WordTokenizer().tokenize

    @lru_cache(KEPT)
    def prepare(reference: str) -> Places:
        return places_of(tokenize(reference))

    def reward(outputs: Sequence[str], references: Sequence[str]) -> Array:
        return np.array(list(map(rouge_l, map(tokenize, outputs), map(prepare, references))))

    return reward


_REWARDS: dict[str, Callable[[], Reward]] = {"bleu": _bleu, "chrf": _chrf, "rouge": _rouge}
REWARDS = tuple(_REWARDS)
