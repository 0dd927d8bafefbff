"""The inner loops of word2vec: a piece of the text read once, each word of it moved nearer to what stands around it.

A sentence is read without unknown words and, by a draw, without some of the frequent ones. Each word of it is a centre,
and the words at most so many places from it are its context. Skip-gram learns from each of these by itself, CBOW from
their mean:

    L = -log σ(o_centre·h) - Σ_k log σ(-o_k·h)        o_k: outputs of words that were drawn   (negative sampling)
    L = -Σ_n log σ(±node_n·h)                          n: the nodes on the way to the centre   (hierarchical softmax)

A step goes down the gradient of L at once, all rows that take part from where they stand, without locks: threads may
undo a little of each other's work. The sigmoid comes from a table, straight lines between its points; a score beyond
±6 is left as it is.

Draws are splitmix64 (Steele et al. 2014): draw n of a stream is a hash of its start and n. There are three streams, of
which words are kept, of how far contexts reach and of which words are negative, so that one can look ahead in the last.

All is written for rows of a fixed length that the compiler knows (`width`, a multiple of 8, filled up with zeros). Only
then are the loops straight rows of vector instructions.

Legend: V words, D width, I ids of the tokeniser, E points of a table, P decisions in the tree.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

Array = np.ndarray[Any, Any]

LEFT_OUT, END = -1, -2
"""What stands for a token that is no word: it is passed over, or ends the sentence."""

LONGEST = 10_000
"""Words of a sentence; a longer one is taken in pieces."""

HIGHEST, POINTS = 6.0, 768
"""The tables go from -HIGHEST to HIGHEST in so many steps; the line between two points is off by 3e-6 at most."""

MEASURED = 16
"""One centre in so many has its loss added up."""

QUICK = {"reassoc", "contract", "nsz", "arcp"}
PER_UNIT = np.float32(POINTS / (2 * HIGHEST))
ROUND, FIRST_FACTOR, SECOND_FACTOR = (
    np.uint64(number) for number in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)
LOW = np.uint64(0xFFFFFFFF)
KEEPING, REACHING, CHOOSING = 0, 1, 2
"""The streams of draws."""

LINE = 16
"""Numbers of four bytes that come from memory together."""


class Tables(NamedTuple):
    """What is looked up and never changes."""

    words_I: Array  # the word of each id, or LEFT_OUT, or END; int32
    keep_V: Array  # a word stays if its draw of 32 bits is at most this; uint32
    choices_V: Array  # alias table of the negative words, see `sampling.py`; uint64
    sigmoid_E: Array
    softplus_E: Array  # log(1 + e^-x)
    starts_V: Array  # the ways through the tree, see `huffman.py`
    nodes_P: Array
    left_P: Array


class Weights(NamedTuple):
    """What is learned, V × D each, or 0 × D where there is none."""

    inputs_VD: Array
    outputs_VD: Array  # of negative sampling
    nodes_VD: Array  # of the tree: V - 1 rows, and one that is not used


class Options(NamedTuple):
    """What is learned, and how."""

    skip_gram: bool
    hierarchical: bool
    negatives: int
    window: int
    shrink: bool  # each centre draws how far its context reaches
    mean: bool  # CBOW: the context is averaged, not summed


class Scratch(NamedTuple):
    """Room for one thread."""

    words: Array
    streams: Array
    ahead: Array  # the next negative words
    targets: Array
    labels: Array
    slopes: Array
    work_D: Array
    mean_D: Array


@cache
def make_sweep(width: int, skip_gram: bool, hierarchical: bool, sampled: bool) -> Callable[..., Any]:
    """The loops for rows of `width` numbers and some of the losses; they are quickest with nothing left to choose.

    They take tokens, tables, weights, options, rate, seed and totals. `totals` are four numbers that are added to:
    words read, predictions learned from, predictions whose loss was measured, and the sum of these losses.
    """

    @njit(cache=True, nogil=True, fastmath=QUICK)
    def sweep(tokens, tables, weights, options, rate, seed, totals):  # type: ignore[no-untyped-def]
        _sweep(tokens, tables, weights, options, rate, seed, totals, width, skip_gram, hierarchical, sampled)

    return sweep


inlined = njit(forceinline=True, fastmath=QUICK)


# Draws


@inlined
def _hash(number):  # type: ignore[no-untyped-def]
    number = (number ^ (number >> np.uint64(30))) * FIRST_FACTOR
    number = (number ^ (number >> np.uint64(27))) * SECOND_FACTOR
    return number ^ (number >> np.uint64(31))


@inlined
def _draw(streams, stream):  # type: ignore[no-untyped-def]
    """The next 64 bits of a stream."""
    streams[stream] += ROUND
    return _hash(streams[stream])


@inlined
def _below(drawn, count):  # type: ignore[no-untyped-def]
    """A number from 0 to count - 1 from the upper half of a draw."""
    return ((drawn >> np.uint64(32)) * np.uint64(count)) >> np.uint64(32)


@inlined
def _choose(streams, choices_V):  # type: ignore[no-untyped-def]
    """A negative word: a place of the table, and then its own word or its other one."""
    drawn = _draw(streams, CHOOSING)
    place = _below(drawn, len(choices_V))
    entry = choices_V[place]
    return np.int64(place) if (drawn & LOW) < (entry >> np.uint64(32)) else np.int64(entry & LOW)


@intrinsic
def _fetch(typing_context, rows_VD, row, column):  # type: ignore[no-untyped-def]
    """Ask for a piece of a row that will be needed soon."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        place = cgutils.get_item_pointer(context, builder, signature.args[0], array, list(arguments[1:]))
        byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        ask = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        # To be written, to be kept, and data.
        builder.call(ask, [builder.bitcast(place, byte), *(ir.Constant(number, flag) for flag in (1, 3, 1))])
        return context.get_dummy_value()

    return types.void(rows_VD, types.intp, types.intp), generate


