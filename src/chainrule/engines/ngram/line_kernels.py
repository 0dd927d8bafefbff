"""The walk over many lines at once, for every form of a table, with the bits of `query_kernels.walk_kernel`.

A walk mostly waits: a binary search for each context of a word, and the entries that it finds, lie anywhere in a table
of megabytes. Here a text is cut into tracks of whole lines that take turns, so that the memory of one is fetched while
others compute. The halves of a search are chosen without a branch, which would be wrong every second time. X are the
tracks.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from chainrule.base.arrays import Array
from chainrule.engines.ngram.query_kernels import first_child
from chainrule.engines.ngram.scratch import Number
from chainrule.engines.ngram.table import BINS

TRACKS = 8


@intrinsic
def _prefetch(typing_context, array_N, place):  # type: ignore[no-untyped-def]
    """Load an entry into the cache ahead of its use; a place outside the array has no effect."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        prefetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        address = builder.bitcast(builder.gep(data, [arguments[1]]), byte)
        # The flags: for reading, with high locality, into the data cache.
        builder.call(prefetch, [address, *(ir.Constant(number, flag) for flag in (0, 3, 1))])
        return context.get_dummy_value()

    return types.void(array_N, types.intp), generate


@intrinsic
def _opaque(typing_context, number):  # type: ignore[no-untyped-def]
    """The number itself. The compiler does not know that, and cannot turn arithmetic on a mask into a branch."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        kind = ir.FunctionType(ir.IntType(64), [ir.IntType(64)])
        return builder.asm(kind, "", "=r,0", [arguments[0]], False)

    return types.int64(types.int64), generate


@njit(cache=True, nogil=True)
def walk_lines(
    words: Array,
    first_words: Array,
    groups: Array,
    steps: Array,
    probs: Array,
    prob_table: Array | None,
    backoffs: Array,
    backoff_table: Array | None,
    stride: int,
    tokens_N: Array,
    eos: int,
    order: int,
    absent: float,
    probs_N: Array,
    depths_N: Array,
) -> None:
    """Fill in log10 p and the number of context words of each token of lines that are scored separately."""
    places_X, ends_X = _cut(tokens_N, eos)
    states_XO = np.full((TRACKS, order), -1, np.int64)
    for x in range(TRACKS):
        _begin(states_XO, x, eos)
    lows_XO, sizes_XO = np.empty((TRACKS, order), np.int64), np.empty((TRACKS, order), np.int64)
    nodes_X, matched_X = np.empty(TRACKS, np.int64), np.empty(TRACKS, np.int64)
    left = True
    while left:
        left = False
        for x in range(TRACKS):
            if places_X[x] < ends_X[x]:
                left = True
                _find_children(words, first_words, groups, steps, states_XO, lows_XO, sizes_XO, x)
        for x in range(TRACKS):
            if places_X[x] < ends_X[x]:
                word: Number = np.int64(tokens_N[places_X[x]])
                node, k = word, 1
                while k < order and states_XO[x, k] >= 0:
                    child = _search(words, lows_XO[x, k], sizes_XO[x, k], word)
                    if child < 0:
                        break
                    states_XO[x, k], node = node, child + len(first_words)
                    _prefetch(steps, child)  # type: ignore[call-arg]
                    k += 1
                _prefetch(probs, node)  # type: ignore[call-arg]
                if k < order:
                    _prefetch(backoffs, states_XO[x, k])
                nodes_X[x], matched_X[x] = node, k
        for x in range(TRACKS):
            if places_X[x] < ends_X[x]:
                at, matched = places_X[x], matched_X[x]
                prob, k = _number(probs, prob_table, BINS, matched - 1, nodes_X[x]), matched
                while k < order and states_XO[x, k] >= 0:
                    prob += _number(backoffs, backoff_table, stride, k - 1, states_XO[x, k])
                    states_XO[x, k] = -1
                    k += 1
                probs_N[at], depths_N[at] = prob + absent * max(0, states_XO[x, 0] - (k - 1)), k - 1
                if matched < order:
                    states_XO[x, matched] = nodes_X[x]
                states_XO[x, 0] = min(order - 1, states_XO[x, 0] + 1)
                if tokens_N[at] == eos:
                    _begin(states_XO, x, eos)
                places_X[x] += 1


@njit(cache=True, nogil=True)
def _cut(tokens_N: Array, eos: int) -> tuple[Array, Array]:
    """The first token of each track, and the end of it: whole lines, of about as many tokens each."""
    cuts = np.empty(TRACKS + 1, np.int64)
    for x in range(TRACKS + 1):
        place = len(tokens_N) * x // TRACKS
        while 0 < place < len(tokens_N) and tokens_N[place - 1] != eos:
            place += 1
        cuts[x] = place
    return cuts[:-1].copy(), cuts[1:].copy()


@njit(inline="always")
def _begin(states_XO: Array, x: int, eos: int) -> None:
    """Begin a line: the context is eos alone."""
    states_XO[x, 0] = min(1, states_XO.shape[1] - 1)
    for k in range(1, states_XO.shape[1]):
        states_XO[x, k] = eos if k == 1 else -1


@njit(inline="always")
def _find_children(
    words: Array,
    first_words: Array,
    groups: Array,
    steps: Array,
    states_XO: Array,
    lows_XO: Array,
    sizes_XO: Array,
    x: int,
) -> None:
    """Where the children of the contexts of a track begin among the words, and how many there are."""
    k = 1
    while k < states_XO.shape[1] and states_XO[x, k] >= 0:
        low = first_child(first_words, groups, steps, states_XO[x, k])
        size = first_child(first_words, groups, steps, states_XO[x, k] + 1) - low
        lows_XO[x, k], sizes_XO[x, k] = low - len(first_words), size
        _prefetch(words, low - len(first_words) + (size >> 1))  # type: ignore[call-arg]
        k += 1


@njit(inline="always")
def _search(words: Array, low: int, left: int, word: int) -> int:
    """The place of a word among sorted ones, -1 if it is not there."""
    if left <= 0:
        return -1
    while left > 1:
        half = left >> 1
        after = (word - np.int64(words[low + half])) >> 63  # -1 if the word comes before that place, else 0
        low += half & ~_opaque(after)  # type: ignore[call-arg]
        left -= half
    return low if words[low] == word else -1


@njit(inline="always")
def _number(codes: Array, table: Array | None, stride: int, level: int, node: int) -> float:
    """The number of a node: plain without a table, otherwise an entry of it."""
    if table is None:  # noqa: SIM108  only statements are resolved at compile time
        number = np.float64(codes[node])
    else:
        number = np.float64(table[level * stride + codes[node]])
    return number
