"""A linear-chain conditional random field (CRF): each tag depends on the previous one.

    p(y | x) = exp(s(x, y)) / Z(x),   s(x, y) = b_{y_1} + Σ_t u_t(y_t) + Σ_t A_{y_{t-1}, y_t} + e_{y_T}

Lafferty et al., "Conditional Random Fields", 2001; Lample et al., "Neural Architectures for Named Entity Recognition",
2016. The forward algorithm computes log Z, the Viterbi algorithm the best tags, both in O(T·C²). T is the number of
words; padding follows the words of a row.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class LinearChainCrf(nn.Module):
    """The scores of transitions between tags, and of tags that begin or end a sentence."""

    def __init__(self, tags: int) -> None:
        super().__init__()
        self.moves_LL = nn.Parameter(torch.zeros(tags, tags))  # (from, to)
        self.begins_L, self.ends_L = (nn.Parameter(torch.zeros(tags)) for _ in range(2))

    def negative_log_prob(self, scores_BTC: Tensor, tags_BT: Tensor, mask_BT: Tensor) -> Tensor:
        """-log p of the tags of each row, B."""
        return self.log_partition(scores_BTC, mask_BT) - self.score(scores_BTC, tags_BT, mask_BT)

    def score(self, scores_BTC: Tensor, tags_BT: Tensor, mask_BT: Tensor) -> Tensor:
        """s(x, y) of each row, B."""
        emission_BT = scores_BTC.gather(2, tags_BT[:, :, None])[:, :, 0]
        transition_BT = self.moves_LL[tags_BT[:, :-1], tags_BT[:, 1:]] * mask_BT[:, 1:]
        last_B = tags_BT.gather(1, mask_BT.sum(1, keepdim=True) - 1)[:, 0]
        inside_B = (emission_BT * mask_BT).sum(1) + transition_BT.sum(1)
        return self.begins_L[tags_BT[:, 0]] + inside_B + self.ends_L[last_B]

    def log_partition(self, scores_BTC: Tensor, mask_BT: Tensor) -> Tensor:
        """log Z of each row, B."""
        sums_BC = self.begins_L + scores_BTC[:, 0]
        for step in range(1, scores_BTC.shape[1]):
            longer_BC = (sums_BC[:, :, None] + self.moves_LL).logsumexp(1) + scores_BTC[:, step]
            sums_BC = torch.where(mask_BT[:, step, None], longer_BC, sums_BC)
        return (sums_BC + self.ends_L).logsumexp(1)

    def marginals(self, scores_BTC: Tensor, mask_BT: Tensor) -> Tensor:
        """p(y_t | x) of each tag by the forward-backward algorithm, BTC; undefined at padding."""
        T = scores_BTC.shape[1]
        before = [self.begins_L + scores_BTC[:, 0]]
        for step in range(1, T):
            before.append((before[-1][:, :, None] + self.moves_LL).logsumexp(1) + scores_BTC[:, step])
        after = [self.ends_L.expand_as(before[0])]
        for step in range(T - 1, 0, -1):
            longer_BC = (self.moves_LL + (scores_BTC[:, step] + after[-1])[:, None]).logsumexp(2)
            after.append(torch.where(mask_BT[:, step, None], longer_BC, self.ends_L))
        return (torch.stack(before, 1) + torch.stack(after[::-1], 1)).softmax(2)

    @torch.no_grad()
    def best(self, scores_BTC: Tensor, mask_BT: Tensor) -> Tensor:
        """The most probable tags of each row, BT; undefined at padding."""
        best_BC, steps = self.begins_L + scores_BTC[:, 0], []
        stay_C = torch.arange(len(self.begins_L), device=scores_BTC.device)
        for step in range(1, scores_BTC.shape[1]):
            longer_BC, from_BC = (best_BC[:, :, None] + self.moves_LL).max(1)
            inside_B1 = mask_BT[:, step, None]
            best_BC = torch.where(inside_B1, longer_BC + scores_BTC[:, step], best_BC)
            steps.append(torch.where(inside_B1, from_BC, stay_C))
        tag_B = (best_BC + self.ends_L).argmax(1)
        tags = [tag_B]
        for from_BC in reversed(steps):
            tag_B = from_BC.gather(1, tag_B[:, None])[:, 0]
            tags.append(tag_B)
        return torch.stack(tags[::-1], 1)
