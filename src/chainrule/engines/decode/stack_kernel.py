"""The layers of a Transformer decoder for some positions, in one compiled call.

The N positions are new tokens of one or more rows, in any mixture: one token of each of many rows, many tokens of one.
A layer computes keys and values of all of them before the first attends, so a token sees the earlier new tokens of its
row. Vectors of the stream are D wide, rounded up to a multiple of LANES; those inside attention X = heads · width of a
head, which is rounded up too.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from chainrule.engines.decode.attention import LOWEST
from chainrule.engines.decode.compiling import compiled
from chainrule.engines.decode.functions import ZERO, activate
from chainrule.engines.decode.linear import FLOATS, LINEARS, OUTPUTS, aligned, apply_linear, rounded_up
from chainrule.engines.decode.maps import add, copy, scale, subtract
from chainrule.engines.decode.stack_attention import attend_to_source, attend_to_text
from chainrule.engines.decode.stack_layout import (
    ACTIVATION,
    ATTENTION,
    CAUSAL,
    EMBEDDING_SCALE,
    FEED_NORM,
    FEED_NORM_BIAS,
    FINAL_NORM,
    FINAL_NORM_BIAS,
    GATED,
    HEAD,
    HEADS,
    INNER,
    INTO,
    LAYERS,
    NARROW,
    OUTPUT,
    POSITIONS,
    SOURCE,
    STREAM,
    STRIDE,
    WIDEN,
    WIDTH,
)
from chainrule.engines.decode.stack_parts import after, before, normalise
from chainrule.engines.decode.sums import sum_of_exponentials
from chainrule.engines.decode.vectors import LANES, largest


def make_room(model: Any, items: int, results: int, positions: int) -> tuple[Any, ...]:
    """The arrays of a call for `items` tokens, `results` of which are wanted, and rows of at most `positions`."""
    shape, _, blocks, (linears, *_) = model
    stride, X = rounded_up(int(shape[WIDTH])), int(shape[HEADS] * shape[HEAD])
    inner, into = (int(linears[blocks[0, part], OUTPUTS]) for part in (WIDEN, INTO))
    words = 0 if shape[OUTPUT] < 0 else int(linears[shape[OUTPUT], OUTPUTS])
    stream, inputs = aligned(items * stride), aligned(items * stride)
    wide, mixed = aligned(items * max(inner, stride, into)), aligned(items * max(X, stride))
    scores = aligned(int(shape[HEADS]) * positions)
    bytes_ = aligned(items * (max(inner, stride, X) + 4), np.uint8), aligned(items)
    return stream, inputs, wide, mixed, scores, bytes_, stride, aligned(results * words), aligned(results)


@compiled
def read_tokens(model, past, memory, embedding, items, wanted_M, results, room):  # type: ignore[no-untyped-def]
    """Read N tokens: add them to the past, and write the results of `wanted_M` of them.

    model     (shape, constants, blocks, weights), with the weights of `linear.py`
    past      (cache, sums), of which the kind of attention needs one
    cache     (pool, capacity, first, places, tokens, room): position p of row r lies in the place places[r · room + p]
              of the pool, which has `capacity` places for each layer. The new ones, from `first` on, are entered there,
              and the tokens in `tokens`. Of a text that is read as a whole, places are 0, 1, 2, … and nothing else.
    sums      (before, from_R, after, slots): the sums of row r begin at slots · from_R[r] of `before`; those after its
              tokens are written from slots · r of `after` on
    memory    (numbers, capacity, order, start_R, count_R, place_S): row r attends to the positions start_R[r] …
              start_R[r] + count_R[r] of the sources, whose keys and values lie side by side in `numbers`, `capacity`
              of them for each layer; `order` is 0, 1, 2, …, and `place_S` where they are in their texts, if attention
              depends on it
    items     (row_N, position_N, token_N); the tokens of a row are side by side
    room      arrays of `make_room`

    Results are log-probabilities if the model has an output layer, and features otherwise.
    """
    compute(model, past, memory, embedding, items, wanted_M, room)
    shape, weights = model[0], model[3]
    _, inputs, _, _, _, _, stride, logits, _ = room
    for m in range(len(wanted_M)):
        if shape[OUTPUT] < 0:
            copy(inputs, m * stride, results[m], 0, shape[WIDTH])
        else:
            width = weights[LINEARS][shape[OUTPUT], OUTPUTS]
            log_softmax(logits, m * width, results[m])


@compiled
def compute(model, past, memory, embedding, items, wanted_M, room):  # type: ignore[no-untyped-def]
    """Everything before the softmax: the scores of the words, or the features in place of inputs."""
    shape, constants, blocks, weights = model
    row_N, position_N, token_N = items
    N = len(row_N)
    inner = weights[LINEARS][blocks[0, WIDEN], OUTPUTS]
    if shape[ATTENTION] == CAUSAL:
        _enter(past[0], items)
    _embed(shape, constants, weights[FLOATS], embedding, position_N, token_N, room)
    for number in range(shape[LAYERS]):
        attend_to_text(model, number, past, items, room)
        if shape[SOURCE]:
            attend_to_source(model, number, memory, items, room)
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
def _feed_forward(model, number, N, inner, room):  # type: ignore[no-untyped-def]
    shape, _, blocks, weights = model
    _, inputs, wide, mixed, _, bytes_, stride, _, _ = room
    block = blocks[number]
    before(model, block[FEED_NORM], block[FEED_NORM_BIAS], N, room)
    apply_linear(weights, block[WIDEN], inputs, 0, stride, wide, 0, inner, N, bytes_)
    if shape[GATED]:
        for n in range(N):
            at, gate = n * inner, n * inner + shape[INNER]
            activate(shape[ACTIVATION], wide, at, shape[INNER])
            for j in range(shape[INNER]):
                wide[at + j] *= wide[gate + j]
    else:
        activate(shape[ACTIVATION], wide, 0, N * inner)
    after(model, block[NARROW], block[FEED_NORM], block[FEED_NORM_BIAS], wide, inner, mixed, N, room)


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
def first_largest(scores, at, count):  # type: ignore[no-untyped-def]
    """The place of the largest of some scores, the first of equal ones; room for whole vectors follows them."""
    vectors = -(-count // LANES)
    for j in range(at + count, at + vectors * LANES):
        scores[j] = LOWEST
    top, best = largest(scores, at, vectors), 0
    while best + LANES < count and largest(scores, at + best, 1) != top:
        best += LANES
    while best + 1 < count and scores[at + best] != top:
        best += 1
    return best


@compiled
def log_total(scores, at, count):  # type: ignore[no-untyped-def]
    """ln Σ exp(score)."""
    vectors = -(-count // LANES)
    for j in range(at + count, at + vectors * LANES):
        scores[j] = LOWEST
    top = largest(scores, at, vectors)
    return top + np.log(sum_of_exponentials(scores, at, vectors, top))
