"""Several processes training one model under `torchrun`: each has a share of the batch, all take the same step."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn


@dataclass(frozen=True)
class Processes:
    """Which process this is, of how many. One process alone is the ordinary case and costs nothing."""

    rank: int = 0
    world: int = 1

    @classmethod
    def join(cls) -> Processes:
        """Join the group that torchrun announces in the environment, if there is one."""
        if int(os.environ.get("WORLD_SIZE", "1")) == 1:
            return cls()
        if not dist.is_initialized():
            dist.init_process_group("gloo")
        return cls(dist.get_rank(), dist.get_world_size())

    @property
    def leads(self) -> bool:
        """Whether this is the process that writes files and speaks."""
        return self.rank == 0

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Replace every gradient by its sum over the processes."""
        if self.world == 1:
            return
        gradients = [p.grad for p in parameters if p.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat)
        for gradient, piece in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(piece.view_as(gradient))

    def total(self, values: list[float]) -> list[float]:
        """The sum of each value over the processes."""
        if self.world == 1:
            return values
        sums = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(sums)
        return [float(value) for value in sums]

    def agree(self, values: list[float]) -> list[float]:
        """The values of the leading process, on all of them."""
        if self.world == 1:
            return values
        shared = torch.tensor(values, dtype=torch.float64)
        dist.broadcast(shared, 0)
        return [float(value) for value in shared]

    def same_start(self, tensors: Iterable[Tensor]) -> None:
        """Give every process the leading one's weights."""
        if self.world > 1:
            for tensor in tensors:
                dist.broadcast(tensor, 0)
