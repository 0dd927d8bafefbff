"""The attention of the blocks of a stack: to the past, to all of a text, and to a source.

The tokens of a row are side by side. What a kind of attention computes for one token is in `attention.py` (softmax),
`linear_attention.py`, `slow_attention.py` and `fast_softmax.py`; the kinds are those of `stack_layout.py`.
"""

from __future__ import annotations

from chainrule.engines.decode.attention import attend
from chainrule.engines.decode.compiling import compiled
from chainrule.engines.decode.fast_softmax import attend_by_fast_softmax
from chainrule.engines.decode.linear import FLOATS, apply_linear
from chainrule.engines.decode.linear_attention import advance_heads, map_features
from chainrule.engines.decode.maps import copy
from chainrule.engines.decode.slow_attention import attend_slowly
from chainrule.engines.decode.stack_layout import (
    ATTENTION,
    CAUSAL,
    COSINES,
    DECAYS,
    DIRECTION,
    DISTANCES,
    FAST_SOURCE,
    HEAD,
    HEADS,
    INTO,
    LAYERS,
    LEFT_TO_RIGHT,
    LINEAR,
    MEMORY,
    NORM,
    NORM_BIAS,
    OFFSETS,
    OUT,
    QUERY,
    REAL_HEAD,
    RIGHT_TO_LEFT,
    SCORE_SCALE,
    SHARPNESS,
    SINES,
    SLOW,
    SOURCE,
    SOURCE_NORM,
    SOURCE_NORM_BIAS,
    SOURCE_OUT,
    WINDOW,
)
from chainrule.engines.decode.stack_parts import after, before


@compiled
def attend_to_text(model, number, past, items, room):  # type: ignore[no-untyped-def]
    """Attention of one layer to the text: x + W attention(norm x), or norm(x + W attention(x))."""
    shape, _, blocks, weights = model
    row_N, position_N, _ = items
    cache, sums = past
    _, inputs, wide, mixed, scores, bytes_, stride, _, _ = room
    block, N, X, kind = blocks[number], len(row_N), shape[HEADS] * shape[HEAD], shape[ATTENTION]
    step = (4 if kind == SLOW else 3) * X
    before(model, block[NORM], block[NORM_BIAS], N, room)
    apply_linear(weights, block[INTO], inputs, 0, stride, wide, 0, step, N, bytes_)
    if kind == LINEAR:
        _read_sums(model, number, sums, row_N, wide, mixed)
    elif kind == CAUSAL:
        _read_places(model, number, cache, row_N, position_N, wide, scores, mixed)
    else:
        _read_whole(model, step, cache, row_N, position_N, wide, scores, mixed)
    after(model, block[OUT], block[NORM], block[NORM_BIAS], mixed, X, wide, N, room)


@compiled
def _read_places(model, number, cache, row_N, position_N, wide, scores, mixed):  # type: ignore[no-untyped-def]
    """Each token attends to itself and to those before it, whose keys and values lie in a pool."""
    shape, constants, _, weights = model
    pool, capacity, _, places, _, positions = cache
    N, X = len(row_N), shape[HEADS] * shape[HEAD]
    keys = number * capacity * 2 * X
    values = keys + capacity * X
    for n in range(N):
        place = places[row_N[n] * positions + position_N[n]] * X
        _rotate(shape, weights[FLOATS], wide, n * 3 * X, position_N[n])
        copy(wide, n * 3 * X + X, pool, keys + place, X)
        copy(wide, n * 3 * X + 2 * X, pool, values + place, X)
    sizes = shape[HEADS], shape[HEAD], constants[SCORE_SCALE]
    terms = weights[FLOATS], shape[DISTANCES], shape[WINDOW]
    for n in range(N):
        lines = pool, keys, values, X, places, row_N[n] * positions, position_N[n] + 1
        attend(wide, n * 3 * X, lines, sizes, terms, scores, mixed, n * X)


@compiled
def _read_sums(model, number, sums, row_N, wide, mixed):  # type: ignore[no-untyped-def]
    """Each token adds itself to the sums of its row, and reads them."""
    shape, _, blocks, weights = model
    old, from_R, new, slots = sums
    N, width, padded = len(row_N), shape[REAL_HEAD], shape[HEAD]
    X = shape[HEADS] * padded
    sizes, decays = (shape[HEADS], width, padded), (weights[FLOATS], blocks[number, DECAYS])
    own = number * shape[HEADS] * (width + 1) * padded
    for n in range(N):
        row, parts_at = row_N[n], n * 3 * X
        at = row * slots + own
        map_features(wide, parts_at, 2 * X, width, padded)
        if n > 0 and row_N[n - 1] == row:
            advance_heads(new, at, new, at, wide, parts_at, decays, sizes, mixed, n * X)
        else:
            advance_heads(old, from_R[row] * slots + own, new, at, wide, parts_at, decays, sizes, mixed, n * X)