# One prediction


@inlined
def _between(table_E, score):  # type: ignore[no-untyped-def]
    """A table at a score from -HIGHEST to HIGHEST, on the line between two points."""
    place = (score + np.float32(HIGHEST)) * PER_UNIT
    left = min(np.int64(place), np.int64(POINTS - 1))
    below = table_E[np.uint64(left)]
    return below + (place - np.float32(left)) * (table_E[np.uint64(left + 1)] - below)


@inlined
def _learn(source_D, rows_VD, count, rate, measured, tables, scratch, width):  # type: ignore[no-untyped-def]
    """Move `count` rows, targets with labels, and leave in the scratch what the source is to be moved by -> the loss.

    All slopes are taken before anything moves, so that a row which comes twice moves by the sum of its gradients.
    """
    targets, labels, slopes, work_D = scratch.targets, scratch.labels, scratch.slopes, scratch.work_D
    loss = np.float32(0)
    for k in range(count):
        row_D, score = rows_VD[targets[k]], np.float32(0)
        for d in range(width):
            score += source_D[d] * row_D[d]
        bounded = min(max(score, np.float32(-HIGHEST)), np.float32(HIGHEST))
        moved = np.float32(1) if bounded == score else np.float32(0)
        slopes[k] = (labels[k] - _between(tables.sigmoid_E, bounded)) * rate * moved
        if measured:
            loss += _between(tables.softplus_E, bounded if labels[k] else -bounded) + abs(score - bounded)
    for d in range(width):
        work_D[d] = 0
    for k in range(count):
        row_D, slope = rows_VD[targets[k]], slopes[k]
        for d in range(width):
            work_D[d] += slope * row_D[d]
    for k in range(count):
        row_D, slope = rows_VD[targets[k]], slopes[k]
        for d in range(width):
            row_D[d] += slope * source_D[d]
    return loss


@inlined
def _take_path(centre, tables, scratch):  # type: ignore[no-untyped-def]
    """Make the way to a word the targets -> how many they are."""
    first = tables.starts_V[centre]
    count = tables.starts_V[centre + 1] - first
    for k in range(count):
        scratch.targets[k], scratch.labels[k] = tables.nodes_P[first + k], tables.left_P[first + k]
    return count


@inlined
def _take_negatives(centre, tables, outputs_VD, scratch, width):  # type: ignore[no-untyped-def]
    """Make a word and the next negative ones the targets -> how many they are; those after them are asked for."""
    targets, labels, ahead = scratch.targets, scratch.labels, scratch.ahead
    targets[0], labels[0], count = centre, 1, 1
    for k in range(len(ahead)):
        word, ahead[k] = ahead[k], _choose(scratch.streams, tables.choices_V)
        for d in range(0, width, LINE):
            _fetch(outputs_VD, ahead[k], d)  # type: ignore[call-arg]
        if word != centre:
            targets[count], labels[count] = word, 0
            count += 1
    return count


# The contexts of one centre. Both losses may be asked for; then each is gone down by itself, the tree's first.


@inlined
def _skip_gram(  # type: ignore[no-untyped-def]
    centre, first, end, tables, weights, rate, measured, scratch, width, hierarchical, sampled
):
    """Learn to tell the centre from each word of its context by itself -> the loss."""
    words, loss = scratch.words, np.float32(0)
    for place in range(first, end):
        if place == centre:
            continue
        source_D = weights.inputs_VD[words[place]]
        if hierarchical:
            count = _take_path(words[centre], tables, scratch)
            loss += _learn(source_D, weights.nodes_VD, count, rate, measured, tables, scratch, width)
            for d in range(width):
                source_D[d] += scratch.work_D[d]
        if sampled:
            count = _take_negatives(words[centre], tables, weights.outputs_VD, scratch, width)
            loss += _learn(source_D, weights.outputs_VD, count, rate, measured, tables, scratch, width)
            for d in range(width):
                source_D[d] += scratch.work_D[d]
    return loss


