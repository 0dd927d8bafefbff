"""A baseline for masked language models: a language model that sees two tokens back guesses the masked words."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chainrule.data.batches import Tokens
from chainrule.data.masks import Masking

CHUNK = 512
"""Positions whose whole distributions are held at once."""


class Guesses(NamedTuple):
    """The tokens guessed for some positions, M each: from the two before them, and from two on either side."""

    after_M: Tensor
    between_M: Tensor


def guess(model: Any, tokens: Tokens, positions_M: NDArray[np.int64], masking: Masking, *, candidates: int) -> Guesses:
    """Guess the tokens at some positions of a text with a model that sees two tokens back, for example a trigram.

    `after` is the most probable token w after a b. `between` is the one of the `candidates` most probable w for which
    p(w | a b) p(c | b w) p(d | w c) is largest. The neighbours a b and c d are the true ones, whether masked or not.
    """
    edge = np.full(2, model.eos)
    padded = np.concatenate([edge, tokens, edge])
    parts = []
    for part_M in np.split(positions_M, range(CHUNK, len(positions_M), CHUNK)):
        around_M5 = torch.from_numpy(padded[part_M[:, None] + np.arange(5)].astype(np.int64))
        parts.append(_guess(model, around_M5, masking, min(candidates, model.vocab_size - len(masking.special))))
    after, between = zip(*parts, strict=True)
    return Guesses(torch.cat(after), torch.cat(between))


def _guess(model: Any, around_M5: Tensor, masking: Masking, candidates: int) -> tuple[Tensor, Tensor]:
    """The guesses for the middle one of five tokens, M each."""
    log_probs_MV, state = model.prefill(model.start(len(around_M5)), around_M5[:, :2])
    log_probs_MV[:, list(masking.special)] = -torch.inf  # they are never masked
    best_MK = log_probs_MV.topk(candidates, 1).indices
    rows_N = torch.arange(len(around_M5)).repeat_interleave(candidates)
    tried_N3 = torch.cat([best_MK.view(-1, 1), around_M5[rows_N, 3:]], 1)
    scores_MK = model.score(tried_N3, model.select(state, rows_N))[0].sum(1).view(best_MK.shape)
    return best_MK[:, 0], best_MK.gather(1, scores_MK.argmax(1, keepdim=True))[:, 0]
