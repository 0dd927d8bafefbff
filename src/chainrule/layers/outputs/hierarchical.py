"""The hierarchical softmax (Morin & Bengio 2005) on a Huffman tree of the word counts (Mikolov et al. 2013).

A word is a leaf; its probability is the product of the left-or-right decisions on the path from the root. It costs as
much as its code is long, and the words sum to one for any parameters.

Inner nodes are numbered breadth first: the root is 0, and each level is a range that directly follows the previous one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from chainrule.base.huffman import huffman_tree
from chainrule.layers.outputs.base import OutputConfig, OutputLayer, distinct, weighted_sum
from chainrule.registry import OUTPUTS
from chainrule.types import Vocabulary

CHUNK_POSITIONS = 1024
"""Positions per chunk: larger chunks would multiply more positions by nodes that they do not need."""


class Level(NamedTuple):
    """A level of the tree: its range of inner nodes, and the kinds of their children, (left, right) of each node."""

    nodes: slice
    inner: Tensor  # indices of the children that are inner nodes: the next level, in order
    leaves: Tensor  # indices of the children that are words
    words: Tensor  # those words


@OUTPUTS.register("hierarchical")
class Hierarchical(OutputLayer):
    """p(w | h) = Π σ(±(node·h + b)) over the inner nodes above w."""

    name = "hierarchical"
    children_I2: Tensor  # (inner nodes, 2)
    path_VL: Tensor  # (vocabulary, longest code)
    sign_VL: Tensor  # (vocabulary, longest code)
    levels: list[Level]

    def __init__(self, config: OutputConfig, width: int, vocabulary: Vocabulary) -> None:
        super().__init__(config, width, vocabulary)
        inner = vocabulary.size - 1
        children_J2, mass_J2 = huffman_tree(np.asarray(vocabulary.counts_V, dtype=np.int64) + 1)
        self.weight_ID = nn.Parameter(torch.empty(inner, width).uniform_(-(width**-0.5), width**-0.5))
        # σ(b) is the share of the left child: training starts from the word frequencies.
        self.bias_I = nn.Parameter(torch.from_numpy(np.log(mass_J2[:, 0] / mass_J2[:, 1])).float())
        self.register_buffer("children_I2", torch.from_numpy(children_J2))
        self.register_load_state_dict_post_hook(_derive)
        _derive(self)

    def loss(self, hidden_ND: Tensor, targets_N: Tensor, weights_N: Tensor | None = None) -> Tensor:
        return -weighted_sum(self.log_prob(hidden_ND, targets_N), weights_N)

    def log_prob(self, hidden_ND: Tensor, targets_N: Tensor) -> Tensor:
        chunks = zip(hidden_ND.split(CHUNK_POSITIONS), targets_N.split(CHUNK_POSITIONS), strict=True)
        return torch.cat([self._log_prob_chunk(hidden_MD, targets_M) for hidden_MD, targets_M in chunks])

    def _log_prob_chunk(self, hidden_ND: Tensor, targets_N: Tensor) -> Tensor:
        """log p of the targets, N: one product scores the nodes of all their paths."""
        path, sign = self.path_VL[targets_N].long(), self.sign_VL[targets_N]  # (N, longest code)
        rows_R, index_J = distinct(path, self.size - 1)
        nodes_RD = functional.embedding(rows_R, self.weight_ID)
        score_NR = functional.linear(hidden_ND, nodes_RD, self.bias_I[rows_R]).to(nodes_RD.dtype)
        decisions = functional.logsigmoid(score_NR.gather(1, index_J[path]) * sign)
        return (decisions * sign.abs()).sum(1)

    def log_probs(self, hidden_ND: Tensor) -> Tensor:
        device, score_NJ = hidden_ND.device, functional.linear(hidden_ND, self.weight_ID, self.bias_I)
        score_NJ = score_NJ.to(self.weight_ID.dtype)
        log_probs_NV = score_NJ.new_empty(len(hidden_ND), self.size)
        reached_NJ = score_NJ.new_zeros(len(hidden_ND), 1)  # log p of reaching each node of a level
        for level in self.levels:
            sides_NJ2 = functional.logsigmoid(torch.stack([score_NJ[:, level.nodes], -score_NJ[:, level.nodes]], 2))
            children_NJ = (sides_NJ2 + reached_NJ[:, :, None]).flatten(1)
            log_probs_NV[:, level.words.to(device)] = children_NJ[:, level.leaves.to(device)]
            reached_NJ = children_NJ[:, level.inner.to(device)]
        return log_probs_NV


def _derive(layer: Hierarchical, _: Any = None) -> None:
    """Derive paths and levels from the children: at the start, and after a checkpoint with another tree is loaded."""
    children_J2 = layer.children_I2.cpu().numpy()
    paths, levels = [], []
    start, prefix = 0, np.empty((1, 0), dtype=np.int32)  # the paths to the nodes of a level
    prefix_sign = np.empty((1, 0), dtype=np.int8)
    while len(prefix):
        stop = start + len(prefix)
        children_M = children_J2[start:stop].reshape(-1)
        node_M1 = np.repeat(np.arange(start, stop, dtype=np.int32), 2)[:, None]
        side_M1 = np.tile(np.array([1, -1], dtype=np.int8), stop - start)[:, None]
        longer = np.hstack([np.repeat(prefix, 2, axis=0), node_M1])
        longer_sign = np.hstack([np.repeat(prefix_sign, 2, axis=0), side_M1])
        leaf_M = children_M < 0
        paths.append((~children_M[leaf_M], longer[leaf_M], longer_sign[leaf_M]))
        inner, leaves, words = np.flatnonzero(~leaf_M), np.flatnonzero(leaf_M), ~children_M[leaf_M]
        levels.append(Level(slice(start, stop), *map(torch.from_numpy, (inner, leaves, words))))
        start, prefix, prefix_sign = stop, longer[~leaf_M], longer_sign[~leaf_M]
    path_of_word = np.zeros((len(children_J2) + 1, len(levels)), dtype=np.int32)
    sign_of_word = np.zeros(path_of_word.shape, dtype=np.int8)
    for words, path, sign in paths:
        path_of_word[words, : path.shape[1]], sign_of_word[words, : path.shape[1]] = path, sign
    device = layer.children_I2.device
    layer.levels = levels
    layer.register_buffer("path_VL", torch.from_numpy(path_of_word).to(device), persistent=False)
    layer.register_buffer("sign_VL", torch.from_numpy(sign_of_word).to(device), persistent=False)
