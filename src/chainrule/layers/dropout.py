"""Dropout of units, with one mask per step or one for all steps, and of words."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from chainrule.base.shares import draw_rows


def dropout(inputs: Tensor, rate: float) -> Tensor:
    """Zero a share of the entries and scale the others up, so that the expectation stays the same.

    On a CPU, drawing the mask is most of the work, so one 64-bit draw decides on four entries, by 16 bits each.
    """
    if torch.compiler.is_compiling():
        return F.dropout(inputs, rate)
    return inputs * dropout_mask(inputs, rate)


def dropout_mask(inputs: Tensor, rate: float) -> Tensor:
    """What `dropout` multiplies the inputs by: 0, or 1 / (1 - rate)."""
    if inputs.device.type != "cpu":
        return draw_rows(lambda shape: F.dropout(inputs.new_ones(shape), rate), inputs.shape)
    kept = draw_rows(_chances, inputs.shape) >= round(rate * 2**16) - 2**15
    return kept.to(inputs.dtype).mul_(1 / (1 - rate))


def _chances(shape: tuple[int, ...]) -> Tensor:
    """Numbers uniform over -32768 … 32767."""
    size = math.prod(shape)
    draws = torch.empty((size + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
    return draws.view(torch.int16)[:size].view(shape)


def drop(inputs_BTD: Tensor, rate: float, *, training: bool, locked: bool = False) -> Tensor:
    """Zero a share of the units; `locked` keeps one mask for all time steps (Gal & Ghahramani, 2016)."""
    if not training or rate == 0.0:
        return inputs_BTD
    if not locked:
        return dropout(inputs_BTD, rate)
    shape = (inputs_BTD.shape[0], 1, inputs_BTD.shape[2])
    mask_B1D = draw_rows(lambda whole: inputs_BTD.new_empty(whole).bernoulli_(1 - rate).div_(1 - rate), shape)
    return inputs_BTD * mask_B1D


def word_mask(tokens_BT: Tensor, vocabulary: int, rate: float) -> Tensor:
    """A factor per token: 0 for words that are dropped from the whole batch, 1/(1-rate) for the others -> BT1."""
    keep_V = torch.empty(vocabulary, device=tokens_BT.device).bernoulli_(1 - rate).div_(1 - rate)
    return keep_V[tokens_BT].unsqueeze(-1)


class Dropout(nn.Module):
    """`dropout` as a layer: unlike torch's, its mask does not depend on how processes share the rows of a batch."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, inputs: Tensor) -> Tensor:
        """Drop entries in training -> the same shape; the rows of the batch come first."""
        return dropout(inputs, self.rate) if self.training and self.rate else inputs
