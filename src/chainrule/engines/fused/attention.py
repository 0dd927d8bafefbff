"""Causal self-attention of whole rows and its gradients, one head of one row at a time.

    o_t = Σ_k p_tk·v_k        p_tk = softmax over k ≤ t of scale·q_t·k_k

A head's queries, keys and values are copied into buffers that fit the caches, rotated on the way. Queries are processed
in blocks, each with the keys up to its end. Nothing of the size of the weights is kept: the backward pass computes them
again from the logarithm of the sum of each softmax (Dao et al., "FlashAttention", 2022).

Buffers are flat and padded with zeros: positions to a multiple of 32, the width of a head to one of 16.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from chainrule.engines.decode.compiling import inlined
from chainrule.engines.decode.compiling import summing as compiled
from chainrule.engines.decode.functions import ONE, ZERO
from chainrule.engines.decode.maps import scale_vectors, weigh_differences
from chainrule.engines.decode.sums import replace_by_exponentials
from chainrule.engines.decode.vectors import LANES, largest
from chainrule.engines.fused.tiles import ROWS, adding_tile_1, adding_tile_2, tile_1, tile_2

BLOCK = 32
"""Queries of a block, and keys of two vectors."""

LOWEST = np.float32(-np.inf)


def buffers(length: int, head: int) -> tuple[np.ndarray[Any, Any], ...]:
    """Zeros for one head: six of positions × width, two of block × positions."""
    places, width = -(-length // BLOCK) * BLOCK, -(-head // 16) * 16
    return tuple(np.zeros(size, np.float32) for size in [places * width] * 8 + [BLOCK * places] * 2)


@compiled
def attend(projected_NX, rows, heads, scale, cos_TE, sin_TE, kept_BHTT, first, room, mixed_NX, log_sum_BHT):  # type: ignore[no-untyped-def]
    """Mix the values of each row for its queries from position `first` on.

    projected_NX  queries, keys and values of the heads side by side; cos, sin: empty if there are no rotary positions
    kept_BHTT     factors of the weights (dropout); empty: none
    room          `buffers`
    mixed_NX      only the positions from `first` on
    log_sum_BHT   log Σ exp of the scores of each query, for the backward pass
    """
    T, E = len(projected_NX) // rows, projected_NX.shape[1] // (3 * heads)
    query, key, turned, value, mixed, _, _, _, weights, _ = room
    places, width, new = _rounded(T, BLOCK), _rounded(E, 16), T - first
    for item in range(rows * heads):
        row, head = item // heads, item % heads
        lines = projected_NX[row * T : (row + 1) * T]
        _copy_turned(lines, head * E, E, scale, cos_TE, sin_TE, query, width)
        _copy_turned(lines, (heads + head) * E, E, ONE, cos_TE, sin_TE, turned, width)
        _transpose(turned, T, width, key, places)
        _copy(lines, (2 * heads + head) * E, E, value, width)
        for begin in range(first // BLOCK * BLOCK, T, BLOCK):
            end = min(begin + BLOCK, T)
            _score(query, key, begin, width, places, weights)
            for t in range(begin, end):
                at = (t - begin) * places
                log_sum_BHT[row, head, t] = _softmax(weights, at, t + 1, begin + BLOCK)
                if kept_BHTT.size:
                    _multiply(weights[at : at + places], kept_BHTT[row, head, t], t + 1)
            _mix(weights, places, 1, value, begin + BLOCK, width, mixed, begin * width, BLOCK)
            for t in range(max(begin, first), end):
                _copy_line(mixed[t * width : t * width + E], mixed_NX[row * new + t - first, head * E : (head + 1) * E])


@compiled
def attend_backward(  # type: ignore[no-untyped-def]
    projected_NX, rows, heads, scale, cos_TE, sin_TE, kept_BHTT, mixed_NX, log_sum_BHT, grad_NX, room, out_NX
):
    """The gradient of `projected_NX`, given `grad_NX` of the mixed values of all positions."""
    T, E = len(projected_NX) // rows, projected_NX.shape[1] // (3 * heads)
    query, key, turned, value, grad, query_grad, key_grad, value_grad, weights, changes = room
    places, width = _rounded(T, BLOCK), _rounded(E, 16)
    for item in range(rows * heads):
        row, head = item // heads, item % heads
        lines, out = projected_NX[row * T : (row + 1) * T], out_NX[row * T : (row + 1) * T]
        mixed, grads = mixed_NX[row * T : (row + 1) * T], grad_NX[row * T : (row + 1) * T]
        _copy_turned(lines, head * E, E, scale, cos_TE, sin_TE, query, width)
        _copy_turned(lines, (heads + head) * E, E, ONE, cos_TE, sin_TE, turned, width)
        _transpose(turned, T, width, key, places)
        _copy(lines, (2 * heads + head) * E, E, grad, width)
        _transpose(grad, T, width, value, places)
        _copy(grads, head * E, E, grad, width)
        key_grad[:] = ZERO
        value_grad[:] = ZERO
        for begin in range(0, T, BLOCK):
            seen, end = begin + BLOCK, min(begin + BLOCK, T)
            _score(query, key, begin, width, places, weights)
            _score(grad, value, begin, width, places, changes)
            for t in range(begin, end):
                at = (t - begin) * places
                if kept_BHTT.size:
                    _multiply(changes[at : at + places], kept_BHTT[row, head, t], t + 1)
                along = _dot(mixed[t, head * E : (head + 1) * E], grads[t, head * E : (head + 1) * E])
                _differentiate(weights, changes, at, t + 1, seen, log_sum_BHT[row, head, t], along)
                if kept_BHTT.size:
                    _multiply(weights[at : at + places], kept_BHTT[row, head, t], t + 1)
            weights[(end - begin) * places :] = ZERO
            changes[(end - begin) * places :] = ZERO
            _mix(changes, places, 1, turned, seen, width, query_grad, begin * width, BLOCK)
            _add_mix(changes, places, query, begin, width, key_grad, seen)
            _add_mix(weights, places, grad, begin, width, value_grad, seen)
        _write_turned(query_grad, width, out, head * E, E, scale, cos_TE, sin_TE)
        _write_turned(key_grad, width, out, (heads + head) * E, E, ONE, cos_TE, sin_TE)
        at = (2 * heads + head) * E
        for t in range(T):
            _copy_line(value_grad[t * width : t * width + E], out[t, at : at + E])


# Products


@compiled
def _score(query, key, begin, width, places, scores):  # type: ignore[no-untyped-def]
    """Products of a block of queries with the keys (transposed) up to each 8 queries' end."""
    for r in range(0, BLOCK, ROWS):
        for k in range(0, begin + r + ROWS, BLOCK):
            tile_2(query, (begin + r) * width, width, 1, key, k, places, scores, scores, r * places + k, places, width)


