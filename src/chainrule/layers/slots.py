"""A parallel branch that foretells no length: every source word has some slots, and a slot holds a word or a blank.

A target is what is left when repeated words of adjacent slots are taken as one and blanks are dropped, and its
probability the sum over all ways to fill the slots that leave it (Graves et al., "Connectionist Temporal
Classification", 2006; for translation Libovický and Helcl, "End-to-End Non-Autoregressive Neural Machine Translation
with Connectionist Temporal Classification", 2018).

    p(blank) = σ(b·n)        p(word) = (1 - p(blank)) · p_output(word | n)

so that every output layer serves. Legend: B batch, S source time, U slots, E width of the encoder's states, D width of
features, V vocabulary, T target time, N slots of all rows.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from chainrule.layers.outputs.base import OutputLayer


class Slots(nn.Module):
    """So many slots for each source word, and what may stand in them."""

    def __init__(self, encoded: int, width: int, count: int) -> None:
        super().__init__()
        self.count = count
        self.project = nn.Linear(encoded, width)
        self.which_KD = nn.Parameter(torch.empty(count, width).uniform_(-1, 1))
        self.blank = nn.Linear(width, 1)

    def inputs(self, encoded_BSE: Tensor) -> Tensor:
        """What is known of each slot: its source word, and which of its slots it is -> BUD."""
        inputs_BSKD: Tensor = self.project(encoded_BSE).unsqueeze(2) + self.which_KD
        return inputs_BSKD.flatten(1, 2)

    def log_probs(self, features_ND: Tensor, output: OutputLayer) -> Tensor:
        """log p of every word, and of the blank as the last of all -> N(V+1)."""
        blank_N1 = self.blank(features_ND)
        words_NV = output.log_probs(features_ND) + functional.logsigmoid(-blank_N1)
        return torch.cat([words_NV, functional.logsigmoid(blank_N1)], 1)

    def loss(
        self, features_BUD: Tensor, slots_B: Tensor, output: OutputLayer, targets_BT: Tensor, lengths_B: Tensor
    ) -> Tensor:
        """-log p of targets of so many tokens in so many slots, summed; a target that does not fit counts 0."""
        B, U, _ = features_BUD.shape
        log_probs_BUV = self.log_probs(features_BUD.flatten(0, 1), output).view(B, U, -1)
        return functional.ctc_loss(
            log_probs_BUV.transpose(0, 1),
            targets_BT,
            slots_B,
            lengths_B,
            blank=output.size,
            reduction="sum",
            zero_infinity=True,
        )

    def best(self, features_BUD: Tensor, slots_B: Tensor, output: OutputLayer) -> list[list[int]]:
        """What the most probable filling of the slots leaves, a row of tokens each."""
        B, U, _ = features_BUD.shape
        filled_BU = self.log_probs(features_BUD.flatten(0, 1), output).argmax(1).view(B, U)
        return collapsed(filled_BU, slots_B, output.size)


def collapsed(filled_BU: Tensor, slots_B: Tensor, blank: int) -> list[list[int]]:
    """Rows of filled slots, so many each, with repeated words taken as one and without blanks."""
    kept_BU = (filled_BU != blank) & (torch.arange(filled_BU.shape[1], device=slots_B.device) < slots_B[:, None])
    kept_BU[:, 1:] &= filled_BU[:, 1:] != filled_BU[:, :-1]
    tokens = filled_BU[kept_BU].split(kept_BU.sum(1).tolist())
    return [row.tolist() for row in tokens]
