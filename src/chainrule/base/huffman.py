"""The Huffman tree of word counts: the binary tree whose codes are shortest on average (Huffman 1952).

Shapes: V words, I inner nodes (V - 1), P decisions on the ways to all words.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]


def huffman(counts_V: Array) -> tuple[Array, Array]:
    """The Huffman tree of positive counts: (children, their total counts), both I×2, nodes numbered breadth first.

    A child below zero is the word ~child. Two queues do without a heap: words by rising count, and merged nodes,
    which come out in rising order by themselves.
    """
    words, size = np.argsort(counts_V, kind="stable"), len(counts_V)
    mass = np.concatenate([counts_V[words], np.full(size - 1, np.iinfo(np.int64).max)])
    pairs = np.empty((size - 1, 2), dtype=np.int64)
    leaf, merged = 0, size
    for new in range(size, 2 * size - 1):
        for side in (0, 1):
            if leaf < size and (mass[leaf] <= mass[merged] or merged >= new):
                pairs[new - size, side], leaf = leaf, leaf + 1
            else:
                pairs[new - size, side], merged = merged, merged + 1
        mass[new] = mass[pairs[new - size]].sum()
    return _breadth_first(pairs, words, mass)


def _breadth_first(pairs_I2: Array, words_V: Array, mass: Array) -> tuple[Array, Array]:
    """Renumber nodes that were numbered in the order of merging, V onwards, the root last."""
    size = len(words_V)
    number = np.full(2 * size - 1, -1)
    level, order = np.array([2 * size - 2]), []
    while len(level):
        order.append(level)
        children = pairs_I2[level - size].reshape(-1)
        level = children[children >= size]
    order_I = np.concatenate(order)
    number[order_I] = np.arange(size - 1)
    pairs_I2 = pairs_I2[order_I - size]
    leaves_I2 = pairs_I2 < size
    children_I2 = np.where(leaves_I2, ~words_V[np.where(leaves_I2, pairs_I2, 0)], number[pairs_I2])
    return children_I2, mass[pairs_I2].astype(np.float64)


class Paths(NamedTuple):
    """The ways from the root to all words, one after the other: those of word w from starts_V[w] to starts_V[w + 1]."""

    starts_V: Array  # V + 1 of them, int64
    nodes_P: Array  # the inner nodes that are passed, the root first, int32
    left_P: Array  # 1 where the way goes on to the left, else 0, float32


def paths(counts_V: Array) -> Paths:
    """The ways through the Huffman tree of positive counts; one word alone needs no decision."""
    size = len(counts_V)
    if size == 1:
        return Paths(np.zeros(2, np.int64), np.empty(0, np.int32), np.empty(0, np.float32))
    children_I2, _ = huffman(counts_V)
    words, inner = children_I2 < 0, children_I2 > 0
    above_V, left_V = np.empty(size, np.int64), np.empty(size, np.float32)
    above_I, left_I = np.full(size - 1, -1), np.zeros(size - 1, np.float32)
    for side, left in ((0, 1.0), (1, 0.0)):
        nodes_K = np.flatnonzero(words[:, side])
        above_V[~children_I2[nodes_K, side]], left_V[~children_I2[nodes_K, side]] = nodes_K, left
        nodes_K = np.flatnonzero(inner[:, side])
        above_I[children_I2[nodes_K, side]], left_I[children_I2[nodes_K, side]] = nodes_K, left
    depths_I = np.zeros(size - 1, np.int64)
    for node in range(1, size - 1):  # breadth first: a parent has a lower number
        depths_I[node] = depths_I[above_I[node]] + 1
    starts_V = np.concatenate([[0], np.cumsum(depths_I[above_V] + 1)])
    nodes_P, left_P = np.empty(starts_V[-1], np.int32), np.empty(starts_V[-1], np.float32)
    place_V, node_V = starts_V[1:] - 1, above_V
    while len(place_V):  # all words climb at once; those at the root are done
        nodes_P[place_V], left_P[place_V] = node_V, left_V
        below = node_V > 0
        place_V, left_V, node_V = place_V[below] - 1, left_I[node_V[below]], above_I[node_V[below]]
    return Paths(starts_V, nodes_P, left_P)
