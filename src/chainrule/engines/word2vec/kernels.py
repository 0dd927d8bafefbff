"""The inner loops of word2vec: one pass over a part of the text, with a gradient step for each prediction.

A sentence is read without unknown words and without some frequent words, which are dropped at random. Each remaining
word is a centre, and the words within the window around it are its context. Skip-gram predicts the centre from each
word of the context; CBOW predicts it from their mean. With the vector h of the context,

    L = -log σ(o_centre·h) - Σ_k log σ(-o_k·h)        o_k: outputs of the words drawn         (negative sampling)
    L = -Σ_n log σ(±node_n·h)                          n: the nodes on the path to the centre  (hierarchical softmax)

Each step follows the gradient of L at the current rows, without locks: concurrent threads may overwrite a few of each
other's updates. The sigmoid is interpolated linearly in a table; a score beyond ±6 has no gradient.

The loops are compiled for rows of a fixed length (`width`, a multiple of 8, padded with zeros): only then does the
compiler vectorise them completely.
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

from chainrule.base.arrays import Array
from chainrule.engines.word2vec.random_streams import (
    FAST_MATH,
    KEEP_STREAM,
    REACH_STREAM,
    draw,
    draw_below,
    draw_negative,
    inlined,
    start_streams,
)

UNKNOWN, SENTENCE_END = -1, -2
"""The words of tokens that are none: skipped, or the end of the sentence."""

MAX_SENTENCE = 10_000
"""Words of a sentence; longer sentences are split."""

MAX_SCORE, TABLE_STEPS = 6.0, 768
"""The tables cover -MAX_SCORE to MAX_SCORE; the error of linear interpolation is at most 3e-6."""

MEASURE_EVERY = 16
"""One centre in this many contributes to the reported loss."""

STEPS_PER_UNIT = np.float32(TABLE_STEPS / (2 * MAX_SCORE))
CACHE_LINE = 16
"""Four-byte numbers that are loaded from memory together."""


class LookupTables(NamedTuple):
    """Constant tables."""

    words_I: Array  # the word of each id, or UNKNOWN, or SENTENCE_END; int32
    keep_V: Array  # a word is kept if a draw of 32 bits is at most this; uint32
    aliases_V: Array  # alias table of the negative words, see `sampling.py`; uint64
    sigmoid: Array  # TABLE_STEPS + 1 values of σ(x); float32
    softplus: Array  # TABLE_STEPS + 1 values of log(1 + e^-x); float32
    starts_V: Array  # the paths of the tree, see `TreePaths` in `huffman.py`
    nodes_N: Array
    left_N: Array


class Word2VecWeights(NamedTuple):
    """The learned matrices, V × D each, or 0 × D if unused."""

    inputs_VD: Array
    outputs_VD: Array  # of negative sampling
    nodes_VD: Array  # of the tree: V - 1 rows, and an unused one


class SweepOptions(NamedTuple):
    """The variant of word2vec."""

    skip_gram: bool
    hierarchical: bool
    negatives: int
    window: int
    shrink: bool  # draw the reach of the context of each centre
    mean: bool  # CBOW: average the context instead of summing it


class ThreadBuffers(NamedTuple):
    """Working memory of one thread."""

    words: Array  # of the current sentence
    streams: Array
    negatives: Array  # the next negative words, drawn ahead
    targets: Array  # rows of the current prediction
    labels: Array
    slopes: Array
    step_D: Array  # the update of the source
    mean_D: Array


@cache
def make_sweep(width: int, skip_gram: bool, hierarchical: bool, sampled: bool) -> Callable[..., Any]:
    """Compile the loops for rows of `width` numbers and one combination of losses: constants make them fastest.

    The arguments are tokens, tables, weights, options, rate, seed and totals. Four numbers are added to `totals`: words
    read, predictions learned from, predictions whose loss was measured, and the sum of these losses.
    """

    @njit(cache=True, nogil=True, fastmath=FAST_MATH)
    def sweep(tokens, tables, weights, options, rate, seed, totals):  # type: ignore[no-untyped-def]
        _sweep(tokens, tables, weights, options, rate, seed, totals, width, skip_gram, hierarchical, sampled)

    return sweep


@intrinsic
def _prefetch(typing_context, rows_VD, row, column):  # type: ignore[no-untyped-def]
    """Load a part of a row into the cache ahead of its use."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        place = cgutils.get_item_pointer(context, builder, signature.args[0], array, list(arguments[1:]))
        byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        prefetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        # The flags: for writing, with high locality, into the data cache.
        builder.call(prefetch, [builder.bitcast(place, byte), *(ir.Constant(number, flag) for flag in (1, 3, 1))])
        return context.get_dummy_value()

    return types.void(rows_VD, types.intp, types.intp), generate


