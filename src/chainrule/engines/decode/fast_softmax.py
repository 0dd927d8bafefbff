"""The fast fully connected softmax of one query: scores are bounded by a tanh, and depend on the offset of a position.

Ω_s = q·k_s / √E + U(s - t) + b      a_s = softmax_s c tanh Ω_s      as in `layers/attention/fast_softmax.py`
"""

from __future__ import annotations

from chainrule.engines.decode.attention import mix, score, weigh
from chainrule.engines.decode.compiling import compiled
from chainrule.engines.decode.functions import tanh
from chainrule.engines.decode.vectors import LANES


@compiled
def attend_by_fast_softmax(query, query_at, lines, sizes, offsets, place_S, position, scores, mixed, mixed_at):  # type: ignore[no-untyped-def]
    """Σ a v of each head -> `mixed`, as `attend` does.

    offsets   (floats, terms, factors, window): U + b of the offsets from 1 - window on, for each head, and c of each
    place_S   where each position of the sources is in its text; the query is at `position`
    """
    heads, width, _ = sizes
    pool, _, values, step, order, first, count = lines
    floats, terms, factors, window = offsets
    room = -(-count // LANES) * LANES
    score(query, query_at, lines, sizes, False, scores, room)
    for head in range(heads):
        here = terms + head * (2 * window - 1) + window - 1 - position
        for k in range(count):
            scores[head * room + k] += floats[here + place_S[first + k]]
        factor, own = floats[factors + head], scores[head * room : head * room + count]
        for k in range(len(own)):
            own[k] = factor * tanh(own[k])
        weigh(scores, head * room, count, room)
    mix(scores, room, order, first, count, pool, values, step, heads, width, mixed, mixed_at)