@compiled
def _mix(weights, row_step, term_step, values, count, width, mixed, mixed_at, rows):  # type: ignore[no-untyped-def]
    """The first `count` values, weighted."""
    for r in range(0, rows, ROWS):
        terms = count - rows + r + ROWS  # later weights are 0
        at, out = r * row_step, mixed_at + r * width
        for j in range(0, width - 16, 32):
            tile_2(weights, at, row_step, term_step, values, j, width, mixed, mixed, out + j, width, terms)
        if width % 32:
            tile_1(
                weights,
                at,
                row_step,
                term_step,
                values,
                width - 16,
                width,
                mixed,
                mixed,
                out + width - 16,
                width,
                terms,
            )


@compiled
def _add_mix(weights, places, values, begin, width, sums, seen):  # type: ignore[no-untyped-def]
    """Add a block's values, weighted, to the sum of each key that it sees."""
    for k in range(0, seen, ROWS):
        skipped = max(k - begin, 0) // ROWS * ROWS  # queries before the keys
        at, lines, out, count = skipped * places + k, (begin + skipped) * width, k * width, BLOCK - skipped
        for j in range(0, width - 16, 32):
            adding_tile_2(weights, at, 1, places, values, lines + j, width, sums, sums, out + j, width, count)
        if width % 32:
            j = width - 16
            adding_tile_1(weights, at, 1, places, values, lines + j, width, sums, sums, out + j, width, count)


