"""Slow multi-head attention of one query: a score is the norm of the rectified sum of query and key.

e_k = ‖ReLU(q + k)‖ / √E      out = (Σ_k softmax_k(e_k) v_k) ⊙ σ(gate)      as in `layers/attention/slow.py`
"""

from __future__ import annotations

import numpy as np

from chainrule.engines.decode.attention import mix, score, weigh
from chainrule.engines.decode.compiling import compiled
from chainrule.engines.decode.functions import sigmoid
from chainrule.engines.decode.vectors import LANES


@compiled
def attend_slowly(query, query_at, lines, sizes, gate, scores, mixed, mixed_at):  # type: ignore[no-untyped-def]
    """The gated mixture of each head -> `mixed`, as `attend` does; the gates begin `gate` after the query."""
    heads, width, _ = sizes
    pool, _, values, step, order, first, count = lines
    room = -(-count // LANES) * LANES
    score(query, query_at, lines, sizes, True, scores, room)
    for head in range(heads):
        own = scores[head * room : head * room + count]
        for k in range(len(own)):
            own[k] = np.sqrt(own[k])
        weigh(scores, head * room, count, room)
    mix(scores, room, order, first, count, pool, values, step, heads, width, mixed, mixed_at)
    X = heads * width
    out, gates = mixed[mixed_at : mixed_at + X], query[query_at + gate : query_at + gate + X]
    for j in range(len(out)):
        out[j] *= sigmoid(gates[j])
