"""All places of a target predicted at once, from what the source allots to each and from any tokens that are known.

    input_t = aligned_t + remaining(T - t) + (the token at t, if it is known, else a vector that says it is not)

A bidirectional LSTM reads the inputs, each of its states attends to the source, and a linear layer makes features for
the output layer of what it found and of what is known of the place beside tokens. Of the target it sees nothing but
tokens that are revealed: none at first, some in glancing training (Qian et al., "Glancing Transformer for
Non-Autoregressive Neural Machine Translation", 2021), the surest ones when a translation is refined (Ghazvininejad et
al., "Mask-Predict: Parallel Decoding of Conditional Masked Language Models", 2019).

Legend: B rows, A sources, T target places, D width, H hidden width, E width of the encoder's states.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from chainrule.layers.attention.source import SourceAttention, SourceStates
from chainrule.layers.dropout import drop
from chainrule.layers.nonautoregressive.allocation import Sinusoids
from chainrule.layers.recurrent.stack import Bidirectional


class Known(NamedTuple):
    """Tokens that are revealed: the vectors of tokens, and at which places they are to be seen."""

    embedded_BTD: Tensor
    shown_BT: Tensor  # bool


class ParallelBranch(nn.Module):
    """Features of every place of a target in one pass."""

    def __init__(self, encoded: int, width: int, hidden: int, layers: int, dropout: float, score: str) -> None:
        super().__init__()
        self.dropout = dropout
        self.recurrence = Bidirectional("lstm", width, hidden // 2, layers, dropout)
        self.attend = SourceAttention(score, hidden, encoded)
        self.join = nn.Linear(hidden, width)
        self.join_inputs = nn.Linear(width, width, bias=False)
        self.unknown_D = nn.Parameter(torch.empty(width).uniform_(-1, 1))

    def inputs(self, aligned_BTD: Tensor, places_B: Tensor, sinusoids: Sinusoids) -> Tensor:
        """What is known of each place beside tokens, in rows of so many places -> BTD."""
        T = aligned_BTD.shape[1]
        time_T = torch.arange(1, T + 1, device=places_B.device)
        remaining_BT = (places_B[:, None] - time_T).clamp_(min=0)
        return aligned_BTD + sinusoids.first(T)[remaining_BT]

    def forward(
        self, inputs_BTD: Tensor, memory: SourceStates, places_B: Tensor | None, known: Known | None = None
    ) -> Tensor:
        """Inputs of rows of so many places (None: all T) -> features BTD."""
        if known is None:
            read_BTD = inputs_BTD + self.unknown_D
        else:
            seen_BTD = known.embedded_BTD * inputs_BTD.shape[2] ** 0.5  # as large as what it is added to
            read_BTD = inputs_BTD + torch.where(known.shown_BT.unsqueeze(2), seen_BTD, self.unknown_D)
        hidden_BTH, _ = self.recurrence(self._drop(read_BTD), places_B)
        vector_BTH, _ = self.attend(hidden_BTH, memory)
        features_BTD: Tensor = self.join(self._drop(vector_BTH)) + self.join_inputs(inputs_BTD)
        return features_BTD

    def _drop(self, inputs: Tensor) -> Tensor:
        return drop(inputs, self.dropout, training=self.training)


def glanced(wrong_BT: Tensor, held_BT: Tensor, share: float) -> Tensor:
    """Which places to reveal: of each row at random as many as `share` of its wrong ones -> bool BT.

    `held_BT` says which places stand for something; only those are revealed, right or wrong before.
    """
    count_B1 = ((wrong_BT & held_BT).sum(1, keepdim=True) * share).round()
    chance_BT = torch.rand(held_BT.shape, device=held_BT.device).masked_fill(~held_BT, 2.0)
    return chance_BT.argsort(1).argsort(1) < count_B1
