"""All layers of a recurrent decoder for some tokens, in one compiled call.

R rows read T tokens each; token t of row r is item n = r·T + t. A layer multiplies the inputs of all items at once and
then steps through time, so the weights of the inputs are read once for all tokens. With input feeding, all layers take
one step after the other. Vectors are as wide as their layer, rounded up to a multiple of LANES.

A set of items at equal distances is given as (first, step, count).
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from chainrule.engines.decode.compiling import compiled, inlined
from chainrule.engines.decode.linear import FLOATS, LINEARS, OUTPUTS, aligned, apply_linear, rounded_up
from chainrule.engines.decode.recurrent_cells import (
    GRU,
    activate_gru,
    add_part,
    add_tanh,
    copy_part,
    finish_gru,
    step_cell,
)
from chainrule.engines.decode.source_attention import attend_to_source, rectify
from chainrule.engines.decode.stack_kernel import log_softmax


class Shape(IntEnum):
    """Entries of `shape`; layers are indices in `linears`, tables indices in `floats`, -1: none."""

    CELL = 0  # index of CELLS
    UNITS = 1  # width of a state, rounded up
    BLOCKS = 2  # blocks of the gates
    LAYERS = 3
    STATES = 4  # states of a layer
    SLOTS = 5  # numbers of the state of a row
    WIDTH = 6  # of the embeddings
    TABLE = 7  # the input part of the first layer's gates, for each token
    SCORE = 8  # index of SCORES; -1: no attention
    QUERY = 9
    VECTOR = 10
    MIXED = 11
    FEED = 12
    BRIDGE = 13
    OUTPUT = 14  # -1: features are wanted


class Part(IntEnum):
    """Columns of `layers`."""

    INTO = 0  # -1: the table of the shape
    HIDDEN = 1  # gru: of the gates alone
    CANDIDATE = 2  # gru: of the candidate
    EXTRA = 3


# As plain numbers, which kernels can use:
(CELL, UNITS, BLOCKS, LAYERS, STATES, SLOTS, WIDTH, TABLE) = range(8)
(SCORE, QUERY, VECTOR, MIXED, FEED, BRIDGE, OUTPUT) = range(8, 15)
INTO, HIDDEN, CANDIDATE, EXTRA = range(4)
DOT, ADDITIVE, LOCATION = range(3)

INPUTS_OF_LAYERS, STATES_OF_ITEMS, WORK, ATTENTION, ENDS, SPARE = range(6)
"""Entries of the room."""

GATES, SUMS, INNER = range(3)
BRIDGED, LOGITS, SHIFTS = range(3)
"""Entries of its work, and of its ends."""


def make_room(model: Any, items: int, rows: int, results: int, positions: int) -> tuple[Any, ...]:
    """The arrays of a call: `items` tokens of `rows` rows, `results` results, sources of at most `positions`."""
    shape, _, (linears, *_) = model

    def outputs(part: int) -> int:
        return 0 if shape[part] < 0 else int(linears[shape[part], OUTPUTS])

    units, gates = int(shape[UNITS]), int(shape[UNITS] * shape[BLOCKS])
    width = rounded_up(int(shape[WIDTH]))
    inputs, states = aligned(items * max(width, units)), aligned(items * units)
    widest = max(width, units, outputs(BRIDGE))
    spare = aligned(items * (widest + 4), "uint8"), aligned(items)
    work = aligned(items * gates), aligned(max(rows, int(shape[LAYERS])) * gates), aligned(rows * units)
    attention = aligned(items * units), aligned(items * units), aligned(positions), aligned(units)
    ends = aligned(results * outputs(BRIDGE)), aligned(results * outputs(OUTPUT)), aligned(results)
    return inputs, states, work, attention, ends, spare


@compiled
def read_tokens(model, embedding, token_N, sizes, state, memory, results, room):  # type: ignore[no-untyped-def]
    """Read tokens: replace the state of each row by the one after them, and write the results.

    model     (shape, layers, weights), with the weights of `linear.py`
    sizes     (R, T, M): rows, tokens of each, and results: those of all items, or of the last of each row
    state     R · SLOTS numbers: of each layer h, then c if it has one; at the end h~ if it is fed
    memory    (numbers, values_at, places, start_R, count_R): row r attends to the positions start_R[r] … of its
              source; their keys begin at 0 of the numbers, their values at `values_at`, each UNITS wide

    Results are log-probabilities if the model has an output layer, and features otherwise.
    """
    shape, _, weights = model
    compute(model, embedding, token_N, sizes, state, memory, room)
    M, (first, step) = sizes[2], wanted_items(sizes)
    if shape[OUTPUT] < 0:
        features, width, first, step = find_features(model, first, step, M, room)
        for m in range(M):
            copy_part(features, (first + m * step) * width, results[m], 0, len(results[m]))
        return
    words, logits = weights[LINEARS][shape[OUTPUT], OUTPUTS], room[ENDS][LOGITS]
    for m in range(M):
        log_softmax(logits, m * words, results[m])


@compiled
def compute(model, embedding, token_N, sizes, state, memory, room):  # type: ignore[no-untyped-def]
    """Everything before the softmax: the new states, and the scores of the words if there is an output layer."""
    shape, _, weights = model
    R, T, M = sizes
    if shape[FEED] >= 0:
        for t in range(T):
            _advance(model, embedding, token_N, R, T, t, 1, state, memory, room)
    else:
        _advance(model, embedding, token_N, R, T, 0, T, state, memory, room)
    if shape[OUTPUT] >= 0:
        first, step = wanted_items(sizes)
        words, logits = weights[LINEARS][shape[OUTPUT], OUTPUTS], room[ENDS][LOGITS]
        features, width, first, step = find_features(model, first, step, M, room)
        spare = room[SPARE]
        apply_linear(weights, shape[OUTPUT], features, first * width, step * width, logits, 0, words, M, spare)


@inlined
def wanted_items(sizes):  # type: ignore[no-untyped-def]
    """The first of the items whose results are wanted, and the distance between them."""
    R, T, M = sizes
    return (T - 1, T) if M == R else (0, 1)


@compiled
def _advance(model, embedding, token_N, R, T, begin, count, state, memory, room):  # type: ignore[no-untyped-def]
    """All layers for the tokens `begin` … `begin` + `count` of each row: all of them, or one."""
    shape, layers, weights = model
    _, states, (gates, sums, _), (vectors, _, _, _), _, spare = room
    U, G, slots = shape[UNITS], shape[UNITS] * shape[BLOCKS], shape[SLOTS]
    first, step, items = begin, T, R
    if count == T:
        first, step, items = 0, 1, R * T
    for number in range(shape[LAYERS]):
        layer = layers[number]
        if number:
            apply_linear(weights, layer[INTO], states, first * U, step * U, gates, first * G, step * G, items, spare)
        else:
            embed(model, embedding, token_N, first, step, items, room)
        if number == 0 and shape[FEED] >= 0:
            apply_linear(weights, shape[FEED], state, slots - U, slots, sums, 0, G, R, spare)
            for row in range(R):
                add_part(gates, (row * T + begin) * G, sums, row * G, G)
        for t in range(begin, begin + count):
            _step(model, number, R, T, t, state, room)
    if shape[SCORE] >= 0:
        _attend(model, R, T, begin, count, memory, room)
        if shape[FEED] >= 0:
            for row in range(R):
                copy_part(vectors, (row * T + begin) * U, state, row * slots + slots - U, U)


@compiled
def embed(model, embedding, token_N, first, step, items, room):  # type: ignore[no-untyped-def]
    """The input part of the first layer's gates."""
    shape, layers, weights = model
    inputs, _, (gates, _, _), _, _, spare = room
    G, D = shape[UNITS] * shape[BLOCKS], shape[WIDTH]
    for k in range(items):
        n = first + k * step
        if shape[TABLE] >= 0:
            copy_part(weights[FLOATS], shape[TABLE] + token_N[n] * G, gates, n * G, G)
        else:
            copy_part(embedding, token_N[n] * D, inputs, n * D, D)
    if shape[TABLE] < 0:
        apply_linear(weights, layers[0, INTO], inputs, first * D, step * D, gates, first * G, step * G, items, spare)


