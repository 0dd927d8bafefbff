"""Compiled queries of an n-gram table: `query.py` describes states, `plain_query.py` does the same in plain Python."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numba.extending import overload

from chainrule.base.arrays import Array
from chainrule.engines.ngram.scratch import Number
from chainrule.engines.ngram.table import BINS, LN10, SHIFT, value


# All the work for a word is in one function, on arrays that are arguments: a call that passes arrays, or a tuple of
# them, would cost more than the search itself. Whether a table is None is resolved at compile time.
@njit(cache=True, nogil=True)
def walk_kernel(
    words: Array,
    first_words: Array,
    groups: Array,
    steps: Array,
    probs: Array,
    prob_table: Array | None,
    backoffs: Array,
    backoff_table: Array | None,
    stride: int,
    tokens_T: Array,
    state_O: Array,
    ending: int,
    absent: float,
    probs_T: Array,
    depths_T: Array,
    matched_T: Array,
) -> None:
    size, order = len(first_words), len(state_O)
    lows_O, sizes_O = np.empty(order, np.int64), np.empty(order, np.int64)
    for t in range(len(tokens_T)):
        word = np.int64(tokens_T[t])
        # The ranges of the children of all contexts are read first: these reads do not wait for one another.
        depth = 1
        while depth < order and state_O[depth] >= 0:
            node = state_O[depth]
            if node < size:
                low = np.int64(first_words[node])
            else:
                low = np.int64(groups[(node - size) >> SHIFT]) + np.int64(steps[node - size])
            node += 1
            if node < size:
                high = np.int64(first_words[node])
            else:
                high = np.int64(groups[(node - size) >> SHIFT]) + np.int64(steps[node - size])
            lows_O[depth], sizes_O[depth] = low - size, high - low
            depth += 1
        moved, k = word, 1
        while k < depth:
            low, left = lows_O[k], sizes_O[k]
            if left <= 0:
                break
            while left > 1:  # a binary search without unpredictable branches
                half = left >> 1
                low = low + half if words[low + half] <= word else low
                left -= half
            if words[low] != word:
                break
            state_O[k] = moved
            moved = low + size
            k += 1
        if prob_table is None:  # noqa: SIM108  only statements are resolved at compile time
            prob = np.float64(probs[moved])
        else:
            prob = np.float64(prob_table[(k - 1) * BINS + probs[moved]])
        matched = k
        while k < order and state_O[k] >= 0:
            if backoff_table is None:
                prob += backoffs[state_O[k]]
            else:
                prob += backoff_table[(k - 1) * stride + backoffs[state_O[k]]]
            state_O[k] = -1
            k += 1
        probs_T[t] = prob + absent * max(0, state_O[0] - (k - 1))
        depths_T[t] = k - 1
        matched_T[t] = matched  # last: callers that need no depths pass one array for both
        if matched < order:
            state_O[matched] = moved
        state_O[0] = min(order - 1, state_O[0] + 1)
        if word == ending:  # a new line begins: the context is that token alone
            state_O[2:], state_O[0] = -1, min(1, order - 1)


@overload(value, strict=False)
def _value_in_kernels(codes: Any, table: Any, level: Any, node: Any) -> Any:
    """`value` inside a kernel, resolved by the type of the array at compile time."""
    if str(codes.dtype) == "float32":
        return lambda codes, table, level, node: codes[node]
    if str(codes.dtype) == "uint8":
        return lambda codes, table, level, node: table[level * BINS + codes[node]]
    return lambda codes, table, level, node: table[codes[node]]


@njit(cache=True, nogil=True)
def first_child(first_words: Array, groups: Array, steps: Array, node: Number) -> Number:
    """The first child of a context, which is also the end of the children of the previous context."""
    size = len(first_words)
    if node < size:
        return np.int64(first_words[node])
    return np.int64(groups[(node - size) >> SHIFT]) + np.int64(steps[node - size])


@njit(cache=True, nogil=True)
def fill_row(
    words: Array,
    first_words: Array,
    groups: Array,
    steps: Array,
    probs: Array,
    prob_table: Array,
    backoffs: Array,
    backoff_table: Array,
    state_O: Array,
    absent: float,
    row_V: Array,
) -> None:
    """Unigrams first; then the children of each longer context overwrite their words."""
    size, depth = len(first_words), 0
    while depth + 1 < len(state_O) and state_O[depth + 1] >= 0:
        depth += 1
    rest = np.zeros(depth + 1)
    rest[depth] = absent * max(0, state_O[0] - depth)
    for k in range(depth, 0, -1):
        rest[k - 1] = rest[k] + value(backoffs, backoff_table, k - 1, state_O[k])
    for word in range(size):
        row_V[word] = LN10 * (value(probs, prob_table, 0, word) + rest[0])
    for k in range(1, depth + 1):
        last = first_child(first_words, groups, steps, state_O[k] + 1)
        for node in range(first_child(first_words, groups, steps, state_O[k]), last):
            row_V[words[node - size]] = LN10 * (value(probs, prob_table, k, node) + rest[k])
