"""A parallel branch that foretells no length: every source word has some slots, and a slot holds a word or a blank.

A target is what is left when repeated words of adjacent slots are taken as one and blanks are dropped, and its
probability the sum over all ways to fill the slots that leave it (Graves et al., "Connectionist Temporal
Classification", 2006; for translation Libovický and Helcl, "End-to-End Non-Autoregressive Neural Machine Translation
with Connectionist Temporal Classification", 2018).

    p(blank) = σ(b·n)        p(word) = (1 - p(blank)) · p_output(word | n)

so that every output layer serves. Legend: B batch, S source time, U slots, E width of the encoder's states, D width of
features, V vocabulary, T target time, X states of a way, N slots of all rows.
"""

from __future__ import annotations

from itertools import groupby

import torch
from torch import Tensor, nn
from torch.nn import functional

from chainrule.layers.outputs.base import OutputLayer

NEVER = -1e30
"""log p of what cannot be; a number, as gradients of infinities are none."""


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

    def loss(
        self, features_BUD: Tensor, slots_B: Tensor, output: OutputLayer, targets_BT: Tensor, lengths_B: Tensor
    ) -> Tensor:
        """-log p of targets of so many tokens in so many slots, summed; a target that does not fit counts 0."""
        B, U, _ = features_BUD.shape
        blank_BU1 = self.blank(features_BUD)
        words_BUV = output.log_probs(features_BUD.flatten(0, 1)).view(B, U, -1)
        words_BUT = words_BUV.gather(2, targets_BT.unsqueeze(1).expand(-1, U, -1)) + functional.logsigmoid(-blank_BU1)
        log_prob_B = summed_ways(words_BUT, functional.logsigmoid(blank_BU1), targets_BT, slots_B, lengths_B)
        return -torch.where(log_prob_B > NEVER / 2, log_prob_B, 0.0).sum()

    def best(self, features_BUD: Tensor, slots_B: Tensor, output: OutputLayer) -> list[list[int]]:
        """What the most probable filling of the slots leaves, a row of tokens each."""
        features_ND = features_BUD.flatten(0, 1)
        log_prob_N, word_N = output.log_probs(features_ND).max(1)
        blank_N = self.blank(features_ND).squeeze(1)  # the log-odds: σ(b) is more than (1 - σ(b))·p where b > log p
        filled_N = word_N.masked_fill(blank_N > log_prob_N, output.size)
        return collapsed(filled_N.view(features_BUD.shape[:2]), slots_B, output.size)


def summed_ways(words_BUT: Tensor, blank_BU1: Tensor, targets_BT: Tensor, slots_B: Tensor, lengths_B: Tensor) -> Tensor:
    """log Σ of all ways to fill the slots of each row that leave its target -> B; where there is none, below NEVER/2.

    `words_BUT` is log p of each token of the target in each slot, `blank_BU1` that of a blank. A way goes through the
    states blank, first token, blank, second token, …, blank, from slot to slot staying, or going on by one, or by two
    from a token to another one: X = 2·T + 1 states.
    """
    B, U, T = words_BUT.shape
    states_BUTK = torch.stack([blank_BU1.expand(-1, -1, T), words_BUT], 3)
    states_UBX = torch.cat([states_BUTK.flatten(2), blank_BU1], 2).transpose(0, 1)
    skips_BX = torch.zeros(B, 2 * T + 1, dtype=torch.bool, device=targets_BT.device)
    skips_BX[:, 3::2] = targets_BT[:, 1:] != targets_BT[:, :-1]
    barred_BX = torch.zeros_like(skips_BX, dtype=words_BUT.dtype).masked_fill_(~skips_BX, NEVER)
    begun_X = torch.arange(2 * T + 1, device=targets_BT.device) < 2
    ways_BX = torch.where(begun_X, states_UBX[0], NEVER)
    for slot in range(1, U):
        one_BX = functional.pad(ways_BX[:, :-1], (1, 0), value=NEVER)
        two_BX = functional.pad(ways_BX[:, :-2], (2, 0), value=NEVER) + barred_BX
        came_BX = torch.logaddexp(torch.logaddexp(ways_BX, one_BX), two_BX).clamp(min=NEVER)
        ways_BX = torch.where((slot < slots_B)[:, None], came_BX + states_UBX[slot], ways_BX)
    last_B1 = 2 * lengths_B[:, None]
    ends_B2 = ways_BX.gather(1, torch.cat([last_B1, (last_B1 - 1).clamp(min=0)], 1))
    return torch.where(lengths_B > 0, ends_B2.logsumexp(1), ends_B2[:, 0])


def collapsed(filled_BU: Tensor, slots_B: Tensor, blank: int) -> list[list[int]]:
    """Rows of filled slots, so many each, with repeated words taken as one and without blanks."""
    rows = zip(filled_BU.tolist(), slots_B.tolist(), strict=True)
    return [[word for word, _ in groupby(row[:slots]) if word != blank] for row, slots in rows]