@compiled
def _step(model, number, R, T, t, state, room):  # type: ignore[no-untyped-def]
    """One step of one layer for all rows."""
    shape, layers, weights = model
    U, G, slots = shape[UNITS], shape[UNITS] * shape[BLOCKS], shape[SLOTS]
    own, sums = number * shape[STATES] * U, room[WORK][SUMS]
    apply_linear(weights, layers[number, HIDDEN], state, own, slots, sums, gates_at(shape), G, R, room[SPARE])
    finish_step(model, number, R, T, t, state, 0, room)


@inlined
def gates_at(shape):  # type: ignore[no-untyped-def]
    """Where the sums of the states begin among those of the gates: a gru has the candidate's, the first, later."""
    return shape[UNITS] if shape[CELL] == GRU else 0


@compiled
def finish_step(model, number, R, T, t, state, sums_at, room):  # type: ignore[no-untyped-def]
    """One step of one layer for all rows, given the sums of its states from `sums_at` on."""
    shape, layers, weights = model
    _, states, (gates, sums, inner), _, _, spare = room
    layer, cell, floats = layers[number], shape[CELL], weights[FLOATS]
    U, G, slots = shape[UNITS], shape[UNITS] * shape[BLOCKS], shape[SLOTS]
    own = number * shape[STATES] * U
    if cell == GRU:
        for row in range(R):
            at = sums_at + row * G
            add_part(sums, at + U, gates, (row * T + t) * G + U, 2 * U)
            activate_gru(sums, at, state, row * slots + own, U)
        apply_linear(weights, layer[CANDIDATE], sums, sums_at + 2 * U, G, inner, 0, U, R, spare)
        for row in range(R):
            add_part(inner, row * U, gates, (row * T + t) * G, U)
            finish_gru(inner, row * U, sums, sums_at + row * G + U, state, row * slots + own, U)
    else:
        for row in range(R):
            at, before, into = sums_at + row * G, row * slots + own, (row * T + t) * G
            step_cell(cell, sums, at, gates, into, floats, layer[EXTRA], state, before, U)
    for row in range(R):
        copy_part(state, row * slots + own, states, (row * T + t) * U, U)


