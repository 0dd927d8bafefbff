"""Queries of an n-gram table: the probability of each word of a text, or of every possible next word.

The state of a prefix is the set of its contexts that are in the table: the node of its last word, of its last two
words, and so on, as far as they exist. Appending a word moves each of them to its child by that word. If the context
of k words has such a child, so have all shorter contexts; the search therefore starts at the shortest context and stops
at the first one without the child:

    log p(w | h) = prob(longest n-gram found) + the back-off weights of the longer contexts

A state is a row of O numbers: the number of words of context that there could be (-1: nothing was read yet), then the
nodes of the contexts of 1 to O - 1 words, -1 where there is none.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numba.extending import overload

from chainrule.base.arrays import Array
from chainrule.engines.ngram.scratch import Number
from chainrule.engines.ngram.table import BINS, SHIFT, TableArrays

LN10 = float(np.log(10))


def begin(state_O: Array, word: int) -> None:
    """Set a state to the prefix of one word, in place."""
    state_O[:] = -1
    state_O[0] = min(1, len(state_O) - 1)
    state_O[1:2] = word


def walk(arrays: TableArrays, tokens_T: Array, state_O: Array, ending: int, absent: float) -> tuple[Array, Array]:
    """Append tokens to a prefix, in place -> log10 p of each, and the words of context that were found before it."""
    probs_T, depths_T, _ = walk_matches(arrays, tokens_T, state_O, ending, absent)
    return probs_T, depths_T


def walk_matches(
    arrays: TableArrays, tokens_T: Array, state_O: Array, ending: int, absent: float
) -> tuple[Array, Array, Array]:
    """`walk`, and the number of words of the n-gram whose probability was used, the token included."""
    probs_T, depths_T = np.empty(len(tokens_T), np.float32), np.empty(len(tokens_T), np.uint8)
    matched_T = np.empty(len(tokens_T), np.uint8)
    walk_kernel(
        arrays.words,
        arrays.first_words,
        arrays.first_groups,
        arrays.first_steps,
        arrays.probs,
        arrays.prob_table if len(arrays.prob_table) else None,
        arrays.backoffs,
        arrays.backoff_table if len(arrays.backoff_table) else None,
        BINS if arrays.backoffs.dtype == np.uint8 else 0,
        tokens_T,
        state_O,
        ending,
        absent,
        probs_T,
        depths_T,
        matched_T,
    )
    return probs_T, depths_T, matched_T


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


def value(codes: Array, table: Array, level: int, node: int) -> float:
    """The number stored for a node of a level (0 to O - 1): plain, or a code into the table of all or of each level."""
    if codes.dtype == np.float32:
        return float(codes[node])
    return float(table[(level * BINS if codes.dtype == np.uint8 else 0) + codes[node]])


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


def distribution(arrays: TableArrays, state_O: Array, absent: float, row_V: Array) -> None:
    """Fill a row with log p of every word after a prefix, in nats."""
    _fill_row(*arrays[1:], state_O, absent, row_V)


@njit(cache=True, nogil=True)
def _fill_row(
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
