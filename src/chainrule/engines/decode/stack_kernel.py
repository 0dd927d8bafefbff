"""The layers of a Transformer decoder for some positions, in one compiled call.

The N positions are new tokens of one or more rows, in any mixture: one token of each of many rows, many tokens of one.
A layer computes keys and values of all of them before the first attends, so a token sees the earlier new tokens of its
row. Vectors of the stream are D wide, rounded up to a multiple of LANES; those inside attention X = heads · width of a
head, which is rounded up too.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from chainrule.engines.decode.attention import LOWEST, attend
from chainrule.engines.decode.compiling import compiled
from chainrule.engines.decode.functions import ONE, ZERO, activate
from chainrule.engines.decode.linear import FLOATS, LINEARS, OUTPUTS, apply_linear
from chainrule.engines.decode.maps import add, copy, normalise_vectors, scale, subtract
from chainrule.engines.decode.sums import sum_of_differences, sum_of_exponentials, sum_of_squares
from chainrule.engines.decode.vectors import LANES, largest


class Shape(IntEnum):
    """Entries of `shape`."""

    LAYERS = 0
    WIDTH = 1  # of the stream
    HEADS = 2
    HEAD = 3  # width of a head, rounded up
    ROTATED = 4  # width of a head as it is rotated
    INNER = 5  # width of the feed-forward layer
    ACTIVATION = 6  # index of ACTIVATIONS
    PRE = 7  # 1: norms before each part, 0: after its sum
    GATED = 8  # 1: a second projection multiplies the activations
    RMS = 9  # 1: RMSNorm
    COSINES = 10  # of rotary positions, in `floats`; -1: no rotation
    SINES = 11
    POSITIONS = 12  # the vectors that are added to embeddings, in `floats`; -1: none
    NORM = 13  # the final norm, in `floats`; -1: none
    NORM_BIAS = 14
    OUTPUT = 15  # the output layer in `linears`; -1: features are wanted
    DISTANCES = 16  # terms of the scores by head and distance, WINDOW for each head, in `floats`; -1: none
    WINDOW = 17
    SOURCE = 18  # 1: blocks attend to a source
    CAUSAL = 19  # 1: a position attends to itself and those before it, 0: to all of its row, which is read in one call


class Part(IntEnum):
    """Columns of `blocks`: norms (scale and bias in `floats`, -1: none) and layers (index in `linears`)."""

    NORM = 0
    NORM_BIAS = 1
    INTO = 2
    OUT = 3
    SOURCE_NORM = 4
    SOURCE_NORM_BIAS = 5
    QUERY = 6
    SOURCE_OUT = 7
    FEED_NORM = 8
    FEED_NORM_BIAS = 9
    WIDEN = 10
    NARROW = 11


# As plain numbers, which kernels can use:
(LAYERS, WIDTH, HEADS, HEAD, ROTATED, INNER, ACTIVATION, PRE, GATED, RMS) = range(10)
(COSINES, SINES, POSITIONS, FINAL_NORM, FINAL_NORM_BIAS, OUTPUT, DISTANCES, WINDOW, SOURCE, CAUSAL) = range(10, 20)
(NORM, NORM_BIAS, INTO, OUT, SOURCE_NORM, SOURCE_NORM_BIAS, QUERY, SOURCE_OUT) = range(8)
(FEED_NORM, FEED_NORM_BIAS, WIDEN, NARROW) = range(8, 12)
EMBEDDING_SCALE, SCORE_SCALE, EPSILON = range(3)
"""Entries of `constants`."""

STREAM, STRIDE, LOGITS, SHIFTS = 0, 6, 7, 8
"""Entries of `room`."""


@compiled
def read_tokens(model, cache, memory, embedding, items, wanted_M, results, room):  # type: ignore[no-untyped-def]
    """Read N tokens: write their keys and values into the pool, and the results of `wanted_M` of them.

    model     (shape, constants, blocks, weights), with the weights of `linear.py`
    cache     (pool, capacity, first, places, tokens, room): position p of row r lies in the place places[r · room + p]
              of the pool, which has `capacity` places for each layer. The new ones, from `first` on, are entered there,
              and the tokens in `tokens`.
    memory    (numbers, capacity, places, start_R, count_R): row r attends to the positions start_R[r] … start_R[r] +
              count_R[r] of the sources, whose keys and values lie in `numbers` as those of texts do in the pool
    items     (row_N, position_N, token_N)
    room      arrays of `make_room`

    Results are log-probabilities if the model has an output layer, and features otherwise.
    """
    compute(model, cache, memory, embedding, items, wanted_M, room)
    shape, weights = model[0], model[3]
    _, inputs, _, _, _, _, stride, logits, _ = room
    for m in range(len(wanted_M)):
        if shape[OUTPUT] < 0:
            copy(inputs, m * stride, results[m], 0, shape[WIDTH])
        else:
            width = weights[LINEARS][shape[OUTPUT], OUTPUTS]
            log_softmax(logits, m * width, results[m])


@compiled
def compute(model, cache, memory, embedding, items, wanted_M, room):  # type: ignore[no-untyped-def]
    """Everything before the softmax: the scores of the words, or the features in place of inputs."""
    shape, constants, blocks, weights = model
    row_N, position_N, token_N = items
    N = len(row_N)
    inner = weights[LINEARS][blocks[0, WIDEN], OUTPUTS]
    _enter(cache, items)
    _embed(shape, constants, weights[FLOATS], embedding, position_N, token_N, room)
    for number in range(shape[LAYERS]):
        _attend_to_past(model, number, cache, items, room)
        if shape[SOURCE]:
            _attend_to_source(model, number, memory, items, room)
        _feed_forward(model, number, N, inner, room)
    _finish(model, wanted_M, room)


@compiled
def _enter(cache, items):  # type: ignore[no-untyped-def]
    """Note the places and the tokens of the new positions."""
    _, _, first, places, tokens, room = cache
    row_N, position_N, token_N = items
    for n in range(len(row_N)):
        places[row_N[n] * room + position_N[n]] = first + n
        tokens[row_N[n] * room + position_N[n]] = token_N[n]


@compiled
def _embed(shape, constants, floats, embedding, position_N, token_N, room):  # type: ignore[no-untyped-def]
    stream, stride = room[STREAM], room[STRIDE]
    D = shape[WIDTH]
    for n in range(len(token_N)):
        at, out = token_N[n] * D, n * stride
        scale(embedding, at, constants[EMBEDDING_SCALE], stream, out, D)
        for j in range(D, stride):
            stream[out + j] = ZERO
        if shape[POSITIONS] >= 0:
            add(stream, out, floats, shape[POSITIONS] + position_N[n] * D, D)


@compiled
def _attend_to_past(model, number, cache, items, room):  # type: ignore[no-untyped-def]
    """Self-attention of one layer; the tokens of a row are side by side."""
    shape, constants, blocks, weights = model
    pool, capacity, _, places, _, positions = cache
    row_N, position_N, _ = items
    _, inputs, wide, mixed, scores, bytes_, stride, _, _ = room
    block, N, X = blocks[number], len(row_N), shape[HEADS] * shape[HEAD]
    _before(model, block[NORM], block[NORM_BIAS], N, room)
    apply_linear(weights, block[INTO], inputs, 0, stride, wide, 0, 3 * X, N, bytes_)
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
        last = n
        while not shape[CAUSAL] and last + 1 < N and row_N[last + 1] == row_N[n]:
            last += 1
        positions_at, count = row_N[n] * positions, position_N[last] + 1
        lines = pool, keys, values, X, places, positions_at, count
        attend(wide, n * 3 * X, lines, sizes, terms, scores, mixed, n * X)
    _after(model, block[OUT], block[NORM], block[NORM_BIAS], mixed, X, wide, N, room)


@compiled
def _attend_to_source(model, number, memory, items, room):  # type: ignore[no-untyped-def]
    """Attention of one layer to the source."""
    shape, constants, blocks, weights = model
    numbers, capacity, places, start_R, count_R = memory
    row_N = items[0]
    _, inputs, wide, mixed, scores, bytes_, stride, _, _ = room
    block, N, X = blocks[number], len(row_N), shape[HEADS] * shape[HEAD]
    _before(model, block[SOURCE_NORM], block[SOURCE_NORM_BIAS], N, room)
    apply_linear(weights, block[QUERY], inputs, 0, stride, wide, 0, X, N, bytes_)
    keys = number * capacity * 2 * X
    values = keys + capacity * X
    sizes, terms = (shape[HEADS], shape[HEAD], constants[SCORE_SCALE]), (weights[FLOATS], -1, 0)
    for n in range(N):
        lines = numbers, keys, values, X, places, start_R[row_N[n]], count_R[row_N[n]]
        attend(wide, n * X, lines, sizes, terms, scores, mixed, n * X)
    _after(model, block[SOURCE_OUT], block[SOURCE_NORM], block[SOURCE_NORM_BIAS], mixed, X, wide, N, room)


@compiled
def _feed_forward(model, number, N, inner, room):  # type: ignore[no-untyped-def]
    shape, _, blocks, weights = model
    _, inputs, wide, mixed, _, bytes_, stride, _, _ = room
    block = blocks[number]
    _before(model, block[FEED_NORM], block[FEED_NORM_BIAS], N, room)
    apply_linear(weights, block[WIDEN], inputs, 0, stride, wide, 0, inner, N, bytes_)
    if shape[GATED]:
        for n in range(N):
            at, gate = n * inner, n * inner + shape[INNER]
            activate(shape[ACTIVATION], wide, at, shape[INNER])
            for j in range(shape[INNER]):
                wide[at + j] *= wide[gate + j]
    else:
        activate(shape[ACTIVATION], wide, 0, N * inner)
    _after(model, block[NARROW], block[FEED_NORM], block[FEED_NORM_BIAS], wide, inner, mixed, N, room)


@compiled
def _before(model, norm, bias, N, room):  # type: ignore[no-untyped-def]
    """Set the inputs of a part: the normalised stream, or the stream itself if norms come after."""
    shape, constants, _, weights = model
    stream, inputs, _, _, _, _, stride, _, _ = room
    if not shape[PRE]:
        copy(stream, 0, inputs, 0, N * stride)
        return
    for n in range(N):
        normalise(shape, constants, weights[FLOATS], norm, bias, stream, n * stride, inputs, n * stride)


@compiled
def _after(model, layer, norm, bias, values, step, out, N, room):  # type: ignore[no-untyped-def]
    """Add the last product of a part to the stream, and normalise the sum if norms come after."""
    shape, constants, _, weights = model
    stream, _, _, _, _, bytes_, stride, _, _ = room
    apply_linear(weights, layer, values, 0, step, out, 0, stride, N, bytes_)
    add(stream, 0, out, 0, N * stride)
    if not shape[PRE]:
        for n in range(N):
            normalise(shape, constants, weights[FLOATS], norm, bias, stream, n * stride, stream, n * stride)


@compiled
def normalise(shape, constants, floats, scale_at, bias_at, values, at, out, out_at):  # type: ignore[no-untyped-def]
    """LayerNorm or RMSNorm of one vector."""
    D = shape[WIDTH]
    whole = D // LANES
    mean = ZERO
    if not shape[RMS]:
        total = sum_of_differences(values, at, whole, ZERO) if whole else ZERO
        for j in range(at + whole * LANES, at + D):
            total += values[j]
        mean = total / np.float32(D)
    squares = sum_of_squares(values, at, whole, mean) if whole else ZERO
    for j in range(at + whole * LANES, at + D):
        squares += (values[j] - mean) * (values[j] - mean)
    factor = ONE / np.sqrt(squares / np.float32(D) + constants[EPSILON])
    vectors = -(-D // LANES)  # tables end with zeros, and so do the vectors
    normalise_vectors(out, out_at, values, at, floats, scale_at, vectors, mean, factor)
    if bias_at >= 0:
        add(out, out_at, floats, bias_at, D)


@compiled
def _rotate(shape, floats, parts, at, position):  # type: ignore[no-untyped-def]
    """Rotate query and key of a token, which lie side by side, by its position."""
    if shape[COSINES] < 0:
        return
    half = shape[ROTATED] // 2
    cosines, sines = shape[COSINES] + position * half, shape[SINES] + position * half
    for head in range(2 * shape[HEADS]):
        low = at + head * shape[HEAD]
        for j in range(half):
            a, b = parts[low + j], parts[low + half + j]
            parts[low + j] = a * floats[cosines + j] - b * floats[sines + j]
            parts[low + half + j] = b * floats[cosines + j] + a * floats[sines + j]


@compiled
def _finish(model, wanted_M, room):  # type: ignore[no-untyped-def]
    """Final norm and output layer of the wanted positions."""
    shape, constants, _, weights = model
    stream, inputs, _, _, _, bytes_, stride, logits, _ = room
    M, D = len(wanted_M), shape[WIDTH]
    norm, bias = shape[FINAL_NORM], shape[FINAL_NORM_BIAS]
    for m in range(M):
        if norm >= 0:
            at = wanted_M[m] * stride
            normalise(shape, constants, weights[FLOATS], norm, bias, stream, at, inputs, m * stride)
        else:
            copy(stream, wanted_M[m] * stride, inputs, m * stride, D)
    if shape[OUTPUT] >= 0:
        width = weights[LINEARS][shape[OUTPUT], OUTPUTS]
        apply_linear(weights, shape[OUTPUT], inputs, 0, stride, logits, 0, width, M, bytes_)


@compiled
def log_softmax(scores, at, results):  # type: ignore[no-untyped-def]
    """The logarithms of normalised exponentials of len(results) scores; `scores` has room for whole vectors."""
    V = len(results)
    shift = log_total(scores, at, V)
    subtract(scores, at, shift, results, 0, V)


@compiled
def log_total(scores, at, count):  # type: ignore[no-untyped-def]
    """ln Σ exp(score)."""
    vectors = -(-count // LANES)
    for j in range(at + count, at + vectors * LANES):
        scores[j] = LOWEST
    top = largest(scores, at, vectors)
    return top + np.log(sum_of_exponentials(scores, at, vectors, top))
