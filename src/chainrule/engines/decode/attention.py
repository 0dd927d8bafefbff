"""Attention of one query to positions that lie anywhere in a pool of keys and values."""

from __future__ import annotations

import numpy as np

from chainrule.engines.decode.compiling import compiled
from chainrule.engines.decode.functions import ONE, ZERO
from chainrule.engines.decode.maps import scale_vectors
from chainrule.engines.decode.sums import replace_by_exponentials
from chainrule.engines.decode.vectors import (
    LANES,
    MIXED,
    dot_1,
    energy_1,
    energy_2,
    energy_4,
    energy_of_lanes,
    largest,
    mix_1,
    mix_2,
    mix_4,
    mix_heads_1,
    mix_heads_2,
    mix_heads_4,
    score_1,
    score_2,
    score_4,
)

LOWEST = np.float32(-np.inf)


@compiled
def attend(query, query_at, lines, sizes, terms, scores, mixed, mixed_at):  # type: ignore[no-untyped-def]
    """softmax(scale · q·k + term) v of each head -> `mixed`.

    lines     (pool, keys, values, step, places, places_at, count): position k lies `step` · places[places_at + k] after
              the first key, and after the first value
    sizes     (heads, width of a head, scale); the width is a multiple of LANES
    terms     (numbers, first, window): a term for each head and distance from the last position; first -1: none

    `scores` has room for `count`, rounded up to a multiple of LANES, for each head. All heads of a position are read
    together, since they lie side by side.
    """
    heads, width, _ = sizes
    pool, _, values_at, step, places, places_at, count = lines
    room = -(-count // LANES) * LANES
    score(query, query_at, lines, sizes, False, scores, room)
    numbers, first, window = terms
    for head in range(heads):
        if first >= 0:
            last = first + head * window + count - 1
            for k in range(count):
                scores[head * room + k] += numbers[last - k]
        weigh(scores, head * room, count, room)
    mix(scores, room, places, places_at, count, pool, values_at, step, heads, width, mixed, mixed_at)


@compiled
def score(query, query_at, lines, sizes, rectified, scores, room):  # type: ignore[no-untyped-def]
    """scale · q·k of each head and position, or with `rectified` scale · ‖ReLU(q + k)‖²; heads are `room` apart."""
    pool, keys_at, _, step, places, places_at, count = lines
    heads, width, scale = sizes
    vectors, last = width // LANES, places_at + count - 1
    if vectors == 4:
        for k in range(0, count, LANES):
            at = places_at + k
            if rectified:
                energy_4(query, query_at, pool, keys_at, step, places, at, last, heads, scale, scores, k, room)
            else:
                score_4(query, query_at, pool, keys_at, step, places, at, last, heads, scale, scores, k, room)
    elif vectors == 2:
        for k in range(0, count, LANES):
            at = places_at + k
            if rectified:
                energy_2(query, query_at, pool, keys_at, step, places, at, last, heads, scale, scores, k, room)
            else:
                score_2(query, query_at, pool, keys_at, step, places, at, last, heads, scale, scores, k, room)
    elif vectors == 1:
        for k in range(0, count, LANES):
            at = places_at + k
            if rectified:
                energy_1(query, query_at, pool, keys_at, step, places, at, last, heads, scale, scores, k, room)
            else:
                score_1(query, query_at, pool, keys_at, step, places, at, last, heads, scale, scores, k, room)
    else:
        _score_wide_heads(query, query_at, lines, sizes, rectified, scores, room)


@compiled
def _score_wide_heads(query, query_at, lines, sizes, rectified, scores, room):  # type: ignore[no-untyped-def]
    pool, keys_at, _, step, places, places_at, count = lines
    heads, width, scale = sizes
    for k in range(count):
        key = keys_at + step * places[places_at + k]
        for head in range(heads):
            total = ZERO
            for j in range(head * width, (head + 1) * width, LANES):
                if rectified:
                    total += energy_of_lanes(query, query_at + j, pool, key + j)
                else:
                    total += dot_1(query, query_at + j, pool, key + j)
            scores[head * room + k] = scale * total


@compiled
def weigh(scores, at, count, room):  # type: ignore[no-untyped-def]
    """Replace the scores of a head by their softmax."""
    for k in range(at + count, at + room):
        scores[k] = LOWEST
    top = largest(scores, at, room // LANES)
    factor = ONE / replace_by_exponentials(scores, at, room // LANES, top)
    scale_vectors(scores, at, scores, at, scores, at, room // LANES, factor, ZERO)


@compiled
def mix(weights, room, places, places_at, count, pool, values_at, step, heads, width, mixed, mixed_at):  # type: ignore[no-untyped-def]
    j = 0
    while j < width:
        left = (width - j) // LANES
        size = 4 if left >= 4 else 2 if left >= 2 else 1
        together = MIXED // size
        head = 0
        while head + together <= heads:
            weights_at, shift = head * room, head * width + j
            value, out = values_at + shift, mixed_at + shift
            if size == 4:
                mix_heads_4(weights, weights_at, room, places, places_at, count, pool, value, step, width, mixed, out)
            elif size == 2:
                mix_heads_2(weights, weights_at, room, places, places_at, count, pool, value, step, width, mixed, out)
            else:
                mix_heads_1(weights, weights_at, room, places, places_at, count, pool, value, step, width, mixed, out)
            head += together
        while head < heads:
            weights_at, shift = head * room, head * width + j
            value, out = values_at + shift, mixed_at + shift
            if size == 4:
                mix_4(weights, weights_at, room, places, places_at, count, pool, value, step, width, mixed, out)
            elif size == 2:
                mix_2(weights, weights_at, room, places, places_at, count, pool, value, step, width, mixed, out)
            else:
                mix_1(weights, weights_at, room, places, places_at, count, pool, value, step, width, mixed, out)
            head += 1
        j += size * LANES
