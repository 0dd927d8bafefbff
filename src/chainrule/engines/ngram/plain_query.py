"""Queries of an n-gram table in plain Python, with the bits of the kernels in `query_kernels.py`.

A few hundred words take less time this way than numba takes to start.
"""

from __future__ import annotations

from bisect import bisect_left

import numpy as np

from chainrule.base.arrays import Array
from chainrule.engines.ngram.table import BINS, LN10, SHIFT, TableArrays, value


def walk(
    arrays: TableArrays, tokens_T: Array, state_O: Array, ending: int, absent: float
) -> tuple[Array, Array, Array]:
    """Append tokens to a prefix, in place -> log10 p of each, the words of context found, the words of its n-gram."""
    words, order, state = arrays.words.data, len(state_O), state_O.tolist()
    size, children = len(arrays.first_words), _Children(arrays)
    log10: list[float] = []
    depths: list[int] = []
    orders: list[int] = []
    for word in tokens_T.tolist():
        moved, k = word, 1
        while k < order and state[k] >= 0:  # from the shortest context to the first one without the word
            low, high = children.of(state[k])
            place = bisect_left(words, word, low - size, high - size)
            if place == high - size or words[place] != word:
                break
            state[k], moved = moved, place + size
            k += 1
        prob, matched = value(arrays.probs, arrays.prob_table, k - 1, moved), k
        while k < order and state[k] >= 0:
            prob += value(arrays.backoffs, arrays.backoff_table, k - 1, state[k])
            state[k] = -1
            k += 1
        log10.append(prob + absent * max(0, state[0] - (k - 1)))
        depths.append(k - 1)
        orders.append(matched)
        if matched < order:
            state[matched] = moved
        state[0] = min(order - 1, state[0] + 1)
        if word == ending:
            state[2:], state[0] = [-1] * (order - 2), min(1, order - 1)
    state_O[:] = state
    return np.array(log10, np.float32), np.array(depths, np.uint8), np.array(orders, np.uint8)


def fill_row(arrays: TableArrays, state_O: Array, absent: float, row_V: Array) -> None:
    """Fill a row with log p of every word after a prefix, in nats."""
    state, size, children = state_O.tolist(), len(arrays.first_words), _Children(arrays)
    contexts = [node for node in state[1:] if node >= 0]
    rest = [absent * max(0, state[0] - len(contexts))]  # of the longest context; then of shorter ones, before it
    for k, node in reversed(list(enumerate(contexts))):
        rest.insert(0, rest[0] + value(arrays.backoffs, arrays.backoff_table, k, node))
    with np.errstate(invalid="ignore"):  # infinities of opposite sign
        row_V[:] = LN10 * (_probs(arrays, 0, 0, size) + rest[0])
        for k, node in enumerate(contexts, start=1):
            low, high = children.of(node)
            row_V[arrays.words[low - size : high - size]] = LN10 * (_probs(arrays, k, low, high) + rest[k])


def _probs(arrays: TableArrays, level: int, low: int, high: int) -> Array:
    """log10 p of adjacent nodes of a level, in double precision."""
    codes = arrays.probs[low:high]
    if codes.dtype != np.float32:
        codes = arrays.prob_table[level * BINS :][codes]
    return codes.astype(np.float64)


class _Children:
    """Where the children of a context are."""

    def __init__(self, arrays: TableArrays) -> None:
        self._words, self._size = arrays.first_words.data, len(arrays.first_words)
        self._groups, self._steps = arrays.first_groups.data, arrays.first_steps.data

    def of(self, node: int) -> tuple[int, int]:
        """The first child of a context, and the first one that is not its child."""
        return self._first(node), self._first(node + 1)

    def _first(self, node: int) -> int:
        above = node - self._size
        return int(self._words[node] if above < 0 else self._groups[above >> SHIFT] + self._steps[above])


def children_of(arrays: TableArrays, node: int) -> tuple[int, int]:
    """The first child of a context, and the first node after its children."""
    return _Children(arrays).of(node)
