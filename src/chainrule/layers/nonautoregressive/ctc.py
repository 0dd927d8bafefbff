"""Connectionist temporal classification (CTC): predicting a target in parallel without predicting its length.

Graves et al., "Connectionist Temporal Classification", 2006; for translation Libovický and Helcl, "End-to-End
Non-Autoregressive Neural Machine Translation with Connectionist Temporal Classification", 2018. Every source word has a
fixed number of slots, and each slot holds a word or a blank:

    p(blank) = σ(b·n)        p(word) = (1 - p(blank)) · p_output(word | n)        n: the features of a slot

so that any output layer can be used. Merging equal words in adjacent slots and removing blanks gives the target; its
probability is the sum over all ways to fill the slots that collapse to it. Slots are the axis Q: each is a query of the
parallel branch.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby

import torch
from torch import Tensor, nn
from torch.nn import functional

from chainrule.layers.fused.linear import Linear
from chainrule.layers.outputs.base import OutputLayer

IMPOSSIBLE = -1e30
"""log p of an impossible event: finite, since the gradient of an infinity is undefined."""

BLANK = -1
"""A blank among the words of slots."""


BestWords = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Features MD -> the most probable word of each by the output layer, M, and its log p, M."""


class CtcHead(nn.Module):
    """The slots of a source: their inputs, the probability of a blank, the CTC loss and the best filling."""

    def __init__(self, encoded: int, width: int, count: int) -> None:
        """`count` is the number of slots per source word."""
        super().__init__()
        self.count = count
        self.project = Linear(encoded, width)
        self.which_KD = nn.Parameter(torch.empty(count, width).uniform_(-1, 1))
        self.blank = Linear(width, 1)

    def inputs(self, encoded_BSE: Tensor) -> Tensor:
        """The input of each slot: its source word plus a vector for its number within the word -> BQD."""
        inputs_BSKD: Tensor = self.project(encoded_BSE).unsqueeze(2) + self.which_KD
        return inputs_BSKD.flatten(1, 2)

    def loss(
        self, features_BQD: Tensor, slots_B: Tensor, output: OutputLayer, targets_BT: Tensor, lengths_B: Tensor
    ) -> Tensor:
        """-log p of targets of `lengths_B` tokens in `slots_B` slots, summed; a target that does not fit counts 0."""
        B, Q, _ = features_BQD.shape
        blank_BQ1 = self.blank(features_BQD)
        words_BQV = output.log_probs(features_BQD.flatten(0, 1)).view(B, Q, -1)
        words_BQT = words_BQV.gather(2, targets_BT.unsqueeze(1).expand(-1, Q, -1)) + functional.logsigmoid(-blank_BQ1)
        log_prob_B = ctc_log_prob(words_BQT, functional.logsigmoid(blank_BQ1), targets_BT, slots_B, lengths_B)
        return -torch.where(log_prob_B > IMPOSSIBLE / 2, log_prob_B, 0.0).sum()

    def best(self, features_BQD: Tensor, slots_B: Tensor, best_words: BestWords) -> list[list[int]]:
        """The most probable filling of the slots, collapsed: a list of tokens per row.

        `best_words` is asked about the slots whose log-odds b of a blank are at most 0 alone: a blank is more probable
        than a word where b > log p(word).
        """
        features_ND = features_BQD.flatten(0, 1)
        blank_N = self.blank(features_ND).squeeze(1)
        filled_N = torch.full_like(blank_N, BLANK, dtype=torch.int64)
        open_M = (blank_N <= 0).nonzero().squeeze(1)
        if len(open_M):
            word_M, log_prob_M = best_words(features_ND[open_M])
            filled_N[open_M] = word_M.masked_fill(blank_N[open_M] > log_prob_M, BLANK)
        return collapse(filled_N.view(features_BQD.shape[:2]), slots_B, BLANK)


def ctc_log_prob(
    words_BQT: Tensor, blank_BQ1: Tensor, targets_BT: Tensor, slots_B: Tensor, lengths_B: Tensor
) -> Tensor:
    """log p of each target, summed over all alignments -> B; below IMPOSSIBLE / 2 where there is no alignment.

    `words_BQT` is log p of each token of the target in each slot, `blank_BQ1` that of a blank. An alignment visits the
    states blank, first token, blank, second token, …, blank. From slot to slot it stays, advances by one state, or by
    two from a token to a different one: X = 2·T + 1 states.
    """
    B, Q, T = words_BQT.shape
    pairs_BQT2 = torch.stack([blank_BQ1.expand(-1, -1, T), words_BQT], 3)
    states_QBX = torch.cat([pairs_BQT2.flatten(2), blank_BQ1], 2).transpose(0, 1)
    may_skip_BX = torch.zeros(B, 2 * T + 1, dtype=torch.bool, device=targets_BT.device)
    may_skip_BX[:, 3::2] = targets_BT[:, 1:] != targets_BT[:, :-1]
    skip_BX = torch.zeros_like(may_skip_BX, dtype=words_BQT.dtype).masked_fill_(~may_skip_BX, IMPOSSIBLE)
    first_X = torch.arange(2 * T + 1, device=targets_BT.device) < 2
    forward_BX = torch.where(first_X, states_QBX[0], IMPOSSIBLE)
    for slot in range(1, Q):
        one_BX = functional.pad(forward_BX[:, :-1], (1, 0), value=IMPOSSIBLE)
        two_BX = functional.pad(forward_BX[:, :-2], (2, 0), value=IMPOSSIBLE) + skip_BX
        reached_BX = torch.logaddexp(torch.logaddexp(forward_BX, one_BX), two_BX).clamp(min=IMPOSSIBLE)
        forward_BX = torch.where((slot < slots_B)[:, None], reached_BX + states_QBX[slot], forward_BX)
    last_B1 = 2 * lengths_B[:, None]
    ends_B2 = forward_BX.gather(1, torch.cat([last_B1, (last_B1 - 1).clamp(min=0)], 1))
    return torch.where(lengths_B > 0, ends_B2.logsumexp(1), ends_B2[:, 0])


def collapse(filled_BQ: Tensor, slots_B: Tensor, blank: int) -> list[list[int]]:
    """Merge equal neighbours in the first `slots_B` slots of each row, then remove blanks."""
    rows = zip(filled_BQ.tolist(), slots_B.tolist(), strict=True)
    return [[word for word, _ in groupby(row[:slots]) if word != blank] for row, slots in rows]
