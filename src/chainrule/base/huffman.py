"""The Huffman tree of word counts: the binary tree with the shortest average code (Huffman 1952)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from chainrule.base.arrays import Array


def huffman_tree(counts_V: Array) -> tuple[Array, Array]:
    """The Huffman tree of positive counts: (children, their total counts), both J2 with J = V - 1 inner nodes.

    Inner nodes are numbered breadth first. A negative child is the word ~child. Two queues replace the heap: words by
    rising count, and merged nodes, which are created in rising order.
    """
    words, size = np.argsort(counts_V, kind="stable"), len(counts_V)
    mass = np.concatenate([counts_V[words], np.full(size - 1, np.iinfo(np.int64).max)])
    pairs_J2 = np.empty((size - 1, 2), dtype=np.int64)
    leaf, merged = 0, size
    for new in range(size, 2 * size - 1):
        for side in (0, 1):
            if leaf < size and (mass[leaf] <= mass[merged] or merged >= new):
                pairs_J2[new - size, side], leaf = leaf, leaf + 1
            else:
                pairs_J2[new - size, side], merged = merged, merged + 1
        mass[new] = mass[pairs_J2[new - size]].sum()
    return _number_breadth_first(pairs_J2, words, mass)


def _number_breadth_first(pairs_J2: Array, words_V: Array, mass: Array) -> tuple[Array, Array]:
    """Renumber nodes that are numbered in the order of merging, V onwards, with the root last."""
    size = len(words_V)
    number = np.full(2 * size - 1, -1)
    level, order = np.array([2 * size - 2]), []
    while len(level):
        order.append(level)
        children = pairs_J2[level - size].reshape(-1)
        level = children[children >= size]
    order_J = np.concatenate(order)
    number[order_J] = np.arange(size - 1)
    pairs_J2 = pairs_J2[order_J - size]
    leaves_J2 = pairs_J2 < size
    children_J2 = np.where(leaves_J2, ~words_V[np.where(leaves_J2, pairs_J2, 0)], number[pairs_J2])
    return children_J2, mass[pairs_J2].astype(np.float64)


class TreePaths(NamedTuple):
    """The paths from the root to all words, concatenated: that of word w is starts_V[w] to starts_V[w + 1]."""

    starts_V: Array  # V + 1, int64
    nodes_N: Array  # the inner nodes of each path, the root first, int32
    left_N: Array  # 1 where the path continues to the left, otherwise 0, float32


def huffman_paths(counts_V: Array) -> TreePaths:
    """The paths through the Huffman tree of positive counts; the path of a single word is empty."""
    size = len(counts_V)
    if size == 1:
        return TreePaths(np.zeros(2, np.int64), np.empty(0, np.int32), np.empty(0, np.float32))
    children_J2, _ = huffman_tree(counts_V)
    words_J2, inner_J2 = children_J2 < 0, children_J2 > 0
    parent_V, left_V = np.empty(size, np.int64), np.empty(size, np.float32)
    parent_J, left_J = np.full(size - 1, -1), np.zeros(size - 1, np.float32)
    for side, left in ((0, 1.0), (1, 0.0)):
        nodes_M = np.flatnonzero(words_J2[:, side])
        parent_V[~children_J2[nodes_M, side]], left_V[~children_J2[nodes_M, side]] = nodes_M, left
        nodes_M = np.flatnonzero(inner_J2[:, side])
        parent_J[children_J2[nodes_M, side]], left_J[children_J2[nodes_M, side]] = nodes_M, left
    depths_J = np.zeros(size - 1, np.int64)
    for node in range(1, size - 1):  # breadth first: a parent has a lower number
        depths_J[node] = depths_J[parent_J[node]] + 1
    starts_V = np.concatenate([[0], np.cumsum(depths_J[parent_V] + 1)])
    nodes_N, left_N = np.empty(starts_V[-1], np.int32), np.empty(starts_V[-1], np.float32)
    place_V, node_V = starts_V[1:] - 1, parent_V
    while len(place_V):  # all words climb one node at a time; those at the root are done
        nodes_N[place_V], left_N[place_V] = node_V, left_V
        below = node_V > 0
        place_V, left_V, node_V = place_V[below] - 1, left_J[node_V[below]], parent_J[node_V[below]]
    return TreePaths(starts_V, nodes_N, left_N)
