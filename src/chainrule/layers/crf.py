"""A linear-chain conditional random field: tags that know which tag came before.

    p(y | x) = exp(s(x, y)) / Z(x),   s(x, y) = b_{y_1} + Σ_t u_t(y_t) + Σ_t A_{y_{t-1}, y_t} + e_{y_T}

Lafferty et al., "Conditional Random Fields", 2001; Lample et al., "Neural Architectures for Named Entity Recognition",
2016. log Z comes from the forward algorithm, the best tags from Viterbi's, both in O(T·L²).
Legend: B batch, T words, L tags; the words of a row come first, what pads it after them.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class ChainField(nn.Module):
    """What tags may follow one another, and begin and end a sentence."""

    def __init__(self, tags: int) -> None:
        super().__init__()
        self.moves_LL = nn.Parameter(torch.zeros(tags, tags))  # from, to
        self.begins_L, self.ends_L = (nn.Parameter(torch.zeros(tags)) for _ in range(2))

    def nats(self, scores_BTL: Tensor, tags_BT: Tensor, mask_BT: Tensor) -> Tensor:
        """-log p of the tags of each row, B."""
        return self.log_partition(scores_BTL, mask_BT) - self.score(scores_BTL, tags_BT, mask_BT)

    def score(self, scores_BTL: Tensor, tags_BT: Tensor, mask_BT: Tensor) -> Tensor:
        """s(x, y) of each row, B."""
        emitted_BT = scores_BTL.gather(2, tags_BT[:, :, None])[:, :, 0]
        moved_BT = self.moves_LL[tags_BT[:, :-1], tags_BT[:, 1:]] * mask_BT[:, 1:]
        last_B = tags_BT.gather(1, mask_BT.sum(1, keepdim=True) - 1)[:, 0]
        inside_B = (emitted_BT * mask_BT).sum(1) + moved_BT.sum(1)
        return self.begins_L[tags_BT[:, 0]] + inside_B + self.ends_L[last_B]

    def log_partition(self, scores_BTL: Tensor, mask_BT: Tensor) -> Tensor:
        """log Z of each row, B."""
        sums_BL = self.begins_L + scores_BTL[:, 0]
        for step in range(1, scores_BTL.shape[1]):
            longer_BL = (sums_BL[:, :, None] + self.moves_LL).logsumexp(1) + scores_BTL[:, step]
            sums_BL = torch.where(mask_BT[:, step, None], longer_BL, sums_BL)
        return (sums_BL + self.ends_L).logsumexp(1)

    @torch.no_grad()
    def best(self, scores_BTL: Tensor, mask_BT: Tensor) -> Tensor:
        """The most probable tags of each row, BT; those of padding mean nothing."""
        best_BL, steps = self.begins_L + scores_BTL[:, 0], []
        stay_L = torch.arange(len(self.begins_L), device=scores_BTL.device)
        for step in range(1, scores_BTL.shape[1]):
            longer_BL, from_BL = (best_BL[:, :, None] + self.moves_LL).max(1)
            inside_B1 = mask_BT[:, step, None]
            best_BL = torch.where(inside_B1, longer_BL + scores_BTL[:, step], best_BL)
            steps.append(torch.where(inside_B1, from_BL, stay_L))
        tag_B = (best_BL + self.ends_L).argmax(1)
        found = [tag_B]
        for from_BL in reversed(steps):
            tag_B = from_BL.gather(1, tag_B[:, None])[:, 0]
            found.append(tag_B)
        return torch.stack(found[::-1], 1)
