"""The most probable word of a large vocabulary, found without reading all weights of the output layer.

A product with weights of 8 bits reads a quarter of the memory and gives every score with a bound of its error:

    |w·h - ŵ·ĥ| ≤ |w - ŵ| |h| + |ŵ| |h - ĥ|        (Cauchy and Schwarz; ŵ and ĥ are rounded)

Only words that may have the largest score by these bounds are computed in single precision. So the choice is that of
all scores, not an estimate. Where it is not certain, the caller computes them all.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from chainrule.engines.decode.compiling import compiled
from chainrule.engines.decode.functions import ZERO
from chainrule.engines.decode.linear import (
    AT,
    BIAS,
    FLOATS,
    INPUTS,
    LINEARS,
    OUTPUTS,
    Field,
    Packer,
    aligned,
    apply_linear,
)
from chainrule.engines.decode.panels import place_of, unpack_floats
from chainrule.engines.decode.stack_kernel import log_softmax
from chainrule.engines.decode.tiles import tile_1x1
from chainrule.engines.decode.vectors import LANES, largest

Array = np.ndarray[Any, Any]

SCREENED_WEIGHTS = 2**19
"""Weights of an output layer from which on it is screened: 2 MB, more than stays in a second-level cache."""

MOST_VECTORS = 64
"""Vectors of words that are computed in single precision at most, before all of them are."""

GAP = np.float32(1e-4)
"""Scores that differ by more have different log p: their sum with -ln Σ exp is rounded by less than half of this."""

LOWEST, SHIFT, UP = np.float32(-np.inf), np.float32(128), np.float32(1.0001)


class Screen(NamedTuple):
    """An output layer in 8 bits, and for each word what bounds the error of its score."""

    weights: tuple[Array, Array, Array, Array]
    lost: Array  # |w - ŵ|, and the rounding of sums relative to |h|; empty: no screening
    size: Array  # |ŵ|
    constant: np.float32  # rounding of the bias

    def room(self, words: int) -> tuple[Array, Array, Array, Array]:
        """The arrays of a call: log p, bounds of the errors, bounds of the scores, and a vector of scores."""
        return np.empty(words, np.float32), np.empty_like(self.lost), np.empty_like(self.lost), aligned(LANES)


def no_screen() -> Screen:
    """The words of a small vocabulary are all computed."""
    empty = aligned(0)[:0]
    return Screen(Packer(int8=True).weights(), empty, empty, np.float32(0))


def make_screen(weights: tuple[Array, ...], output: int) -> Screen:
    """The screen of a layer of `weights`; without effect if the layer is small, or has 8-bit weights already."""
    layer = weights[LINEARS][output]
    D, outputs, bias_at = int(layer[INPUTS]), int(layer[OUTPUTS]), int(layer[BIAS])
    if layer[Field.BYTES] or D * outputs < SCREENED_WEIGHTS:
        return no_screen()
    packed, bias_X = weights[FLOATS], weights[FLOATS][bias_at : bias_at + outputs]
    weight_XD = unpack_floats(packed[int(layer[AT]) :], outputs, D)
    packer = Packer(int8=True)
    packer.linear(weight_XD, bias_X)
    linears, floats, bytes_, integers = packer.weights()
    scale_X = floats[int(linears[0, Field.SCALE]) :][:outputs]
    rounded_XD = np.rint(weight_XD / scale_X[:, None]) * scale_X[:, None]
    lost_X, size_X = (np.linalg.norm(part_XD.astype(np.float64), axis=1) for part_XD in
                      (weight_XD - rounded_XD, rounded_XD))  # fmt: skip
    lost_X += (D + 16) * 2.0**-23 * (lost_X + size_X)  # every sum of products is rounded, too
    lost, size = aligned(outputs), aligned(outputs)
    lost[:], size[:] = lost_X * float(UP), size_X * float(UP)
    constant = np.float32(np.abs(bias_X).max(initial=0) * 2.0**-21)
    return Screen((linears, floats, bytes_, integers), lost, size, constant)


@compiled
def find_word(weights, output, screen, features, at, logits, spare, room):  # type: ignore[no-untyped-def]
    """The most probable word, as log p of all of them would give it; `room` is that of the screen."""
    if len(screen[1]):
        word = _screened_word(weights, output, screen, features, at, logits, spare, room)
        if word >= 0:
            return word
    apply_linear(weights, output, features, at, 0, logits, 0, 0, 1, spare)
    return _first_of_largest(logits, room[0])


@compiled
def find_words(weights, output, screen, features, logits, spare, room, chosen):  # type: ignore[no-untyped-def]
    """The most probable word of each of len(chosen) rows of features, which lie without gaps.

    `logits` has room for the scores of all rows. A product of several rows reads the weights once.
    """
    rows, count, width = len(chosen), weights[LINEARS][output, INPUTS], weights[LINEARS][output, OUTPUTS]
    if not len(screen[1]):
        apply_linear(weights, output, features, 0, count, logits, 0, width, rows, spare)
        for row in range(rows):
            chosen[row] = _first_of_largest(logits[row * width : (row + 1) * width], room[0])
        return
    apply_linear(screen[0], 0, features, 0, count, logits, 0, width, rows, spare)
    quantised, scales = spare
    bytes_of_row = -(-count // 4) * 4
    for row in range(rows):
        own = quantised[row * bytes_of_row :], scales[row:]
        scores = logits[row * width : (row + 1) * width]
        chosen[row] = _certain_word(weights, output, screen, features, row * count, scores, own, room)
    for row in range(rows):
        if chosen[row] < 0:
            apply_linear(weights, output, features, row * count, 0, logits, 0, 0, 1, spare)
            chosen[row] = _first_of_largest(logits[:width], room[0])


@compiled
def _screened_word(weights, output, screen, features, at, scores, spare, room):  # type: ignore[no-untyped-def]
    """The word with the largest score, if it is certain to have the largest log p; -1: it is not."""
    apply_linear(screen[0], 0, features, at, 0, scores, 0, 0, 1, spare)
    return _certain_word(weights, output, screen, features, at, scores, spare, room)


@compiled
def _certain_word(weights, output, screen, features, at, scores, spare, room):  # type: ignore[no-untyped-def]
    """The same from the scores by 8-bit weights, and the rounded inputs of that product."""
    log_probs, _, bounds, exact = room
    words = len(log_probs)
    linears, floats = weights[LINEARS], weights[FLOATS]
    count, width = linears[output, INPUTS], linears[output, OUTPUTS]
    scores[words:width] = LOWEST
    floor = _upper_bounds(screen, features[at : at + count], scores[:width], spare, room) - GAP
    best, top, second, computed = -1, LOWEST, LOWEST, 0
    for first in range(0, width, LANES):
        if not largest(bounds, first, 1) >= floor:
            continue
        computed += 1
        if computed > MOST_VECTORS:
            return -1
        start, step = place_of(first // LANES, width // LANES, count)
        tile_1x1(
            floats,
            linears[output, AT] + start,
            step,
            linears[output, BIAS] + first,
            features,
            at,
            0,
            exact,
            0,
            0,
            count,
        )
        for j in range(min(LANES, words - first)):
            if exact[j] > top:
                best, top, second = first + j, exact[j], top
            elif exact[j] > second:
                second = exact[j]
    return best if top - second > GAP else -1


@compiled
def _upper_bounds(screen, inputs, scores, spare, room):  # type: ignore[no-untyped-def]
    """Set the upper bounds of all scores -> the largest lower bound."""
    _, lost, size, constant = screen
    _, margins, bounds, _ = room
    quantised, scales = spare
    length, rest = ZERO, ZERO
    for j in range(len(inputs)):
        difference = inputs[j] - scales[0] * (np.float32(quantised[j]) - SHIFT)
        length += inputs[j] * inputs[j]
        rest += difference * difference
    length, rest = np.sqrt(length) * UP, np.sqrt(rest) * UP
    margin, bound, lost, size = margins[: len(scores)], bounds[: len(scores)], lost[: len(scores)], size[: len(scores)]
    for j in range(len(scores)):
        margin[j] = lost[j] * length + size[j] * rest + constant
    for j in range(len(scores)):
        bound[j] = scores[j] - margin[j]
    floor = largest(bounds, 0, len(scores) // LANES)
    for j in range(len(scores)):
        bound[j] = scores[j] + margin[j]
    return floor


@compiled
def _first_of_largest(scores, log_probs):  # type: ignore[no-untyped-def]
    """The first word with the largest log p. The softmax is computed only if several words might have it."""
    words = len(log_probs)
    vectors = -(-words // LANES)
    scores[words : vectors * LANES] = LOWEST
    part, floor = scores[:words], largest(scores, 0, vectors) - GAP
    candidates, best = 0, 0
    for word in range(len(part)):
        if not part[word] < floor:
            candidates += 1
            best = word
    if candidates == 1:
        return best
    log_softmax(scores, 0, log_probs)
    best = 0
    for word in range(1, words):
        if log_probs[word] > log_probs[best]:
            best = word
    return best
