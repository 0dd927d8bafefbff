"""Data-parallel training under `torchrun`: each process has a share of the batch, all take the same step."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from chainrule.base.arrays import Array
from chainrule.base.lazy import torch
from chainrule.base.shares import Share
from chainrule.errors import RunError

if TYPE_CHECKING:
    from torch import Tensor

JOINING, COMPUTING = timedelta(minutes=2), timedelta(minutes=30)
"""How long a process waits for the others: to connect, and in every sum afterwards, in which others may be validating.

A process that is killed while it connects leaves an address at which nobody answers. The others then end, and torchrun
starts all of them again.
"""

T = TypeVar("T")

BROKEN = ("Connection closed", "Connection reset", "Broken pipe", "Connection refused", "Socket closed")
"""Parts of the messages with which gloo reports that it has lost another process; torch's own errors have a class."""


@contextlib.contextmanager
def lost_processes() -> Iterator[None]:
    """Turn the loss of another process of the group into a message; torchrun ends all once one has ended."""
    try:
        yield
    except RuntimeError as error:
        lost = isinstance(error, torch.distributed.DistError) or any(part in str(error) for part in BROKEN)
        if int(os.environ.get("WORLD_SIZE", "1")) == 1 or not lost:
            raise
        raise RunError(
            "another process of the training ended or cannot be reached; rerun the same command to resume from the "
            "last checkpoint"
        ) from None


@dataclass(frozen=True)
class Processes:
    """Rank of this process and number of processes. A single process needs no communication."""

    rank: int = 0
    world: int = 1

    @classmethod
    def join(cls) -> Processes:
        """Join the process group that torchrun announces in the environment, if any."""
        if int(os.environ.get("WORLD_SIZE", "1")) == 1:
            return cls()
        if not torch.distributed.is_initialized():
            torch.distributed.init_process_group(
                "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo",  # numbers are always summed on the CPU
                timeout=JOINING,
            )
            torch.distributed.distributed_c10d._set_pg_timeout(COMPUTING)
        return cls(torch.distributed.get_rank(), torch.distributed.get_world_size())

    @property
    def is_main(self) -> bool:
        """Whether this process writes the files and reports progress."""
        return self.rank == 0

    def share(self, rows: int) -> Share:
        """The rows of a batch that this process computes."""
        return Share.of(self.rank, self.world, rows)

    def sum(self, values: list[float]) -> list[float]:
        """Return the sum of each value over the processes."""
        if self.world == 1:
            return values
        sums = torch.tensor(values, dtype=torch.float64)
        torch.distributed.all_reduce(sums)
        return sums.tolist()

    def own(self, items: Sequence[T]) -> Sequence[T]:
        """The items that this process works on: every item belongs to one process."""
        return items[self.rank :: self.world]

    def maximum(self, values: Array) -> Array:
        """The largest value over the processes at each place of an integer array."""
        if self.world == 1:
            return values
        found = torch.from_numpy(np.array(values, np.int64))
        torch.distributed.all_reduce(found, torch.distributed.ReduceOp.MAX)
        return found.numpy().astype(values.dtype)

    def join_own(self, rows: Sequence[Sequence[int]], total: int) -> list[list[int]]:
        """The rows of numbers ≥ 0 that all processes computed, one for each of `total` items that they share."""
        if self.world == 1:
            return [list(row) for row in rows]
        lengths = np.zeros(total, np.int64)
        lengths[self.rank :: self.world] = [len(row) for row in rows]
        lengths = self.maximum(lengths)
        joined = np.zeros((total, int(lengths.max(initial=0))), np.int64)
        for number, row in zip(range(self.rank, total, self.world), rows, strict=True):
            joined[number, : len(row)] = row
        joined = self.maximum(joined)
        return [row[:length].tolist() for row, length in zip(joined, lengths.tolist(), strict=True)]

    def from_main(self, values: list[float]) -> list[float]:
        """Return the values of the main process, in every process."""
        if self.world == 1:
            return values
        shared = torch.tensor(values, dtype=torch.float64)
        torch.distributed.broadcast(shared, 0)
        return shared.tolist()

    def gather_rows(self, tensor: Tensor) -> Tensor:
        """The rows of all processes, one after another; their numbers may differ by one."""
        if self.world == 1:
            return tensor
        total = int(self.sum([float(len(tensor))])[0])
        shares = [Share.of(rank, self.world, total) for rank in range(self.world)]
        padded = tensor.new_zeros(max(share.size for share in shares), *tensor.shape[1:])
        padded[: len(tensor)] = tensor
        parts = [torch.empty_like(padded) for _ in shares]
        torch.distributed.all_gather(parts, padded)
        return torch.cat([part[: share.size] for part, share in zip(parts, shares, strict=True)])

    @contextlib.contextmanager
    def main_first(self) -> Iterator[None]:
        """Run the block in the main process first, then in the others, which find the files that it wrote."""
        if self.world > 1 and not self.is_main:
            torch.distributed.barrier()
        yield
        if self.world > 1 and self.is_main:
            torch.distributed.barrier()

    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        """Copy the tensors of the main process to all others, in place."""
        if self.world > 1:
            for tensor in tensors:
                torch.distributed.broadcast(tensor, 0)


ALONE = Processes()
"""A single process."""
