"""How the parameters of a Transformer stack and the arrays of a call are laid out for its kernels."""

from __future__ import annotations

from enum import IntEnum

ATTENTIONS = ("causal", "linear", "full", "slow")
"""What a position attends to, and how: itself and those before it, by softmax or by linear attention; or in an encoder,
which reads whole texts in one call, all of its text, by softmax or by slow multi-head attention. A kernel takes the
index."""

DIRECTIONS = ("both", "left-to-right", "right-to-left")
"""Which positions of a text slow attention sees: all, those up to the own one, or those from it on."""


class Shape(IntEnum):
    """Entries of `shape`."""

    LAYERS = 0
    WIDTH = 1  # of the stream
    HEADS = 2
    HEAD = 3  # width of a head, rounded up
    REAL_HEAD = 4  # width of a head as it is
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
    SOURCE = 18  # 1: blocks attend to a source, 2: by the fast fully connected softmax
    ATTENTION = 19  # index of ATTENTIONS
    DIRECTION = 20  # of slow attention, index of DIRECTIONS


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
    DECAYS = 12  # of linear attention, by head, in `floats`
    OFFSETS = 13  # of the fast softmax: terms by head and offset, 2 · WINDOW - 1 for each head, in `floats`
    SHARPNESS = 14  # of the fast softmax: factors by head, in `floats`
    MEMORY = 15  # keys and values of an encoded source, side by side


# As plain numbers, which kernels can use:
(LAYERS, WIDTH, HEADS, HEAD, REAL_HEAD, INNER, ACTIVATION, PRE, GATED, RMS) = range(10)
(COSINES, SINES, POSITIONS, FINAL_NORM, FINAL_NORM_BIAS, OUTPUT, DISTANCES, WINDOW, SOURCE) = range(10, 19)
ATTENTION, DIRECTION = range(19, 21)
(NORM, NORM_BIAS, INTO, OUT, SOURCE_NORM, SOURCE_NORM_BIAS, QUERY, SOURCE_OUT) = range(8)
(FEED_NORM, FEED_NORM_BIAS, WIDEN, NARROW, DECAYS, OFFSETS, SHARPNESS, MEMORY) = range(8, 16)
CAUSAL, LINEAR, FULL, SLOW = range(4)
BOTH, LEFT_TO_RIGHT, RIGHT_TO_LEFT = range(3)
FAST_SOURCE = 2
EMBEDDING_SCALE, SCORE_SCALE, EPSILON = range(3)
"""Entries of `constants`."""

STREAM, STRIDE, LOGITS, SHIFTS = 0, 6, 7, 8
"""Entries of `room`."""