# One prediction


@inlined
def _interpolate(table, score):  # type: ignore[no-untyped-def]
    """The value of a table at a score from -MAX_SCORE to MAX_SCORE."""
    place = (score + np.float32(MAX_SCORE)) * STEPS_PER_UNIT
    left = min(np.int64(place), np.int64(TABLE_STEPS - 1))
    below = table[np.uint64(left)]
    return below + (place - np.float32(left)) * (table[np.uint64(left + 1)] - below)


@inlined
def _update(source_D, rows_VD, count, rate, measured, tables, buffers, width):  # type: ignore[no-untyped-def]
    """Update the rows of `count` targets, and store the update of the source in `step_D` -> the loss.

    All slopes are computed before any row changes, so a row that occurs twice moves by the sum of its gradients.
    """
    targets, labels, slopes, step_D = buffers.targets, buffers.labels, buffers.slopes, buffers.step_D
    loss = np.float32(0)
    for k in range(count):
        row_D, score = rows_VD[targets[k]], np.float32(0)
        for d in range(width):
            score += source_D[d] * row_D[d]
        bounded = min(max(score, np.float32(-MAX_SCORE)), np.float32(MAX_SCORE))
        moved = np.float32(1) if bounded == score else np.float32(0)
        slopes[k] = (labels[k] - _interpolate(tables.sigmoid, bounded)) * rate * moved
        if measured:
            loss += _interpolate(tables.softplus, bounded if labels[k] else -bounded) + abs(score - bounded)
    for d in range(width):
        step_D[d] = 0
    for k in range(count):
        row_D, slope = rows_VD[targets[k]], slopes[k]
        for d in range(width):
            step_D[d] += slope * row_D[d]
    for k in range(count):
        row_D, slope = rows_VD[targets[k]], slopes[k]
        for d in range(width):
            row_D[d] += slope * source_D[d]
    return loss


@inlined
def _target_path(centre, tables, buffers):  # type: ignore[no-untyped-def]
    """Make the nodes on the path to a word the targets -> their number."""
    first = tables.starts_V[centre]
    count = tables.starts_V[centre + 1] - first
    for k in range(count):
        buffers.targets[k], buffers.labels[k] = tables.nodes_N[first + k], tables.left_N[first + k]
    return count


@inlined
def _target_negatives(centre, tables, outputs_VD, buffers, width):  # type: ignore[no-untyped-def]
    """Make a word and the next negative words the targets -> their number. Prefetch the rows of the following ones."""
    targets, labels, negatives = buffers.targets, buffers.labels, buffers.negatives
    targets[0], labels[0], count = centre, 1, 1
    for k in range(len(negatives)):
        word, negatives[k] = negatives[k], draw_negative(buffers.streams, tables.aliases_V)
        for d in range(0, width, CACHE_LINE):
            _prefetch(outputs_VD, negatives[k], d)  # type: ignore[call-arg]
        if word != centre:
            targets[count], labels[count] = word, 0
            count += 1
    return count


# The contexts of one centre. If both losses are used, each has its own step, the tree first.


@inlined
def _learn_skip_gram(  # type: ignore[no-untyped-def]
    centre, first, end, tables, weights, rate, measured, buffers, width, hierarchical, sampled
):
    """Learn to predict the centre from each word of its context -> the loss."""
    words, loss = buffers.words, np.float32(0)
    for place in range(first, end):
        if place == centre:
            continue
        source_D = weights.inputs_VD[words[place]]
        if hierarchical:
            count = _target_path(words[centre], tables, buffers)
            loss += _update(source_D, weights.nodes_VD, count, rate, measured, tables, buffers, width)
            for d in range(width):
                source_D[d] += buffers.step_D[d]
        if sampled:
            count = _target_negatives(words[centre], tables, weights.outputs_VD, buffers, width)
            loss += _update(source_D, weights.outputs_VD, count, rate, measured, tables, buffers, width)
            for d in range(width):
                source_D[d] += buffers.step_D[d]
    return loss


