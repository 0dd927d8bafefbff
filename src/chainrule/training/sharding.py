"""Weights, gradients and optimiser states divided among the processes, for models that one device cannot train.

FSDP2 (`fully_shard`; Zhao et al., "PyTorch FSDP", 2023): every process holds a part of each parameter and of what
belongs to it. The forward and the backward pass gather the parameters of a part of the model when it computes, and the
gradients are summed into the parts. Names and shapes are those of the whole model, so a run is the same as without
sharding. In a checkpoint every process writes its own rows of each tensor; any number of processes reads them.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from chainrule.base.parameters import ShardUnit
from chainrule.base.processes import Processes
from chainrule.checkpoint.build import WeightsError, load_weights, weights_of
from chainrule.checkpoint.checkpoints import Checkpoint
from chainrule.checkpoint.folder import RunFolder
from chainrule.training.gradient_buckets import GradientBuckets
from chainrule.training.placement import Placement


class ShardedPlacement(Placement):
    """Every process holds a part of each weight."""

    keeps_whole = False

    def prepare(self, model: nn.Module, processes: Processes, device: torch.device) -> None:
        processes.broadcast(model.state_dict().values())
        self._names = list(weights_of(model))  # while tied weights are still recognised
        self._device = device
        # A call of a divided model waits for the other processes, so each validates its share with a whole copy.
        self._copy = copy.deepcopy(model).cpu()
        # In-place changes of an output that is a view would lose gradients; there are none.
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
        mesh = init_device_mesh(device.type, (processes.world,))
        for unit in [unit for unit in model.modules() if isinstance(unit, ShardUnit)]:
            fully_shard(unit, mesh=mesh)
            unit.divided = True
            unit.register_forward_pre_hook(lambda unit, inputs: unit.bind())  # after the hook that gathers
        fully_shard(model, mesh=mesh, reshard_after_forward=False)  # the output layer computes after the forward pass
        for part in _parts(model):
            part.set_gradient_divide_factor(1.0)  # gradients are sums, and are divided by the number of targets later
            part.set_force_sum_reduction_for_comms(True)  # gloo has no other

    def synchronise(self, model: nn.Module, processes: Processes) -> None:
        """Nothing to do: a resumed training read the same file in all processes."""

    def buckets(self, parameters: list[nn.Parameter], processes: Processes) -> GradientBuckets | None:
        return None

    @contextmanager
    def using(self, model: nn.Module) -> Iterator[nn.Module]:
        load_weights(self._copy, self.weights(model))
        yield self._copy.to(self._device).eval()
        self._copy.cpu()

    def weights(self, model: nn.Module) -> dict[str, Tensor]:
        return self.whole(self.placed(model))

    def placed(self, model: nn.Module) -> dict[str, Tensor]:
        own = model.state_dict()
        return {name: own[name] for name in self._names}

    def save(self, folder: RunFolder, checkpoint: Checkpoint, processes: Processes) -> None:
        rows = {name: t.to_local() for name, t in checkpoint.tensors.items() if isinstance(t, DTensor)}
        rest = {name: t for name, t in checkpoint.tensors.items() if name not in rows}
        folder.write_divided(Checkpoint(rest, checkpoint.values), rows, processes)

    @torch.no_grad()
    def load(self, model: nn.Module, weights: dict[str, Tensor]) -> None:
        own = model.state_dict()
        if set(weights) != set(self._names) or any(weights[name].shape != own[name].shape for name in weights):
            raise WeightsError("the weights do not fit the model of config.toml; its files come from different runs")
        for name, tensor in weights.items():
            own[name].copy_(self.like(tensor, own[name]))

    def whole(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: _gathered(tensor) for name, tensor in tensors.items()}

    def like(self, tensor: Tensor, own: Tensor) -> Tensor:
        if not isinstance(own, DTensor) or tensor.shape != own.shape:
            return tensor
        return distribute_tensor(tensor.to(own.device), own.device_mesh, own.placements, src_data_rank=None)

    def clip(self, parameters: list[nn.Parameter], limit: float, norm: Tensor) -> None:
        if (factor := limit / (float(norm) + 1e-6)) < 1.0:
            torch._foreach_mul_([one.grad for one in parameters if one.grad is not None], factor)


def _parts(model: nn.Module) -> list[Any]:
    return [part for part in model.modules() if isinstance(part, FSDPModule)]


def _gathered(tensor: Tensor) -> Tensor:
    return tensor.full_tensor().detach().contiguous().cpu() if isinstance(tensor, DTensor) else tensor
