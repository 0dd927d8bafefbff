"""The smallest models that implement the whole contract, for tests that need nothing more."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from chainrule.types import SteppingModel, select_rows


class TablePrefix(NamedTuple):
    """A hash of all tokens read, and a token that was scored but not yet read."""

    hash_B: Tensor
    pending_B: Tensor | None


class TableModel(SteppingModel):
    """A language model whose distribution is a pseudo-random function of the whole prefix.

    It computes with integers, so neither the batch size nor the order of sums can change the row of a prefix.
    """

    def __init__(self, vocab_size: int, seed: int = 0, eos: int = 0, sharpness: float = 4.0) -> None:
        self.vocab_size, self.seed, self.eos, self.sharpness = vocab_size, seed, eos, sharpness
        self.steps = 0
        self.rows = 0

    def start(self, batch: int) -> TablePrefix:
        return TablePrefix(torch.full((batch,), self.seed * 7919 + 1), None)

    def step(self, state: TablePrefix, token_B: Tensor) -> tuple[Tensor, TablePrefix]:
        self.steps += 1
        self.rows += len(token_B)
        if state.pending_B is not None:
            state = TablePrefix(_mix(state.hash_B, state.pending_B), None)
        hash_B = _mix(state.hash_B, token_B)
        return self._row(hash_B), TablePrefix(hash_B, None)

    def select(self, state: TablePrefix, rows_K: Tensor) -> TablePrefix:
        chosen: TablePrefix = select_rows(state, rows_K)
        return chosen

    def log_probs(self, tokens_BT: Tensor) -> Tensor:
        return self.score(tokens_BT, self.start(len(tokens_BT)))[0]

    def score(self, tokens_BT: Tensor, state: TablePrefix) -> tuple[Tensor, TablePrefix]:
        before_B = torch.full_like(tokens_BT[:, 0], self.eos) if state.pending_B is None else state.pending_B
        hash_B, scores = state.hash_B, []
        for token_B in tokens_BT.unbind(1):
            hash_B = _mix(hash_B, before_B)
            scores.append(self._row(hash_B).gather(1, token_B[:, None]).squeeze(1))
            before_B = token_B
        return torch.stack(scores, 1), TablePrefix(hash_B, before_B)

    def _row(self, hash_B: Tensor) -> Tensor:
        """log p(. | prefix) from a hash of the prefix, BV."""
        words_V = torch.arange(1, self.vocab_size + 1)
        logits_BV = (_mix(hash_B[:, None], words_V) & 0xFFFF).float() / 0xFFFF * self.sharpness
        return logits_BV.log_softmax(1)


class PrefillingTable(TableModel):
    """A `TableModel` that reads a prompt in one call."""

    def prefill(self, state: TablePrefix, tokens_BT: Tensor) -> tuple[Tensor, TablePrefix]:
        self.steps += 1
        hash_B = state.hash_B if state.pending_B is None else _mix(state.hash_B, state.pending_B)
        for token_B in tokens_BT.unbind(1):
            hash_B = _mix(hash_B, token_B)
        return self._row(hash_B), TablePrefix(hash_B, None)


def _mix(hash_B: Tensor, token_B: Tensor) -> Tensor:
    """Fold a number into a hash; 64-bit products overflow."""
    mixed_B = (hash_B ^ (token_B * 0x27D4EB2F165667C5)) * 0x1B03738712FAD5C9 + 0x165667B19E3779F9
    return mixed_B ^ ((mixed_B >> 29) & 0x7FFFFFFFF)