@inlined
def _gather_context(centre, first, end, inputs_VD, buffers, width, mean):  # type: ignore[no-untyped-def]
    """Compute the sum or the mean of the vectors of a context in `mean_D`."""
    words, mean_D = buffers.words, buffers.mean_D
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
def _update_context(centre, first, end, inputs_VD, buffers, width, mean):  # type: ignore[no-untyped-def]
    """Move every vector of a context: by the whole step after a mean, by an equal share of it after a sum."""
    words, step_D = buffers.words, buffers.step_D
    if not mean:
        share = np.float32(1) / np.float32(end - first - 1)
        for d in range(width):
            step_D[d] *= share
    for place in range(first, end):
        if place != centre:
            row_D = inputs_VD[words[place]]
            for d in range(width):
                row_D[d] += step_D[d]


@inlined
def _learn_cbow(  # type: ignore[no-untyped-def]
    centre, first, end, tables, weights, rate, measured, buffers, width, hierarchical, sampled, mean
):
    """Learn to predict the centre from its whole context -> the loss."""
    word, inputs_VD, loss = buffers.words[centre], weights.inputs_VD, np.float32(0)
    if hierarchical:
        _gather_context(centre, first, end, inputs_VD, buffers, width, mean)
        count = _target_path(word, tables, buffers)
        loss += _update(buffers.mean_D, weights.nodes_VD, count, rate, measured, tables, buffers, width)
        _update_context(centre, first, end, inputs_VD, buffers, width, mean)
    if sampled:
        _gather_context(centre, first, end, inputs_VD, buffers, width, mean)
        count = _target_negatives(word, tables, weights.outputs_VD, buffers, width)
        loss += _update(buffers.mean_D, weights.outputs_VD, count, rate, measured, tables, buffers, width)
        _update_context(centre, first, end, inputs_VD, buffers, width, mean)
    return loss


# The text


@inlined
def _read_sentence(tokens, position, tables, buffers, totals):  # type: ignore[no-untyped-def]
    """Read the kept words of the next sentence -> the position after it, and their number."""
    count = 0
    while position < len(tokens) and count < MAX_SENTENCE:
        word = tables.words_I[tokens[position]]
        position += 1
        if word == SENTENCE_END:
            break
        totals[0] += 1
        if word == UNKNOWN or np.uint64(tables.keep_V[word]) < (draw(buffers.streams, KEEP_STREAM) >> np.uint64(32)):
            continue
        buffers.words[count] = word
        count += 1
    return position, count


@inlined
def _make_buffers(tables, seed, width, negatives):  # type: ignore[no-untyped-def]
    longest = negatives + 1
    for word in range(len(tables.starts_V) - 1):
        longest = max(longest, tables.starts_V[word + 1] - tables.starts_V[word])
    streams = start_streams(seed)
    buffers = ThreadBuffers(
        np.empty(MAX_SENTENCE, np.int64), streams, np.empty(negatives, np.int64), np.empty(longest, np.int64),
        np.empty(longest, np.float32), np.empty(longest, np.float32), np.empty(width, np.float32),
        np.empty(width, np.float32),
    )  # fmt: skip
    for k in range(negatives):
        buffers.negatives[k] = draw_negative(streams, tables.aliases_V)
    return buffers


@inlined
def _sweep(  # type: ignore[no-untyped-def]
    tokens, tables, weights, options, rate, seed, totals, width, skip_gram, hierarchical, sampled
):
    """Read tokens and learn from each sentence."""
    buffers, position = _make_buffers(tables, seed, width, options.negatives), 0
    while position < len(tokens):
        position, count = _read_sentence(tokens, position, tables, buffers, totals)
        for centre in range(count):
            reach = options.window
            if options.shrink:
                reach -= np.int64(draw_below(draw(buffers.streams, REACH_STREAM), reach))
            first, end = max(0, centre - reach), min(count, centre + reach + 1)
            others, measured = end - first - 1, centre % MEASURE_EVERY == 0
            if others == 0:
                continue
            if skip_gram:
                loss = _learn_skip_gram(
                    centre, first, end, tables, weights, rate, measured, buffers, width, hierarchical, sampled
                )
            else:
                loss = _learn_cbow(
                    centre, first, end, tables, weights, rate, measured, buffers, width, hierarchical, sampled,
                    options.mean,
                )  # fmt: skip
                others = 1
            totals[1] += others
            if measured:
                totals[2] += others
                totals[3] += loss
