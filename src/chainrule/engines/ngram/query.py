"""Asking an n-gram table: the probability of each word of a text, or of all words that could come next.

A prefix is remembered by its contexts that are in the table: the node of its last word, of its last two words, and so
on, as far as they go. A word moves each of them to its child by that word. If the context of k words has such a child,
so have all shorter ones, so the search runs upwards and stops at the first that has not:

    log p(w | h) = prob(longest child found) + the back-off weights of the contexts that had none

A state is a row of N numbers: how many words of context there could be (-1: nothing was read yet), then the nodes of
the contexts of 1 to N-1 words, -1 where there is none.

Legend: B batch, T time, N order, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numba.extending import overload

from chainrule.engines.ngram.scratch import Array, Number
from chainrule.engines.ngram.table import BINS, SHIFT, Arrays

LN10 = float(np.log(10))


def begin(state_N: Array, word: int) -> None:
    """The prefix of one word alone, in place."""
    state_N[:] = -1
    state_N[0] = min(1, len(state_N) - 1)
    state_N[1:2] = word


def walk(t: Arrays, tokens_T: Array, state_N: Array, ending: int, absent: float) -> tuple[Array, Array]:
    """Append tokens to a prefix, in place -> log10 p of each, and the words of context that were found before it."""
    probs_T, depths_T = np.empty(len(tokens_T), np.float32), np.empty(len(tokens_T), np.uint8)
    _walk(
        t.words,
        t.first_words,
        t.first_groups,
        t.first_steps,
        t.probs,
        t.prob_table if len(t.prob_table) else None,
        t.backoffs,
        t.backoff_table if len(t.backoff_table) else None,
        BINS if t.backoffs.dtype == np.uint8 else 0,
        tokens_T,
        state_N,
        ending,
        absent,
        probs_T,
        depths_T,
    )
    return probs_T, depths_T


# Everything that is done for a word stands in one function and uses arrays that are arguments: calls that pass arrays,
# or a tuple of them, would cost more than the search itself. A table that is None is decided on when it is compiled.
@njit(cache=True, nogil=True)
def _walk(
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
    state_N: Array,
    ending: int,
    absent: float,
    probs_T: Array,
    depths_T: Array,
) -> None:
    size, order = len(first_words), len(state_N)
    lows_N, lefts_N = np.empty(order, np.int64), np.empty(order, np.int64)
    for t in range(len(tokens_T)):
        word = np.int64(tokens_T[t])
        # Where the children of all contexts lie is found out first: these reads do not wait for one another.
        depth = 1
        while depth < order and state_N[depth] >= 0:
            node = state_N[depth]
            if node < size:
                low = np.int64(first_words[node])
            else:
                low = np.int64(groups[(node - size) >> SHIFT]) + np.int64(steps[node - size])
            node += 1
            if node < size:
                high = np.int64(first_words[node])
            else:
                high = np.int64(groups[(node - size) >> SHIFT]) + np.int64(steps[node - size])
            lows_N[depth], lefts_N[depth] = low - size, high - low
            depth += 1
        moved, k = word, 1
        while k < depth:
            low, left = lows_N[k], lefts_N[k]
            if left <= 0:
                break
            while left > 1:  # no branch depends on what is found
                half = left >> 1
                low = low + half if words[low + half] <= word else low
                left -= half
            if words[low] != word:
                break
            state_N[k] = moved
            moved = low + size
            k += 1
        if prob_table is None:  # noqa: SIM108  only statements are decided on when compiling
            prob = np.float64(probs[moved])
        else:
            prob = np.float64(prob_table[(k - 1) * BINS + probs[moved]])
        matched = k
        while k < order and state_N[k] >= 0:
            if backoff_table is None:
                prob += backoffs[state_N[k]]
            else:
                prob += backoff_table[(k - 1) * stride + backoffs[state_N[k]]]
            state_N[k] = -1
            k += 1
        probs_T[t] = prob + absent * max(0, state_N[0] - (k - 1))
        depths_T[t] = k - 1
        if matched < order:
            state_N[matched] = moved
        state_N[0] = min(order - 1, state_N[0] + 1)
        if word == ending:  # a line begins, and nothing before it matters
            state_N[2:], state_N[0] = -1, min(1, order - 1)


def value(codes: Array, table: Array, level: int, node: int) -> float:
    """The number kept for a node of a level (0 to N - 1): itself, or through a table for all levels or for each."""
    if codes.dtype == np.float32:
        return float(codes[node])
    return float(table[(level * BINS if codes.dtype == np.uint8 else 0) + codes[node]])


@overload(value, strict=False)
def _value_in_kernels(codes: Any, table: Any, level: Any, node: Any) -> Any:
    """The same, decided by the type of the array when a kernel is compiled."""
    if str(codes.dtype) == "float32":
        return lambda codes, table, level, node: codes[node]
    if str(codes.dtype) == "uint8":
        return lambda codes, table, level, node: table[level * BINS + codes[node]]
    return lambda codes, table, level, node: table[codes[node]]


@njit(cache=True, nogil=True)
def first_child(first_words: Array, groups: Array, steps: Array, node: Number) -> Number:
    """Where the children of a context begin; those of the one before it end there."""
    size = len(first_words)
    if node < size:
        return np.int64(first_words[node])
    return np.int64(groups[(node - size) >> SHIFT]) + np.int64(steps[node - size])


@njit(cache=True, nogil=True)
def _spread(
    words: Array,
    first_words: Array,
    groups: Array,
    steps: Array,
    probs: Array,
    prob_table: Array,
    backoffs: Array,
    backoff_table: Array,
    state_N: Array,
    absent: float,
    row_V: Array,
) -> None:
    """Words after the shortest context first, then what longer ones know better."""
    size, depth = len(first_words), 0
    while depth + 1 < len(state_N) and state_N[depth + 1] >= 0:
        depth += 1
    rest = np.zeros(depth + 1)
    rest[depth] = absent * max(0, state_N[0] - depth)
    for k in range(depth, 0, -1):
        rest[k - 1] = rest[k] + value(backoffs, backoff_table, k - 1, state_N[k])
    for word in range(size):
        row_V[word] = LN10 * (value(probs, prob_table, 0, word) + rest[0])
    for k in range(1, depth + 1):
        last = first_child(first_words, groups, steps, state_N[k] + 1)
        for node in range(first_child(first_words, groups, steps, state_N[k]), last):
            row_V[words[node - size]] = LN10 * (value(probs, prob_table, k, node) + rest[k])


def distribution(t: Arrays, state_N: Array, absent: float, row_V: Array) -> None:
    """log p of every word after a prefix, in nats."""
    _spread(*t[1:], state_N, absent, row_V)
