"""The tables that word2vec samples with: which words are kept, which are negative, and the sigmoid."""

from __future__ import annotations

import numpy as np

from chainrule.base.arrays import Array
from chainrule.engines.word2vec.kernels import MAX_SCORE, TABLE_STEPS

RANGE = 2**32


def keep_limits(counts_V: Array, sample: float) -> Array:
    """Subsampling of frequent words (Mikolov et al. 2013) -> V, uint32: the largest 32 random bits that keep a word.

    A word with the relative frequency f is kept with probability √(s/f) + s/f, where s is `sample`; 0 keeps every word.
    """
    if not sample:
        return np.full(len(counts_V), RANGE - 1, np.uint32)
    shares_V = counts_V / (sample * counts_V.sum())
    with np.errstate(divide="ignore", invalid="ignore"):
        probabilities_V = np.where(counts_V > 0, (np.sqrt(shares_V) + 1) / shares_V, 1.0)
    return (np.minimum(probabilities_V, 1.0) * (RANGE - 1)).astype(np.uint32)


def alias_table(weights_V: Array) -> Array:
    """A table to draw words in proportion to weights in constant time (Walker 1977; Vose 1991) -> V, uint64.

    A draw picks an entry uniformly. It is the entry's own word if 32 more random bits are below the upper half of the
    entry, otherwise the word in the lower half.
    """
    size = len(weights_V)
    shares = (np.asarray(weights_V, np.float64) * (size / np.sum(weights_V, dtype=np.float64))).tolist()
    own, other = [1.0] * size, list(range(size))
    poor = [word for word in range(size) if shares[word] < 1]
    rich = [word for word in range(size) if shares[word] >= 1]
    while poor and rich:
        word, giver = poor.pop(), rich[-1]
        own[word], other[word] = shares[word], giver
        shares[giver] -= 1 - shares[word]
        if shares[giver] < 1:
            poor.append(rich.pop())
    limits_V = np.minimum(np.rint(np.array(own) * RANGE), RANGE - 1).astype(np.uint64)
    table_V: Array = (limits_V << np.uint64(32)) | np.array(other, np.uint64)
    return table_V


def sigmoid_table() -> Array:
    """σ(x) at TABLE_STEPS + 1 points from -MAX_SCORE to MAX_SCORE, float32."""
    return (1 / (1 + np.exp(-_scores()))).astype(np.float32)


def softplus_table() -> Array:
    """log(1 + e^-x) = -log σ(x) at the same points, float32."""
    return np.log1p(np.exp(-_scores())).astype(np.float32)


def _scores() -> Array:
    return np.linspace(-MAX_SCORE, MAX_SCORE, TABLE_STEPS + 1)
