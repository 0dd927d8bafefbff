"""Where the weights are during a training: whole in every process, or divided among them (`sharding.py`)."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from chainrule.base.processes import Processes
from chainrule.checkpoint.build import load_weights, weights_of
from chainrule.checkpoint.checkpoints import Checkpoint
from chainrule.checkpoint.folder import RunFolder
from chainrule.training.gradient_buckets import GradientBuckets


class Placement:
    """Every process holds the whole model."""

    keeps_whole = True  # whether the model can be used as it is when the training has ended

    def prepare(self, model: nn.Module, processes: Processes, device: torch.device) -> None:
        """Place the weights, before the optimisers are made."""

    def synchronise(self, model: nn.Module, processes: Processes) -> None:
        """Give all processes the weights of the main process."""
        processes.broadcast(model.state_dict().values())

    def buckets(self, parameters: list[nn.Parameter], processes: Processes) -> GradientBuckets | None:
        """What sums the gradients over the processes; None: the backward pass does, or there is one process."""
        return GradientBuckets(parameters) if processes.world > 1 else None

    def using(self, model: nn.Module) -> AbstractContextManager[nn.Module]:
        """The model as each process may use it by itself inside a block that all processes enter."""
        return nullcontext(model)

    def weights(self, model: nn.Module) -> dict[str, Tensor]:
        """The weights by name, as a run stores them. All processes take part."""
        return weights_of(model)

    def placed(self, model: nn.Module) -> dict[str, Tensor]:
        """The same weights as they lie in this process."""
        return weights_of(model)

    def save(self, folder: RunFolder, checkpoint: Checkpoint, processes: Processes) -> None:
        """Write a checkpoint of tensors as they lie in this process. All processes take part."""
        if processes.is_main:
            folder.write_checkpoint(checkpoint)

    def load(self, model: nn.Module, weights: dict[str, Tensor]) -> None:
        """Set the weights to what `weights` returned."""
        load_weights(model, weights)

    def whole(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Tensors of the shapes of the whole model. All processes take part."""
        return tensors

    def like(self, tensor: Tensor, own: Tensor) -> Tensor:
        """The part of a whole tensor that belongs to a parameter of this process."""
        return tensor

    def clip(self, parameters: list[nn.Parameter], limit: float, norm: Tensor) -> None:
        """Scale gradients of this norm to the limit, if they exceed it."""
        nn.utils.clip_grads_with_norm_(parameters, limit, norm, foreach=True)