@compiled
def _attend(model, R, T, begin, count, memory, room):  # type: ignore[no-untyped-def]
    """The attentional vectors of the tokens `begin` … `begin` + `count` of each row."""
    shape, _, weights = model
    _, states, _, (vectors, queries, scores, mixture), _, spare = room
    numbers, values_at, places, start_R, count_R = memory
    U, kind = shape[UNITS], shape[SCORE]
    first, step, items = begin, T, R
    if count == T:
        first, step, items = 0, 1, R * T
    apply_linear(weights, shape[MIXED], states, first * U, step * U, vectors, first * U, step * U, items, spare)
    if kind != DOT:
        apply_linear(weights, shape[QUERY], states, first * U, step * U, queries, first * U, step * U, items, spare)
    vector = weights[FLOATS], shape[VECTOR] if kind == ADDITIVE else -1
    for row in range(R):
        source = numbers, values_at, places, start_R[row], count_R[row]
        for n in range(row * T + begin, row * T + begin + count):
            if kind == LOCATION:
                rectify(queries, n * U, U)
            asking = states if kind == DOT else queries
            attend_to_source(asking, n * U, source, vector, U, scores, mixture)
            add_tanh(vectors, n * U, mixture, U)


@inlined
def find_features(model, first, step, M, room):  # type: ignore[no-untyped-def]
    """What the output layer reads, after the bridge if there is one -> the array, its width, first item and step."""
    shape, _, weights = model
    _, states, _, (vectors, _, _, _), (bridged, _, _), spare = room
    features, width = states, shape[UNITS]
    if shape[SCORE] >= 0:
        features = vectors
    if shape[BRIDGE] >= 0:
        narrow = weights[LINEARS][shape[BRIDGE], OUTPUTS]
        apply_linear(weights, shape[BRIDGE], features, first * width, step * width, bridged, 0, narrow, M, spare)
        features, width, first, step = bridged, narrow, 0, 1
    return features, width, first, step
