"""Several processes training one model under `torchrun`: each has a share of the batch, all take the same step."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
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

    def gather(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """The tensors of all processes, {"name": x} of process 1 as "1/name"; names and shapes are the same in each."""
        gathered: dict[str, Tensor] = {}
        for name, tensor in tensors.items():
            parts = [tensor]
            if self.world > 1:
                parts = [torch.empty_like(tensor) for _ in range(self.world)]
                dist.all_gather(parts, tensor.contiguous())
            gathered |= {f"{rank}/{name}": part for rank, part in enumerate(parts)}
        return gathered

    @contextlib.contextmanager
    def one_after_another(self) -> Iterator[None]:
        """The leading process does something first, then the others: they find what it has left in files."""
        if self.world > 1 and not self.leads:
            dist.barrier()
        yield
        if self.world > 1 and self.leads:
            dist.barrier()

    def same_start(self, tensors: Iterable[Tensor]) -> None:
        """Give every process the leading one's weights."""
        if self.world > 1:
            for tensor in tensors:
                dist.broadcast(tensor, 0)
