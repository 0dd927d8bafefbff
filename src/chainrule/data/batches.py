"""Batches of the tokens of a text. Batch i is a function of i, so that training resumes from a number."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from chainrule.base.lazy import torch
from chainrule.errors import DataError
from chainrule.types import Batch, map_state

Tokens = np.ndarray[Any, Any]


class Batches(Protocol):
    """A source of batches for the trainer."""

    per_epoch: int

    def batch(self, index: int) -> tuple[Batch, bool]:
        """Batch `index`, and whether the carried state is reset before it."""
        ...


def _batch(rows_BT: Tokens) -> Batch:
    """Rows of T + 1 tokens as a batch: the first T are read, the last T predicted."""
    tokens = torch.from_numpy(rows_BT.astype(np.int64))
    return Batch(tokens[:, :-1], tokens[:, 1:])


def _rows(available: int, world: int) -> int:
    """Rows of a batch over all processes: at most those available, and the same number for each process."""
    if world > 1 and available < world:
        raise DataError(
            f"the text is too short to give each of {world} processes a row of the batch; "
            "start fewer processes or train on more text."
        )
    return max(1, available - available % world)


class StreamBatches:
    """The text cut into B contiguous tracks, read T tokens at a time, for models that carry their state.

    From the second epoch on the text is read from a random starting point, so that it is cut differently each time.
    """

    def __init__(
        self, tokens: Tokens, batch_size: int, length: int, *, eos: int, seed: int, rank: int, world: int
    ) -> None:
        rows = _rows(min(batch_size * world, len(tokens) // 2), world)
        self.tokens, self.eos, self.seed, self.length = tokens, eos, seed, length
        self.track = len(tokens) // rows
        self.rows = np.arange(rows)[rank * rows // world : (rank + 1) * rows // world]
        self.per_epoch = -(-self.track // length)

    def batch(self, index: int) -> tuple[Batch, bool]:
        epoch, chunk = divmod(index, self.per_epoch)
        begin, end = chunk * self.length, min((chunk + 1) * self.length, self.track)
        positions = self._offset(epoch) + self.rows[:, None] * self.track + np.arange(begin - 1, end)
        rows_BT = np.asarray(self.tokens[positions % len(self.tokens)])
        if epoch == 0 and chunk == 0 and self.rows[0] == 0:
            rows_BT[0, 0] = self.eos  # the token before the first of the text
        return _batch(rows_BT), chunk == 0

    def _offset(self, epoch: int) -> int:
        return 0 if epoch == 0 else int(np.random.default_rng([self.seed, epoch]).integers(len(self.tokens)))


class BlockBatches:
    """Blocks of T tokens in random order, each once per epoch, for models that see a window."""

    def __init__(
        self, tokens: Tokens, batch_size: int, length: int, *, eos: int, seed: int, rank: int, world: int
    ) -> None:
        self.tokens, self.seed = tokens, seed
        self.length = max(1, min(length, len(tokens) - 1))
        self.blocks = max(1, (len(tokens) - 1) // self.length)
        self.rows = _rows(min(batch_size * world, self.blocks), world)
        self.mine = slice(rank * self.rows // world, (rank + 1) * self.rows // world)
        self.per_epoch = max(1, self.blocks // self.rows)
        self._order: tuple[int, Tokens] = (-1, np.empty(0))

    def batch(self, index: int) -> tuple[Batch, bool]:
        epoch, place = divmod(index, self.per_epoch)
        starts = self._starts(epoch)[place * self.rows : (place + 1) * self.rows][self.mine]
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
