"""The hierarchical softmax (Morin & Bengio 2005) on a Huffman tree of the word counts (Mikolov et al. 2013).

A word is a leaf; its probability is the product of the left-or-right decisions on the way from the root, so it costs
the length of its code, and all words sum to one whatever the parameters are.

Inner nodes are numbered breadth first: the root is 0, and each level is a range that directly follows the last one.

Shapes: N positions, D width, V vocabulary, I inner nodes (V - 1), L longest code, R distinct nodes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from chainrule.base.huffman import huffman
from chainrule.layers.outputs.base import OutputConfig, OutputLayer, distinct, weighted_sum
from chainrule.registry import OUTPUTS
from chainrule.types import Vocabulary

ROWS = 1024
"""Positions whose nodes are gathered together; more would multiply positions by nodes that they do not need."""


class Level(NamedTuple):
    """A level of the tree: its range of inner nodes, and which of their children, (left, right) each, are what."""

    nodes: slice
    inner: Tensor  # places of the children that are inner nodes; they are the next level, in order
    leaves: Tensor  # places of the children that are words
    words: Tensor  # those words


@OUTPUTS.register("hierarchical")
class Hierarchical(OutputLayer):
    """p(w | h) = Π σ(±(node·h + b)) over the inner nodes above w."""

    name = "hierarchical"
    children_I2: Tensor
    path_VL: Tensor
    sign_VL: Tensor
    levels: list[Level]

    def __init__(self, config: OutputConfig, width: int, vocabulary: Vocabulary) -> None:
        super().__init__(config, width, vocabulary)
        inner = vocabulary.size - 1
        children_I2, mass_I2 = huffman(np.asarray(vocabulary.counts_V, dtype=np.int64) + 1)
        self.weight_ID = nn.Parameter(torch.empty(inner, width).uniform_(-(width**-0.5), width**-0.5))
        # σ(b) is the share of the left child, so training starts from the word frequencies.
        self.bias_I = nn.Parameter(torch.from_numpy(np.log(mass_I2[:, 0] / mass_I2[:, 1])).float())
        self.register_buffer("children_I2", torch.from_numpy(children_I2))
        self.register_load_state_dict_post_hook(_derive)
        _derive(self)

    def loss(self, hidden_ND: Tensor, targets_N: Tensor, weights_N: Tensor | None = None) -> Tensor:
        return -weighted_sum(self.log_prob(hidden_ND, targets_N), weights_N)

    def log_prob(self, hidden_ND: Tensor, targets_N: Tensor) -> Tensor:
        chunks = zip(hidden_ND.split(ROWS), targets_N.split(ROWS), strict=True)
        return torch.cat([self._walk(hidden_CD, targets_C) for hidden_CD, targets_C in chunks])

    def _walk(self, hidden_ND: Tensor, targets_N: Tensor) -> Tensor:
        """log p of the targets, N: the nodes of all their paths are scored by one product, then picked."""
        path_NL, sign_NL = self.path_VL[targets_N].long(), self.sign_VL[targets_N]
        rows_R, place_I = distinct(path_NL, self.size - 1)
        nodes_RD = functional.embedding(rows_R, self.weight_ID)
        score_NR = functional.linear(hidden_ND, nodes_RD, self.bias_I[rows_R]).to(nodes_RD.dtype)
        decision_NL = functional.logsigmoid(score_NR.gather(1, place_I[path_NL]) * sign_NL)
        return (decision_NL * sign_NL.abs()).sum(1)

    def log_probs(self, hidden_ND: Tensor) -> Tensor:
        device, score_NI = hidden_ND.device, functional.linear(hidden_ND, self.weight_ID, self.bias_I)
        score_NI = score_NI.to(self.weight_ID.dtype)
        log_probs_NV = score_NI.new_empty(len(hidden_ND), self.size)
        reached_NK = score_NI.new_zeros(len(hidden_ND), 1)
        for level in self.levels:
            sides_NK2 = functional.logsigmoid(torch.stack([score_NI[:, level.nodes], -score_NI[:, level.nodes]], 2))
            children_NK = (sides_NK2 + reached_NK[:, :, None]).flatten(1)
            log_probs_NV[:, level.words.to(device)] = children_NK[:, level.leaves.to(device)]
            reached_NK = children_NK[:, level.inner.to(device)]
        return log_probs_NV


def _derive(layer: Hierarchical, _: Any = None) -> None:
    """Lay out paths and levels from the children: at the start, and after a checkpoint brought its own tree."""
    children_I2 = layer.children_I2.cpu().numpy()
    paths, levels = [], []
    start, prefix_K0 = 0, np.empty((1, 0), dtype=np.int32)
    sign_K0 = np.empty((1, 0), dtype=np.int8)
    while len(prefix_K0):
        stop = start + len(prefix_K0)
        children_K = children_I2[start:stop].reshape(-1)
        node_K1 = np.repeat(np.arange(start, stop, dtype=np.int32), 2)[:, None]
        side_K1 = np.tile(np.array([1, -1], dtype=np.int8), stop - start)[:, None]
        path_KL = np.hstack([np.repeat(prefix_K0, 2, axis=0), node_K1])
        sign_KL = np.hstack([np.repeat(sign_K0, 2, axis=0), side_K1])
        leaf_K = children_K < 0
        paths.append((~children_K[leaf_K], path_KL[leaf_K], sign_KL[leaf_K]))
        inner, leaves, words = np.flatnonzero(~leaf_K), np.flatnonzero(leaf_K), ~children_K[leaf_K]
        levels.append(Level(slice(start, stop), *map(torch.from_numpy, (inner, leaves, words))))
        start, prefix_K0, sign_K0 = stop, path_KL[~leaf_K], sign_KL[~leaf_K]
    path_VL = np.zeros((len(children_I2) + 1, len(levels)), dtype=np.int32)
    sign_VL = np.zeros(path_VL.shape, dtype=np.int8)
    for words, path, sign in paths:
        path_VL[words, : path.shape[1]], sign_VL[words, : path.shape[1]] = path, sign
    device = layer.children_I2.device
    layer.levels = levels
    layer.register_buffer("path_VL", torch.from_numpy(path_VL).to(device), persistent=False)
    layer.register_buffer("sign_VL", torch.from_numpy(sign_VL).to(device), persistent=False)
