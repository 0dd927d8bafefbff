"""One step of a training: the gradients of a batch, or of the rows of it that this process has, and the update.

Batch i and the random state are functions of what a checkpoint holds, and the rows of a batch can be shared by any
number of processes (`base/shares.py`), so a step gives the same weights, except for the order of sums, in all of them.
"""

from __future__ import annotations

import contextlib
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from chainrule.base.compiling import compile_model
from chainrule.base.processes import Processes
from chainrule.base.shares import Share, computing
from chainrule.config import TrainingConfig
from chainrule.data.batches import Batches, to_device
from chainrule.training.checkpoint_state import restore_state, state_tensors
from chainrule.training.choose_placement import placement_of
from chainrule.training.gradient_norms import GradientNorms, gradient_norms
from chainrule.training.optimizers import make_optimizers
from chainrule.types import Batch, Objective, State, detach_state, map_state


class StepResult(NamedTuple):
    """What a step computed over all processes."""

    loss: float  # summed over the targets
    targets: int
    norms: GradientNorms | None  # before clipping; None: the loss is not finite, and nothing was updated


class Stepper:
    """A model, its batches, its objective and its optimisers."""

    def __init__(
        self,
        model: Any,
        objective: Objective,
        batches: Batches,
        config: TrainingConfig,
        *,
        carries: bool,
        device: torch.device,
        processes: Processes,
    ) -> None:
        assert config.lr is not None, "presets choose the learning rate"
        self.model, self.objective, self.batches, self.config = model, objective, batches, config
        self.carries, self.device, self.processes = carries, device, processes
        self.placement = placement_of(config, processes, shardable=model.shardable, samples=objective.samples)
        self.placement.prepare(model, processes, device)
        self.optimizers = make_optimizers(model, config, config.lr)
        self.parameters: list[nn.Parameter] = [p for p in model.parameters() if p.requires_grad]
        self.carried_state: State = None
        self.forward = compile_model(model) if config.compile else model
        self.buckets = self.placement.buckets(self.parameters, processes)

    def step(self, number: int) -> StepResult:
        """Take step `number` with the learning rates that are set."""
        loss, count = self.gradients(number, self.processes)
        if self.processes.world > 1:
            present = [float(parameter.grad is not None) for parameter in self.parameters]
            loss, total, *present = self.processes.sum([loss, float(count), *present])
            if self.buckets is not None:
                self.buckets.finish([one > 0 for one in present])
            count = int(total)
        return StepResult(loss, count, self._update(count) if _is_finite(loss) else None)

    def gradients(self, number: int, processes: Processes) -> tuple[float, int]:
        """Sum the gradients of the accumulated batches -> the summed loss and the number of targets.

        With several processes, those of the rows that one of them has.
        """
        loss, count = 0.0, 0
        for part in range(self.config.accumulate):
            batch, fresh = self.batches.batch(number * self.config.accumulate + part)
            share = processes.share(len(batch.inputs_BT))
            if self.buckets is not None:
                self.buckets.active = part == self.config.accumulate - 1
            one_loss, one_count = self._add_gradients(batch, fresh, share, number)
            loss, count = loss + one_loss, count + one_count
        return loss, count

    def _add_gradients(self, batch: Batch, fresh: bool, share: Share, number: int) -> tuple[float, int]:
        computed = share.computed
        if computed.size < computed.total:
            batch = map_state(lambda tensor: tensor[computed.begin : computed.end], batch)
        batch = to_device(batch, self.device)
        state = self._state_before(fresh, computed.size)
        with self._autocast(), computing(computed):
            result = self.objective.loss(self.forward, batch, state, number)
        total = result.total if share.size else result.total * 0.0
        total.backward()
        self.carried_state = detach_state(result.state) if self.carries else None
        return float(total.detach()), result.count if share.size else 0

    def _state_before(self, fresh: bool, rows: int) -> State:
        if not self.carries:
            return None
        return self.model.start(rows) if fresh or self.carried_state is None else self.carried_state

    def _update(self, count: float) -> GradientNorms:
        """Clip the mean gradients and let the optimisers step -> the norms before clipping; `count`: of targets."""
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        torch._foreach_div_(gradients, count)
        norms = gradient_norms(self.model, self.placement)
        if self.config.clip:
            self.placement.clip(self.parameters, self.config.clip, norms.total)
        self.apply()
        return norms

    def apply(self) -> None:
        """Update the parameters that have a gradient, and remove the gradients."""
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        """The precision of the forward pass."""
        precision = self.config.precision
        supported = self.device.type == "cuda" and torch.cuda.is_bf16_supported()
        if precision == "bfloat16" or (precision == "auto" and supported):
            return torch.autocast(self.device.type, torch.bfloat16)
        return contextlib.nullcontext()

    def warm_up(self, number: int) -> None:
        """Compute one batch and discard the result."""
        devices = [self.device] if self.device.type == "cuda" else []
        carried, buckets, self.buckets = self.carried_state, self.buckets, None
        with torch.random.fork_rng(devices):
            self.model.train()
            self.gradients(number, self.processes)
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
        self.carried_state, self.buckets = carried, buckets
        self.objective.figures = {}

    # What a checkpoint keeps beside the weights and the optimisers

    def tensors(self) -> dict[str, Tensor]:
        """The random state, and the carried state of all rows. All processes take part."""
        state = {name: self.processes.gather_rows(tensor) for name, tensor in state_tensors(self.carried_state).items()}
        tensors = {"random/cpu": torch.get_rng_state(), **state}
        if self.device.type == "cuda":
            tensors["random/cuda"] = torch.cuda.get_rng_state(self.device)
        return tensors

    def restore(self, tensors: dict[str, Tensor], processes: Processes) -> None:
        """Set the state to what `tensors` returned; of the carried state, the rows of one of the processes."""
        self.carried_state = None
        if saved := {name: tensor for name, tensor in tensors.items() if name.startswith("state/")}:
            share = processes.share(len(next(iter(saved.values())))).computed
            rows = {name: tensor[share.begin : share.end] for name, tensor in saved.items()}
            self.carried_state = restore_state(self.model.start(share.size), rows)
        torch.set_rng_state(tensors["random/cpu"])
        if "random/cuda" in tensors and self.device.type == "cuda":
            torch.cuda.set_rng_state(tensors["random/cuda"], self.device)


def _is_finite(loss: float) -> bool:
    return loss - loss == 0.0
