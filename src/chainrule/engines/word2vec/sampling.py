"""The tables that word2vec draws from: which words are kept, which are negative, and the sigmoid.

Legend: V words, E points of a table.
"""

from __future__ import annotations

import numpy as np

from chainrule.engines.word2vec.kernels import HIGHEST, POINTS, Array

FULL = 2**32


def keep_limits(counts_V: Array, sample: float) -> Array:
    """Subsampling of frequent words (Mikolov et al. 2013) -> V, uint32: 32 random bits at most that keep a word.

    A word whose share of the text is f stays with the probability √(s/f) + s/f, s being `sample`; 0 keeps all.
    """
    if not sample:
        return np.full(len(counts_V), FULL - 1, np.uint32)
    shares_V = counts_V / (sample * counts_V.sum())
    with np.errstate(divide="ignore", invalid="ignore"):
        probabilities_V = np.where(counts_V > 0, (np.sqrt(shares_V) + 1) / shares_V, 1.0)
    return (np.minimum(probabilities_V, 1.0) * (FULL - 1)).astype(np.uint32)


def alias_table(weights_V: Array) -> Array:
    """A table from which words are drawn in proportion to weights by one look (Walker 1977; Vose 1991) -> V, uint64.

    A draw chooses a place evenly, and then the place's own word if 32 more random bits are below the upper half of the
    entry, else the word in its lower half.
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
    limits_V = np.minimum(np.rint(np.array(own) * FULL), FULL - 1).astype(np.uint64)
    table_V: Array = (limits_V << np.uint64(32)) | np.array(other, np.uint64)
    return table_V


def sigmoid_table() -> Array:
    """σ(x) from -HIGHEST to HIGHEST -> E, float32."""
    return (1 / (1 + np.exp(-_scores()))).astype(np.float32)


def softplus_table() -> Array:
    """log(1 + e^-x) = -log σ(x) over the same -> E, float32."""
    return np.log1p(np.exp(-_scores())).astype(np.float32)


def _scores() -> Array:
    return np.linspace(-HIGHEST, HIGHEST, POINTS + 1)
