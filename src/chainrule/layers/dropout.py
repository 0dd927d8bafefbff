"""Dropout that knows about time and about words.

Legend: B batch, T time, D width, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def drop(inputs_BTD: Tensor, rate: float, *, training: bool, locked: bool = False) -> Tensor:
    """Zero a share of the units; `locked` keeps one mask for all time steps (Gal & Ghahramani, 2016)."""
    if not training or rate == 0.0:
        return inputs_BTD
    if not locked:
        return F.dropout(inputs_BTD, rate)
    mask_B1D = inputs_BTD.new_empty(inputs_BTD.shape[0], 1, inputs_BTD.shape[2]).bernoulli_(1 - rate).div_(1 - rate)
    return inputs_BTD * mask_B1D


def word_mask(tokens_BT: Tensor, vocabulary: int, rate: float) -> Tensor:
    """One factor a token: 0 for the share of words dropped from the whole batch, 1/(1-rate) for the others -> BT1."""
    keep_V = torch.empty(vocabulary, device=tokens_BT.device).bernoulli_(1 - rate).div_(1 - rate)
    return keep_V[tokens_BT].unsqueeze(-1)
