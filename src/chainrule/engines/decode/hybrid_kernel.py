"""The autoregressive branch of a hybrid and its mixture with the parallel branch, in one compiled call.

R rows read T tokens each; token t of row r is item n = r·T + t. W successive rows belong to one source. The gates of
all inputs are multiplied at once, the GRU steps through time, and every state attends to its source:

    h_t = GRU(h_{t-1}, y_{t-1})      f_t = W tanh(Σ a_s v_s + U h_t) + joined_t      p = (1-γ)·softmax(V f_t) + γ·p_NAR

Vectors are as wide as their layer, rounded up to a multiple of LANES.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np

from chainrule.engines.decode.attention import weigh
from chainrule.engines.decode.compiling import compiled, inlined, summing
from chainrule.engines.decode.functions import ONE, TWO, ZERO, exponential
from chainrule.engines.decode.linear import FLOATS, LINEARS, OUTPUTS, aligned, apply_linear, rounded_up
from chainrule.engines.decode.maps import add, copy
from chainrule.engines.decode.recurrent_cells import activate_gru, add_tanh, finish_gru
from chainrule.engines.decode.source_attention import additive_score, dot, mix_values
from chainrule.engines.decode.stack_kernel import first_largest, log_softmax
from chainrule.engines.decode.vectors import LANES


class Shape(IntEnum):
    """Entries of `shape`; layers are indices in `linears`, tables indices in `floats`, -1: none."""

    UNITS = 0  # width of a state, rounded up
    WIDTH = 1  # of embeddings and features
    INTO = 2
    HIDDEN = 3  # of the gates alone
    CANDIDATE = 4
    QUERY = 5  # additive scores: what is applied to a state before them
    VECTOR = 6  # additive scores: the vector; -1: scores are dot products
    MIXED = 7
    JOIN = 8
    OUTPUT = 9
    GATE = 10  # of a gate that depends on the step: its weights of the features


# As plain numbers, which kernels can use:
UNITS, WIDTH, INTO, HIDDEN, CANDIDATE, QUERY, VECTOR, MIXED, JOIN, OUTPUT, GATE = range(11)
THIRD, FIFTH, SEVENTH, NINTH, ELEVENTH, THIRTEENTH = (np.float32(1 / n) for n in (3, 5, 7, 9, 11, 13))


def make_room(model: Any, items: int, rows: int, predictions: int, results: int, positions: int) -> tuple[Any, ...]:
    """The arrays of a call: `items` tokens of `rows` rows, sources of at most `positions`.

    All `results` have features, and `predictions` of them log p.
    """
    shape, (linears, *_) = model
    units, width = int(shape[UNITS]), int(shape[WIDTH])
    words = int(linears[shape[OUTPUT], OUTPUTS]) if predictions else 0
    features = rounded_up(width)
    spare = aligned(items * (max(features, units) + 4), np.uint8), aligned(items)
    inputs, states = aligned(items * features), (aligned(rows * units), aligned(items * units))
    work = aligned(items * 3 * units), aligned(rows * 3 * units), aligned(rows * units)
    attention = aligned(items * units), aligned(items * units), aligned(positions), aligned(units)
    return inputs, states, work, attention, (aligned(results * features), aligned(predictions * words)), spare


@compiled
def read_tokens(model, embedding, token_N, sizes, hidden_RU, memory, places, prediction, results, room):  # type: ignore[no-untyped-def]
    """Read tokens: write the results of all items, or of the last of each row, and the states after each item.

    model       (shape, weights), with the weights of `linear.py`
    sizes       (R, T, W, M): rows, tokens of each, rows of a source, results
    hidden_RU   the states before
    memory      (keys, values, S, count_A, order_S): source a has count_A[a] keys and values, S · UNITS numbers apart
    places      (position_R, joined, L): row r reads positions from position_R[r] on; the joined features of a source
                are L · WIDTH numbers apart, and positions from the last on share those of the last
    prediction  (log-odds, log p, K) of the parallel branch, for K positions of each source; K is 0 without it
    results     (path_NU, scores_MV or features_MD, whether log p is wanted)
    """
    shape, weights = model
    path_NU, found, predicts = results
    features, logits = room[4]
    _find_features(model, embedding, token_N, sizes, hidden_RU, memory, places, path_NU, room)
    M, D = sizes[3], -(-shape[WIDTH] // LANES) * LANES
    if not predicts:
        for m in range(M):
            copy(features, m * D, found[m], 0, shape[WIDTH])
        return
    words = weights[LINEARS][shape[OUTPUT], OUTPUTS]
    apply_linear(weights, shape[OUTPUT], features, 0, D, logits, 0, words, M, room[5])
    for m in range(M):
        log_softmax(logits, m * words, found[m])
        _add_prediction(model, m, sizes, places, prediction, found[m], features)


@compiled
def check_tokens(model, embedding, token_N, sizes, hidden_RU, memory, places, prediction, results, room):  # type: ignore[no-untyped-def]
    """Read tokens: write the most probable token after each item of a row, up to the first that is not the next item.

    results   (path_NU, word_N, log_p): a word is -1 after that; `log_p` has room for log p of all words, rounded up to
              whole vectors. The other arguments are those of `read_tokens`, with a result for each item.
    """
    shape, weights = model
    R, T = sizes[:2]
    path_NU, word_N, log_p = results
    features, logits = room[4]
    _find_features(model, embedding, token_N, sizes, hidden_RU, memory, places, path_NU, room)
    words, D = weights[LINEARS][shape[OUTPUT], OUTPUTS], -(-shape[WIDTH] // LANES) * LANES
    apply_linear(weights, shape[OUTPUT], features, 0, D, logits, 0, words, R * T, room[5])
    vocabulary = sizes[4]
    for row in range(R):
        right = True
        for n in range(row * T, (row + 1) * T):
            word_N[n] = -1
            if right:
                log_softmax(logits, n * words, log_p[:vocabulary])
                _add_prediction(model, n, sizes, places, prediction, log_p[:vocabulary], features)
                word_N[n] = first_largest(log_p, 0, vocabulary)
                right = n + 1 < (row + 1) * T and word_N[n] == token_N[n + 1]


@compiled
def _find_features(model, embedding, token_N, sizes, hidden_RU, memory, places, path_NU, room):  # type: ignore[no-untyped-def]
    """The features of all results, and the states after each item."""
    shape = model[0]
    R, T, W, M = sizes[:4]
    states = room[1][1]
    _recur(model, embedding, token_N, R, T, hidden_RU, room)
    for n in range(R * T):
        copy(states, n * shape[UNITS], path_NU[n], 0, path_NU.shape[1])
    attend_to_sources(model, R, T, W, memory, room)
    _join(model, T, W, M, R, places, room)


@compiled
def _add_prediction(model, m, sizes, places, prediction, log_p, features):  # type: ignore[no-untyped-def]
    """Mix log p of result m with the prediction of the parallel branch, if there is one."""
    shape, weights = model
    R, T, W, M = sizes[:4]
    odds, table, K = prediction
    if not K:
        return
    n = m if M == R * T else m * T + T - 1
    row = n // T
    place = row // W * K + min(places[0][row] + n % T, K - 1)
    ratio = odds[place]
    if shape[GATE] >= 0:
        width = -(-shape[WIDTH] // LANES) * LANES
        ratio += _product(weights[FLOATS], shape[GATE], features, m * width, shape[WIDTH])
    _mix(log_p, table, place * len(log_p), ratio)


@compiled
def _recur(model, embedding, token_N, R, T, hidden_RU, room):  # type: ignore[no-untyped-def]
    """The states after each token."""
    shape, weights = model
    inputs, (state, states), (gates, sums, inner), _, _, spare = room
    U, D = shape[UNITS], shape[WIDTH]
    G = 3 * U
    for n in range(R * T):
        copy(embedding, token_N[n] * D, inputs, n * D, D)
    apply_linear(weights, shape[INTO], inputs, 0, D, gates, 0, G, R * T, spare)
    for row in range(R):
        copy(hidden_RU[row], 0, state, row * U, hidden_RU.shape[1])
        for j in range(row * U + hidden_RU.shape[1], (row + 1) * U):
            state[j] = ZERO
    for t in range(T):
        apply_linear(weights, shape[HIDDEN], state, 0, U, sums, U, G, R, spare)
        for row in range(R):
            add(sums, row * G + U, gates, (row * T + t) * G + U, 2 * U)
            activate_gru(sums, row * G, state, row * U, U)
        apply_linear(weights, shape[CANDIDATE], sums, 2 * U, G, inner, 0, U, R, spare)
        for row in range(R):
            add(inner, row * U, gates, (row * T + t) * G, U)
            finish_gru(inner, row * U, sums, row * G + U, state, row * U, U)
            copy(state, row * U, states, (row * T + t) * U, U)


@compiled
def attend_to_sources(model, R, T, W, memory, room):  # type: ignore[no-untyped-def]
    """The attentional vectors of all items, from their states."""
    shape, weights = model
    _, (_, states), _, (vectors, queries, scores, mixture), _, spare = room
    keys, values, S, count_A, order_S = memory
    U, additive = shape[UNITS], shape[VECTOR] >= 0
    apply_linear(weights, shape[MIXED], states, 0, U, vectors, 0, U, R * T, spare)
    if additive:
        apply_linear(weights, shape[QUERY], states, 0, U, queries, 0, U, R * T, spare)
    for n in range(R * T):
        source = n // (T * W)
        first, count = source * S * U, count_A[source]
        for k in range(count):
            if additive:
                scores[k] = additive_score(queries, n * U, keys, first + k * U, weights[FLOATS], shape[VECTOR], U)
            else:
                scores[k] = dot(states, n * U, keys, first + k * U, U)
        weigh(scores, 0, count, -(-count // LANES) * LANES)
        mix_values(scores, order_S, 0, count, values, first, U, mixture, 0)
        add_tanh(vectors, n * U, mixture, U)


@summing
def _product(floats, at, values, values_at, count):  # type: ignore[no-untyped-def]
    total, one, other = ZERO, floats[at : at + count], values[values_at : values_at + count]
    for j in range(len(one)):
        total += one[j] * other[j]
    return total


@compiled
def _join(model, T, W, M, R, places, room):  # type: ignore[no-untyped-def]
    """The features of the M results: of every item, or of the last of each row."""
    shape, weights = model
    _, _, _, (vectors, _, _, _), (features, _), spare = room
    position_R, joined, L = places
    U, D = shape[UNITS], weights[LINEARS][shape[JOIN], OUTPUTS]
    first, step = (0, 1) if M == R * T else (T - 1, T)
    apply_linear(weights, shape[JOIN], vectors, first * U, step * U, features, 0, D, M, spare)
    for m in range(M):
        n = first + m * step
        row = n // T
        place = row // W * L + min(position_R[row] + n % T, L - 1)
        add(features, m * D, joined, place * shape[WIDTH], shape[WIDTH])


@inlined
def _log_of_one_plus(x):  # type: ignore[no-untyped-def]
    """ln(1 + x) for x from 0 to 1: twice the series of artanh at x / (2 + x), which is at most 1/3."""
    z = x / (TWO + x)
    y = z * z
    series = ONE + y * (THIRD + y * (FIFTH + y * (SEVENTH + y * (NINTH + y * (ELEVENTH + y * THIRTEENTH)))))
    return TWO * z * series


@compiled
def _log_sigmoid(x):  # type: ignore[no-untyped-def]
    return min(x, ZERO) - np.float32(np.log1p(np.exp(-abs(x))))


@compiled
def _mix(log_p, table, at, odds):  # type: ignore[no-untyped-def]
    """log p = log((1-γ)·p + γ·p_NAR), where the log-odds of γ are given."""
    first, second = _log_sigmoid(-odds), _log_sigmoid(odds)
    other = table[at : at + len(log_p)]
    for j in range(len(log_p)):
        x, y = log_p[j] + first, other[j] + second
        high, low = max(x, y), min(x, y)
        log_p[j] = high + _log_of_one_plus(exponential(low - high))
