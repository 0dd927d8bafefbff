"""Where an n-gram model takes the probability of a word from: the contexts it tries, the longest first.

log10 p(w | h) = Σ back-off weights of the contexts without w + log10 p*(w | the longest context with w)
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from chainrule.base.arrays import Array
from chainrule.engines.ngram.model import NgramArrays
from chainrule.engines.ngram.plain_query import children_of
from chainrule.engines.ngram.table import value


class BackoffStep(NamedTuple):
    """One context that was tried."""

    context: int  # its number of words
    in_table: bool  # whether the context itself was seen
    log10_prob: float | None  # of the word, if this context has it: the search ends here
    log10_backoff: float | None  # otherwise the weight with which the next shorter context counts


def backoff_path(model: NgramArrays, before_T: Array, word: int) -> list[BackoffStep]:
    """The contexts that are tried for a word after T ≥ 1 tokens, the longest first; the last one has the word."""
    _, states_1O = model.prefill(model.start(1), np.asarray(before_T, np.int64)[None])
    state_O, steps = states_1O[0], list[BackoffStep]()
    arrays = model.table.arrays
    for size in range(int(state_O[0]), 0, -1):
        node = int(state_O[size])
        if node < 0:
            steps.append(BackoffStep(size, False, None, model.table.absent))
            continue
        child = _child(model, node, word)
        if child is not None:
            log10_prob = value(arrays.probs, arrays.prob_table, size, child)
            return [*steps, BackoffStep(size, True, log10_prob, None)]
        steps.append(BackoffStep(size, True, None, value(arrays.backoffs, arrays.backoff_table, size - 1, node)))
    return [*steps, BackoffStep(0, True, value(arrays.probs, arrays.prob_table, 0, word), None)]


def _child(model: NgramArrays, node: int, word: int) -> int | None:
    """The node of a context with one more word; None: it was not seen."""
    arrays, size = model.table.arrays, model.vocab_size
    low, high = children_of(arrays, node)
    words = arrays.words[low - size : high - size]
    place = int(np.searchsorted(words, word))
    return low + place if place < len(words) and int(words[place]) == word else None
