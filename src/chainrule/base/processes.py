"""Data-parallel training under `torchrun`: each process has a share of the batch, all take the same step."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from chainrule.base.lazy import torch
from chainrule.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor, nn


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
            torch.distributed.init_process_group("gloo")
        return cls(torch.distributed.get_rank(), torch.distributed.get_world_size())

    @property
    def is_main(self) -> bool:
        """Whether this process writes the files and reports progress."""
        return self.rank == 0

    def check_count(self, before: int, run: Path) -> None:
        """Refuse another number of processes than before: each has its rows of the batch, so the batch would change."""
        if before != self.world:
            raise ConfigError(
                f"{run} was trained by {before} process(es), but this command has {self.world}, which would change the "
                f"batch; use torchrun --nproc-per-node {before}, or choose another --out"
            )

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Replace every gradient by its sum over the processes."""
        if self.world == 1:
            return
        gradients = [p.grad for p in parameters if p.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        torch.distributed.all_reduce(flat)
        for gradient, piece in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(piece.view_as(gradient))

    def sum(self, values: list[float]) -> list[float]:
        """Return the sum of each value over the processes."""
        if self.world == 1:
            return values
        sums = torch.tensor(values, dtype=torch.float64)
        torch.distributed.all_reduce(sums)
        return [float(value) for value in sums]

    def from_main(self, values: list[float]) -> list[float]:
        """Return the values of the main process, in every process."""
        if self.world == 1:
            return values
        shared = torch.tensor(values, dtype=torch.float64)
        torch.distributed.broadcast(shared, 0)
        return [float(value) for value in shared]

    def gather(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the tensors of all processes, `name` of rank 1 as "1/name". Names and shapes are equal in all."""
        gathered: dict[str, Tensor] = {}
        for name, tensor in tensors.items():
            parts = [tensor]
            if self.world > 1:
                parts = [torch.empty_like(tensor) for _ in range(self.world)]
                torch.distributed.all_gather(parts, tensor.contiguous())
            gathered |= {f"{rank}/{name}": part for rank, part in enumerate(parts)}
        return gathered

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
