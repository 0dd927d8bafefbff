"""Batches of the tokens of a text. Batch i is a function of i, so that training resumes from a number."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from chainrule.base.lazy import torch
from chainrule.types import Batch, map_state

Tokens = np.ndarray[Any, Any]


class Batches(Protocol):
    """A source of batches for the trainer. Several processes read the same batch and share its rows."""

    per_epoch: int

    def batch(self, index: int) -> tuple[Batch, bool]:
        """Batch `index`, and whether the carried state is reset before it."""
        ...


def _batch(rows_BT: Tokens) -> Batch:
    """Rows of T + 1 tokens as a batch: the first T are read, the last T predicted."""
    tokens = torch.from_numpy(rows_BT.astype(np.int64))
    return Batch(tokens[:, :-1], tokens[:, 1:])


class StreamBatches:
    """The text cut into B contiguous tracks, read T tokens at a time, for models that carry their state.

    From the second epoch on the text is read from a random starting point, so that it is cut differently each time.
    """

    def __init__(self, tokens: Tokens, batch_size: int, length: int, *, eos: int, seed: int) -> None:
        rows = max(1, min(batch_size, len(tokens) // 2))
        self.tokens, self.eos, self.seed, self.length = tokens, eos, seed, length
        self.track = len(tokens) // rows
        self.rows = np.arange(rows)
        self.per_epoch = -(-self.track // length)

    def batch(self, index: int) -> tuple[Batch, bool]:
        epoch, chunk = divmod(index, self.per_epoch)
        begin, end = chunk * self.length, min((chunk + 1) * self.length, self.track)
        positions = self._offset(epoch) + self.rows[:, None] * self.track + np.arange(begin - 1, end)
        rows_BT = np.asarray(self.tokens[positions % len(self.tokens)])
        if epoch == 0 and chunk == 0:
            rows_BT[0, 0] = self.eos  # the token before the first of the text
        return _batch(rows_BT), chunk == 0

    def _offset(self, epoch: int) -> int:
        return 0 if epoch == 0 else int(np.random.default_rng([self.seed, epoch]).integers(len(self.tokens)))


class BlockBatches:
    """Blocks of T tokens in random order, each once per epoch, for models that see a window."""

    def __init__(self, tokens: Tokens, batch_size: int, length: int, *, eos: int, seed: int) -> None:
        self.tokens, self.seed = tokens, seed
        self.length = max(1, min(length, len(tokens) - 1))
        self.blocks = max(1, (len(tokens) - 1) // self.length)
        self.rows = min(batch_size, self.blocks)
        self.per_epoch = max(1, self.blocks // self.rows)
        self._order: tuple[int, Tokens] = (-1, np.empty(0))

    def batch(self, index: int) -> tuple[Batch, bool]:
        epoch, place = divmod(index, self.per_epoch)
        starts = self._starts(epoch)[place * self.rows : (place + 1) * self.rows]
        return _batch(np.asarray(self.tokens[starts[:, None] + np.arange(self.length + 1)])), True

    def _starts(self, epoch: int) -> Tokens:
        """Where the blocks of an epoch begin: a grid with a random offset, in random order."""
        if self._order[0] != epoch:
            rng = np.random.default_rng([self.seed, epoch])
            slack = len(self.tokens) - 1 - self.blocks * self.length
            offset = int(rng.integers(slack + 1)) if slack > 0 else 0
            self._order = (epoch, rng.permutation(self.blocks) * self.length + offset)
        return self._order[1]


def to_device(batch: Batch, device: torch.device) -> Batch:
    """The batch's tensors on `device`."""
    moved: Batch = map_state(lambda tensor: tensor.to(device), batch)
    return moved