@inlined
def _dot(one, other):  # type: ignore[no-untyped-def]
    total = ZERO
    for j in range(len(one)):
        total += one[j] * other[j]
    return total


# Softmax


@compiled
def _softmax(weights, at, count, seen):  # type: ignore[no-untyped-def]
    """The softmax of the first `count` of `seen` scores, in place; the others become 0 -> log Σ exp."""
    weights[at + count : at + seen] = LOWEST
    top = largest(weights, at, seen // LANES)
    total = replace_by_exponentials(weights, at, seen // LANES, top)
    scale_vectors(weights, at, weights, at, weights, at, seen // LANES, ONE / total, ZERO)
    return top + np.log(total)


@compiled
def _differentiate(weights, changes, at, count, seen, log_sum, along):  # type: ignore[no-untyped-def]
    """Scores become weights, and the gradient of the weights becomes that of the scores."""
    weights[at + count : at + seen] = LOWEST
    replace_by_exponentials(weights, at, seen // LANES, log_sum)
    changes[at + count : at + seen] = ZERO
    weigh_differences(changes, at, changes, at, weights, at, seen // LANES, along, ZERO)


@inlined
def _multiply(line, factors, count):  # type: ignore[no-untyped-def]
    for k in range(count):
        line[k] *= factors[k]


# Buffers


@inlined
def _rounded(count, unit):  # type: ignore[no-untyped-def]
    return (count + unit - 1) // unit * unit


@compiled
def _copy(lines_TX, at, head, out, width):  # type: ignore[no-untyped-def]
    for t in range(len(lines_TX)):
        _copy_line(lines_TX[t, at : at + head], out[t * width : t * width + head])


@inlined
def _copy_line(line, out):  # type: ignore[no-untyped-def]
    for j in range(len(line)):
        out[j] = line[j]


@compiled
def _copy_turned(lines_TX, at, head, scale, cos_TE, sin_TE, out, width):  # type: ignore[no-untyped-def]
    """Rotated and scaled. The first half of `sin_TE` has a negative sign: a rotation is x·cos + swapped x·sin."""
    half = head // 2
    for t in range(len(lines_TX)):
        line, to = lines_TX[t, at : at + head], out[t * width : t * width + head]
        if cos_TE.size:
            _turn(line[:half], line[half:], cos_TE[t, :half], sin_TE[t, :half], scale, to[:half])
            _turn(line[half:], line[:half], cos_TE[t, half:], sin_TE[t, half:], scale, to[half:])
        else:
            for j in range(head):
                to[j] = scale * line[j]


@compiled
def _write_turned(grads, width, out_TX, at, head, scale, cos_TE, sin_TE):  # type: ignore[no-untyped-def]
    """The gradient of what `_copy_turned` read."""
    half = head // 2
    for t in range(len(out_TX)):
        line, to = grads[t * width : t * width + head], out_TX[t, at : at + head]
        if cos_TE.size:
            _turn(line[:half], line[half:], cos_TE[t, :half], sin_TE[t, half:], scale, to[:half])
            _turn(line[half:], line[:half], cos_TE[t, half:], sin_TE[t, :half], scale, to[half:])
        else:
            for j in range(head):
                to[j] = scale * line[j]


@inlined
def _turn(line, other, cos, sin, scale, out):  # type: ignore[no-untyped-def]
    for j in range(len(out)):
        out[j] = scale * (line[j] * cos[j] + other[j] * sin[j])


@compiled
def _transpose(lines, length, width, out, places):  # type: ignore[no-untyped-def]
    """Positions × width becomes width × positions, 16 positions at a time."""
    for begin in range(0, length, 16):
        end = min(begin + 16, length)
        for j in range(width):
            for t in range(begin, end):
                out[j * places + t] = lines[t * width + j]