@inlined
def _gather(centre, first, end, inputs_VD, scratch, width, mean):  # type: ignore[no-untyped-def]
    """The sum of a context's vectors, or their mean, into the scratch."""
    words, mean_D = scratch.words, scratch.mean_D
    for d in range(width):
        mean_D[d] = 0
    for place in range(first, end):
        if place != centre:
            row_D = inputs_VD[words[place]]
            for d in range(width):
                mean_D[d] += row_D[d]
    if mean:
        share = np.float32(1) / np.float32(end - first - 1)
        for d in range(width):
            mean_D[d] *= share


@inlined
def _scatter(centre, first, end, inputs_VD, scratch, width, mean):  # type: ignore[no-untyped-def]
    """Move every vector of a context: by the whole step where they were averaged, by its share where summed."""
    words, work_D = scratch.words, scratch.work_D
    if not mean:
        share = np.float32(1) / np.float32(end - first - 1)
        for d in range(width):
            work_D[d] *= share
    for place in range(first, end):
        if place != centre:
            row_D = inputs_VD[words[place]]
            for d in range(width):
                row_D[d] += work_D[d]


@inlined
def _bag(  # type: ignore[no-untyped-def]
    centre, first, end, tables, weights, rate, measured, scratch, width, hierarchical, sampled, mean
):
    """Learn to tell the centre from its context as a whole -> the loss."""
    word, inputs_VD, loss = scratch.words[centre], weights.inputs_VD, np.float32(0)
    if hierarchical:
        _gather(centre, first, end, inputs_VD, scratch, width, mean)
        count = _take_path(word, tables, scratch)
        loss += _learn(scratch.mean_D, weights.nodes_VD, count, rate, measured, tables, scratch, width)
        _scatter(centre, first, end, inputs_VD, scratch, width, mean)
    if sampled:
        _gather(centre, first, end, inputs_VD, scratch, width, mean)
        count = _take_negatives(word, tables, weights.outputs_VD, scratch, width)
        loss += _learn(scratch.mean_D, weights.outputs_VD, count, rate, measured, tables, scratch, width)
        _scatter(centre, first, end, inputs_VD, scratch, width, mean)
    return loss


# The text


@inlined
def _sentence(tokens, position, tables, scratch, totals):  # type: ignore[no-untyped-def]
    """Read the words of the next sentence that are kept -> where the one after it begins, and how many they are."""
    count = 0
    while position < len(tokens) and count < LONGEST:
        word = tables.words_I[tokens[position]]
        position += 1
        if word == END:
            break
        totals[0] += 1
        if word == LEFT_OUT or np.uint64(tables.keep_V[word]) < (_draw(scratch.streams, KEEPING) >> np.uint64(32)):
            continue
        scratch.words[count] = word
        count += 1
    return position, count


@inlined
def _make_scratch(tables, seed, width, negatives):  # type: ignore[no-untyped-def]
    longest = negatives + 1
    for word in range(len(tables.starts_V) - 1):
        longest = max(longest, tables.starts_V[word + 1] - tables.starts_V[word])
    streams = np.empty(3, np.uint64)
    for stream in range(3):
        streams[stream] = _hash(seed + np.uint64(stream + 1) * ROUND)
    scratch = Scratch(
        np.empty(LONGEST, np.int64), streams, np.empty(negatives, np.int64), np.empty(longest, np.int64),
        np.empty(longest, np.float32), np.empty(longest, np.float32), np.empty(width, np.float32),
        np.empty(width, np.float32),
    )  # fmt: skip
    for k in range(negatives):
        scratch.ahead[k] = _choose(streams, tables.choices_V)
    return scratch


@inlined
def _sweep(  # type: ignore[no-untyped-def]
    tokens, tables, weights, options, rate, seed, totals, width, skip_gram, hierarchical, sampled
):
    """Read tokens and learn from each sentence."""
    scratch, position = _make_scratch(tables, seed, width, options.negatives), 0
    while position < len(tokens):
        position, count = _sentence(tokens, position, tables, scratch, totals)
        for centre in range(count):
            reach = options.window
            if options.shrink:
                reach -= np.int64(_below(_draw(scratch.streams, REACHING), reach))
            first, end = max(0, centre - reach), min(count, centre + reach + 1)
            others, measured = end - first - 1, centre % MEASURED == 0
            if others == 0:
                continue
            if skip_gram:
                loss = _skip_gram(
                    centre, first, end, tables, weights, rate, measured, scratch, width, hierarchical, sampled
                )
            else:
                loss = _bag(
                    centre, first, end, tables, weights, rate, measured, scratch, width, hierarchical, sampled,
                    options.mean,
                )  # fmt: skip
                others = 1
            totals[1] += others
            if measured:
                totals[2] += others
                totals[3] += loss
