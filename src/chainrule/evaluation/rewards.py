"""Rewards for training on the metric itself: fast sentence scores of outputs against references.

`bleu` and `chrf` are the sentence scores of sacreBLEU and `rouge` is the ROUGE-L of rouge_score, all from 0 to 1.
References are prepared once and cached, since each one returns with every sample that is drawn for its source.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import compress

import numpy as np

from chainrule.base.arrays import Array
from chainrule.errors import DataError
from chainrule.evaluation.metrics import Bleu, Chrf, Metric, check_name, is_chinese
from chainrule.evaluation.rouge import WordIndex, WordTokenizer, index_words, rouge_l

CACHED = 1 << 16
"""Number of references that are cached; sacreBLEU caches as many tokenised texts."""

Reward = Callable[[Sequence[str], Sequence[str]], Array]
"""Takes P outputs and their P references; returns P rewards from 0 to 1 in float64."""


def make_reward(name: str) -> Reward:
    """Return the reward of this name: one of `REWARDS`."""
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
    """Sentence BLEU with "exp" smoothing and effective order; the reference decides whether to tokenise as Chinese."""
    western, chinese = (Bleu(tokenizer=name, effective_order=True) for name in ("13a", "zh"))
    cached_is_chinese = lru_cache(CACHED)(is_chinese)

    def reward(outputs: Sequence[str], references: Sequence[str]) -> Array:
        chinese_P = np.array([cached_is_chinese(reference) for reference in references])
        scores_P = np.empty(len(outputs))
        for metric, chosen_P in ((western, ~chinese_P), (chinese, chinese_P)):
            if chosen_P.any():
                pairs = compress(zip(outputs, references, strict=True), chosen_P)
                scores_P[chosen_P] = _scores(metric, *zip(*pairs, strict=True))
        return scores_P

    return reward


def _chrf() -> Reward:
    metric = Chrf()
    return lambda outputs, references: _scores(metric, outputs, references)


def _scores(metric: Metric, outputs: Sequence[str], references: Sequence[str]) -> Array:
    """The score of each sentence -> P."""
    scores_P = metric.scores(metric.table(outputs, [references]))
    return np.minimum(scores_P / 100, 1.0)  # rounding may put a perfect BLEU above 100


def _rouge() -> Reward:
    """F1 of the longest common subsequence of words."""
    tokenize = WordTokenizer().tokenize

    @lru_cache(CACHED)
    def prepare(reference: str) -> WordIndex:
        return index_words(tokenize(reference))

    def reward(outputs: Sequence[str], references: Sequence[str]) -> Array:
        return np.array(list(map(rouge_l, map(tokenize, outputs), map(prepare, references))))

    return reward


_REWARDS: dict[str, Callable[[], Reward]] = {"bleu": _bleu, "chrf": _chrf, "rouge": _rouge}
REWARDS = tuple(_REWARDS)
