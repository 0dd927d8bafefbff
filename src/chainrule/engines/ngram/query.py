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

from chainrule.base.arrays import Array
from chainrule.base.lazy import LazyKernels
from chainrule.engines.ngram import plain_query
from chainrule.engines.ngram.table import BINS, TableArrays
from chainrule.engines.ngram.table import LN10 as LN10

ENTRIES = 1024
"""Entries of a row that take as long as one word of a walk."""

_kernels = LazyKernels("chainrule.engines.ngram.query_kernels", budget=1 << 13)  # words; 0.1 s or less
_line_kernels = LazyKernels("chainrule.engines.ngram.line_kernels", budget=1 << 13)


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
    kernels = _kernels.after(len(tokens_T))
    if kernels is None:
        return plain_query.walk(arrays, tokens_T, state_O, ending, absent)
    probs_T, depths_T = np.empty(len(tokens_T), np.float32), np.empty(len(tokens_T), np.uint8)
    matched_T = np.empty(len(tokens_T), np.uint8)
    kernels.walk_kernel(*_fields(arrays), tokens_T, state_O, ending, absent, probs_T, depths_T, matched_T)
    return probs_T, depths_T, matched_T


def walk_lines(arrays: TableArrays, tokens_N: Array, eos: int, absent: float) -> tuple[Array, Array]:
    """log10 p of each token of lines that are scored separately, and the words of context found before it, N each."""
    kernels = _line_kernels.after(len(tokens_N))
    order = len(arrays.starts) - 1
    if kernels is None:
        state_O = np.empty(order, np.int64)
        begin(state_O, eos)
        return walk(arrays, tokens_N, state_O, eos, absent)
    probs_N, depths_N = np.empty(len(tokens_N), np.float32), np.empty(len(tokens_N), np.uint8)
    kernels.walk_lines(*_fields(arrays), tokens_N, eos, order, absent, probs_N, depths_N)
    return probs_N, depths_N


def _fields(arrays: TableArrays) -> tuple[Any, ...]:
    """The first arguments of the kernels: the arrays, None for tables that are not used, and the size of a level's."""
    return (
        arrays.words,
        arrays.first_words,
        arrays.first_groups,
        arrays.first_steps,
        arrays.probs,
        arrays.prob_table if len(arrays.prob_table) else None,
        arrays.backoffs,
        arrays.backoff_table if len(arrays.backoff_table) else None,
        BINS if arrays.backoffs.dtype == np.uint8 else 0,
    )


def distribution(arrays: TableArrays, state_O: Array, absent: float, row_V: Array) -> None:
    """Fill a row with log p of every word after a prefix, in nats."""
    kernels = _kernels.after(1 + len(row_V) // ENTRIES)
    if kernels is None:
        plain_query.fill_row(arrays, state_O, absent, row_V)
    else:
        kernels.fill_row(*arrays[1:], state_O, absent, row_V)
