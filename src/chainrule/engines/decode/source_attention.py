"""Attention of a recurrent decoder to one source, whose keys and values are as wide as the query."""

from __future__ import annotations

import numpy as np

from chainrule.engines.decode.compiling import compiled, summing
from chainrule.engines.decode.functions import ONE, ZERO, exponential, tanh
from chainrule.engines.decode.vectors import LANES, dot_1, dot_4, largest, mix_1, mix_4

LOWEST = np.float32(-np.inf)
FOUR = 4 * LANES


@compiled
def rectify(values, at, count):  # type: ignore[no-untyped-def]
    part = values[at : at + count]
    for j in range(len(part)):
        part[j] = max(part[j], ZERO)


@compiled
def attend_to_source(query, query_at, source, vector, U, scores, mixture):  # type: ignore[no-untyped-def]
    """Σ a_s v_s -> `mixture`, where a is the softmax of q·k, or with a `vector` v of v·tanh(q + k).

    source    (numbers, values_at, places, first, count): key k begins at U · (first + k), its value `values_at` later
    vector    (numbers, at); at -1: none

    `scores` has room for `count`, rounded up to a multiple of LANES.
    """
    numbers, values_at, places, first, count = source
    floats, vector_at = vector
    for k in range(count):
        key = (first + k) * U
        if vector_at >= 0:
            scores[k] = additive_score(query, query_at, numbers, key, floats, vector_at, U)
        else:
            scores[k] = dot(query, query_at, numbers, key, U)
    _weigh(scores, count)
    mix_values(scores, places, first, count, numbers, values_at, U, mixture, 0)


@compiled
def mix_values(weights, places, first, count, numbers, at, U, mixture, out):  # type: ignore[no-untyped-def]
    """Σ a_k v_k -> `mixture` from `out` on; value k begins U · places[first + k] after `at`."""
    j = 0
    while j + FOUR <= U:
        mix_4(weights, 0, 0, places, first, count, numbers, at + j, U, 0, mixture, out + j)
        j += FOUR
    while j < U:
        mix_1(weights, 0, 0, places, first, count, numbers, at + j, U, 0, mixture, out + j)
        j += LANES


@compiled
def dot(query, query_at, numbers, key, U):  # type: ignore[no-untyped-def]
    """The product of a query and a key."""
    total, j = ZERO, 0
    while j + FOUR <= U:
        total += dot_4(query, query_at + j, numbers, key + j)
        j += FOUR
    while j < U:
        total += dot_1(query, query_at + j, numbers, key + j)
        j += LANES
    return total


@summing
def additive_score(query, query_at, numbers, key, floats, vector_at, U):  # type: ignore[no-untyped-def]
    """Σ vector · tanh(query + key), the score of additive attention."""
    total, vector, asking = ZERO, floats[vector_at : vector_at + U], query[query_at : query_at + U]
    keys = numbers[key : key + U]
    for j in range(len(vector)):
        total += vector[j] * tanh(asking[j] + keys[j])
    return total


@summing
def _weigh(scores, count):  # type: ignore[no-untyped-def]
    """Replace the scores by their softmax."""
    room = -(-count // LANES) * LANES
    for k in range(count, room):
        scores[k] = LOWEST
    top = largest(scores, 0, room // LANES)
    total = ZERO
    for k in range(room):
        scores[k] = exponential(scores[k] - top)
        total += scores[k]
    factor = ONE / total
    for k in range(room):
        scores[k] *= factor
