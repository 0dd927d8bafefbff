"""The lines of a text as rows of tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from chainrule.base.lazy import torch
from chainrule.text.tokenizers.base import Ids

if TYPE_CHECKING:
    from torch import Tensor

Indices = NDArray[np.integer[Any]]
"""Positions of examples in a data set."""


class Rows:
    """The lines of a text given as tokens, each without its `eos`."""

    def __init__(self, tokens: Ids, eos: int) -> None:
        ends = np.flatnonzero(tokens == eos)
        if len(tokens) and (not len(ends) or ends[-1] != len(tokens) - 1):
            ends = np.append(ends, len(tokens))  # the last line lacks its newline
        self.tokens, self.eos = tokens, eos
        self.begins_P = np.concatenate([[0], ends[:-1] + 1]) if len(ends) else ends
        self.lengths_P = ends - self.begins_P

    def __len__(self) -> int:
        return len(self.begins_P)

    def row(self, index: int) -> Ids:
        """The tokens of one line."""
        begin = self.begins_P[index]
        row: Ids = self.tokens[begin : begin + self.lengths_P[index]]
        return row

    def tokens_of(self, indices_P: Indices) -> Ids:
        """The tokens of some lines one after another, without their `eos`."""
        lengths_P = self.lengths_P[indices_P]
        inside_N = np.arange(lengths_P.sum()) - np.repeat(np.cumsum(lengths_P) - lengths_P, lengths_P)
        tokens_N: Ids = self.tokens[np.repeat(self.begins_P[indices_P], lengths_P) + inside_N]
        return tokens_N

    def padded(self, indices_B: Indices, max_tokens: int | None = None) -> tuple[Tensor, Tensor]:
        """Rows with `eos` at the end, padded with `eos` -> (tokens, mask of those that are not padding), BT each.

        Rows are cut to `max_tokens`, their `eos` included.
        """
        lengths_B = np.minimum(self.lengths_P[indices_B] + 1, max_tokens or np.iinfo(np.int64).max)
        positions_T = np.arange(lengths_B.max())
        mask_BT = positions_T < lengths_B[:, None]
        inside_BT = positions_T < (lengths_B - 1)[:, None]
        indices_BT = np.where(inside_BT, self.begins_P[indices_B][:, None] + positions_T, 0)
        tokens_BT = np.where(inside_BT, self.tokens[indices_BT], self.eos).astype(np.int64)
        return torch.from_numpy(tokens_BT), torch.from_numpy(mask_BT)