@compiled
def _read_whole(model, step, cache, row_N, position_N, wide, scores, mixed):  # type: ignore[no-untyped-def]
    """Each token attends to those of its row that it sees, all of which are read in this call."""
    shape, constants, _, weights = model
    order = cache[3]
    N, X = len(row_N), shape[HEADS] * shape[HEAD]
    sizes, terms = (shape[HEADS], shape[HEAD], constants[SCORE_SCALE]), (weights[FLOATS], -1, 0)
    for n in range(N):
        _rotate(shape, weights[FLOATS], wide, n * step, position_N[n])
    begin = end = 0
    for n in range(N):
        if n == end:
            begin = n
            while end < N and row_N[end] == row_N[n]:
                end += 1
        if shape[ATTENTION] == SLOW:
            first = n if shape[DIRECTION] == RIGHT_TO_LEFT else begin
            last = n + 1 if shape[DIRECTION] == LEFT_TO_RIGHT else end
            lines = wide, X, 2 * X, step, order, first, last - first
            attend_slowly(wide, n * step, lines, sizes, 3 * X, scores, mixed, n * X)
        else:
            lines = wide, X, 2 * X, step, order, begin, end - begin
            attend(wide, n * step, lines, sizes, terms, scores, mixed, n * X)


@compiled
def attend_to_source(model, number, memory, items, room):  # type: ignore[no-untyped-def]
    """Attention of one layer to the source."""
    shape, constants, blocks, weights = model
    numbers, capacity, order, start_R, count_R, place_S = memory
    row_N, position_N, _ = items
    _, inputs, wide, mixed, scores, bytes_, stride, _, _ = room
    block, N, X = blocks[number], len(row_N), shape[HEADS] * shape[HEAD]
    before(model, block[SOURCE_NORM], block[SOURCE_NORM_BIAS], N, room)
    apply_linear(weights, block[QUERY], inputs, 0, stride, wide, 0, X, N, bytes_)
    keys = number * capacity * 2 * X
    sizes, terms = (shape[HEADS], shape[HEAD], constants[SCORE_SCALE]), (weights[FLOATS], -1, 0)
    for n in range(N):
        lines = numbers, keys, keys + X, 2 * X, order, start_R[row_N[n]], count_R[row_N[n]]
        if shape[SOURCE] == FAST_SOURCE:
            offsets = weights[FLOATS], block[OFFSETS], block[SHARPNESS], shape[WINDOW]
            attend_by_fast_softmax(wide, n * X, lines, sizes, offsets, place_S, position_N[n], scores, mixed, n * X)
        else:
            attend(wide, n * X, lines, sizes, terms, scores, mixed, n * X)
    after(model, block[SOURCE_OUT], block[SOURCE_NORM], block[SOURCE_NORM_BIAS], mixed, X, wide, N, room)


@compiled
def project_sources(model, encoded, D, begin, end, numbers, capacity, bytes_):  # type: ignore[no-untyped-def]
    """The keys and values of all layers for the positions from `begin` to `end` of encoded sources."""
    shape, _, blocks, weights = model
    X = 2 * shape[HEADS] * shape[HEAD]
    for number in range(shape[LAYERS]):
        at = (number * capacity + begin) * X
        apply_linear(weights, blocks[number, MEMORY], encoded, begin * D, D, numbers, at, X, end - begin, bytes_)


@compiled
def _rotate(shape, floats, parts, at, position):  # type: ignore[no-untyped-def]
    """Rotate query and key of a token, which lie side by side, by its position."""
    if shape[COSINES] < 0:
        return
    half = shape[REAL_HEAD] // 2
    cosines, sines = shape[COSINES] + position * half, shape[SINES] + position * half
    for head in range(2 * shape[HEADS]):
        low = at + head * shape[HEAD]
        for j in range(half):
            a, b = parts[low + j], parts[low + half + j]
            parts[low + j] = a * floats[cosines + j] - b * floats[sines + j]
            parts[low + half + j] = b * floats[cosines + j] + a * floats[sines + j]
