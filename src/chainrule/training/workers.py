"""Worker processes of one thread each that share the rows of every batch, on the cores of one machine.

Two threads that meet after every operation compute a small Transformer 1.5 times as fast as one. Two processes meet
four times per step. They are forked, so they have the model, the batches and the objective; weights, states of the
optimisers and gradients lie in shared memory. In a step each process

1. computes the gradients of its rows and writes them to its buffer,
2. sums, for the parameters that it owns, the buffers of all, and computes the norms of the sums,
3. clips by the norm of all and updates the parameters that it owns.

All have the same random state (`base/shares.py`), so a training may change between workers and threads at any step.
"""

from __future__ import annotations

import math
import os
import platform
from functools import partial

import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from chainrule.base.forking import can_fork, end_children, ending, fork
from chainrule.base.processes import Processes
from chainrule.base.shared_memory import Barrier, SharedBytes, shared_copy, shared_zeros
from chainrule.errors import RunError
from chainrule.training.checkpoint_state import state_tensors
from chainrule.training.gradient_norms import GradientNorms
from chainrule.training.optimizers import complete_states, set_rate
from chainrule.training.stepper import Stepper, StepResult

STEP, LOAD, GIVE = 1, 2, 3
"""Orders to the workers: take a step; load random and carried state; write the carried state."""

MESSAGE_BYTES = 2000


def can_share(stepper: Stepper) -> bool:
    """Whether workers can share the batches of a training: float32 on Linux on x86-64, no sampling objective."""
    return (
        can_fork()
        and platform.machine() == "x86_64"
        and stepper.device.type == "cpu"
        and stepper.processes.world == 1
        and not stepper.config.compile
        and not stepper.objective.samples
        and all(parameter.dtype == torch.float32 for parameter in stepper.parameters)
    )


class Workers:
    """This process, which has rank 0, and count - 1 forked ones. `close` ends them."""

    def __init__(self, stepper: Stepper, count: int) -> None:
        self.stepper, self.count, self.loaded = stepper, count, False
        names = {id(parameter): name for name, parameter in stepper.model.named_parameters()}
        self.names = [names[id(parameter)] for parameter in stepper.parameters]
        self.owned = owners(stepper, count)
        _share_weights(stepper)
        shapes = [parameter.shape for parameter in stepper.parameters]
        self.buffers = [[shared_zeros(tuple(shape), torch.float32) for shape in shapes] for _ in range(count)]
        self.present = shared_zeros((count, len(shapes)), torch.bool)
        self.norms = shared_zeros((len(shapes),), torch.float32)
        self.order = shared_zeros((3,), torch.float64)
        self.reports = shared_zeros((count, 2), torch.float64)
        self.message = shared_zeros((MESSAGE_BYTES,), torch.uint8)
        self.rows = len(stepper.batches.batch(0)[0].inputs_BT) if stepper.carries else 0
        self.states = [SharedBytes() for _ in range(count)]
        self.barrier = Barrier(count)
        files = [one.number for one in self.states]
        self.children = [fork(partial(self._serve, rank, os.getpid()), files) for rank in range(1, count)]

    # This process

    def step(self, number: int, multiplier: float) -> StepResult:
        """Take step `number` together, with the learning rates multiplied by `multiplier`."""
        if not self.loaded:
            self._load()
        self._give_order(STEP, number, multiplier)
        return self._take_step(0, number, multiplier)

    def pause(self) -> None:
        """Collect what this process needs to step alone or to save: the carried state of all rows."""
        if self.loaded and self.stepper.carries:
            self._give_order(GIVE)
            self._write_state(0)
            self._meet(0)
            parts = [part for part in map(_read, self.states) if part]
            carried = {name: torch.cat([part[name] for part in parts]) for name in parts[0]} if parts else {}
            self.stepper.restore({"random/cpu": torch.get_rng_state(), **carried}, Processes())
        self.loaded = False

    def _load(self) -> None:
        """Give every worker the random state and its rows of the carried state."""
        carried = state_tensors(self.stepper.carried_state)
        self.states[0].write(save({"random/cpu": torch.get_rng_state(), **carried}))
        self._give_order(LOAD)
        self._read_state(0)
        self._meet(0)
        self.loaded = True

    def _give_order(self, *order: float) -> None:
        self.order[: len(order)] = torch.tensor(order, dtype=torch.float64)
        self._meet(0)

    def close(self) -> None:
        """End the workers. Weights and states stay in shared memory, which this process keeps."""
        end_children(self.children)
        for one in self.states:
            one.close()
        self.children, self.states = [], []

    def _check_children(self) -> None:
        for child in self.children:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                self.children.remove(child)
                reason = bytes(self.message[: int((self.message != 0).sum())].tolist()).decode(errors="replace")
                raise RunError(
                    f"a worker process of the training ended ({reason or ending(status)}); rerun the same command to "
                    "resume, with --set training.workers=1 for none"
                )

    # The workers

    def _serve(self, rank: int, parent: int) -> None:
        """Follow orders until this process is killed, by `close` or by the end of the main process."""
        try:
            self.children, self.parent = [], parent
            self.stepper.model.train()
            while True:
                self._meet(rank)
                self._follow(rank, *self.order.tolist())
        except BaseException as error:
            text = f"{type(error).__name__}: {error}".encode()[: MESSAGE_BYTES - 1]
            self.message[: len(text)] = torch.tensor(list(text), dtype=torch.uint8)

    def _follow(self, rank: int, kind: float, first: float, second: float) -> None:
        if kind == STEP:
            self._take_step(rank, int(first), second)
            return
        if kind == LOAD:
            self._read_state(rank)
        else:
            self._write_state(rank)
        self._meet(rank)

    # All

    def _meet(self, rank: int) -> None:
        self.barrier.wait(rank, self._check_children if rank == 0 else self._check_parent)

    def _check_parent(self) -> None:
        if os.getppid() != self.parent:
            os._exit(1)

    def _processes(self, rank: int) -> Processes:
        return Processes(rank, self.count)

    def _read_state(self, rank: int) -> None:
        self.stepper.restore(_read(self.states[0]), self._processes(rank))

    def _write_state(self, rank: int) -> None:
        """Write the carried state of this process's rows; nothing if it has none, though it computes one."""
        has_rows = self._processes(rank).share(self.rows).size
        self.states[rank].write(save(state_tensors(self.stepper.carried_state) if has_rows else {}))

    def _take_step(self, rank: int, number: int, multiplier: float) -> StepResult:
        stepper = self.stepper
        set_rate(stepper.optimizers, multiplier)
        self.reports[rank] = torch.tensor(stepper.gradients(number, self._processes(rank)), dtype=torch.float64)
        self._write_gradients(rank)
        self._meet(rank)
        loss, count = self.reports.sum(0).tolist()
        if not math.isfinite(loss):
            return StepResult(loss, int(count), None)
        has_gradient = self.present.any(0).tolist()
        mine = [index for index in self.owned[rank] if has_gradient[index]]
        self._sum_gradients(mine, count)
        self._meet(rank)
        norms = GradientNorms(
            {name: self.norms[index] for index, name in enumerate(self.names) if has_gradient[index]},
            torch.linalg.vector_norm(self.norms[torch.tensor(has_gradient)]),
        )
        self._apply(mine, norms.total)
        self._meet(rank)
        return StepResult(loss, int(count), norms)

    def _write_gradients(self, rank: int) -> None:
        parameters, buffers = self.stepper.parameters, self.buffers[rank]
        present = [parameter.grad is not None for parameter in parameters]
        self.present[rank] = torch.tensor(present)
        pairs = [(b, p.grad) for b, p in zip(buffers, parameters, strict=True) if p.grad is not None]
        torch._foreach_copy_([buffer for buffer, _ in pairs], [gradient for _, gradient in pairs])
        for parameter, buffer, has_gradient in zip(parameters, buffers, present, strict=True):
            parameter.grad = None
            if not has_gradient:
                buffer.zero_()

    def _sum_gradients(self, mine: list[int], count: float) -> None:
        """The mean gradients of some parameters, in the buffers of rank 0, and their norms."""
        if not mine:
            return
        sums = [self.buffers[0][index] for index in mine]
        for buffers in self.buffers[1:]:
            torch._foreach_add_(sums, [buffers[index] for index in mine])
        torch._foreach_div_(sums, count)
        self.norms[mine] = torch.stack(torch._foreach_norm(sums))

    def _apply(self, mine: list[int], total_norm: Tensor) -> None:
        """Clip the mean gradients of some parameters by the norm of all, and update the parameters."""
        owned = [self.stepper.parameters[index] for index in mine]
        for parameter, index in zip(owned, mine, strict=True):
            parameter.grad = self.buffers[0][index]
        if self.stepper.config.clip and owned:
            nn.utils.clip_grads_with_norm_(owned, self.stepper.config.clip, total_norm, foreach=True)
        self.stepper.apply()


def _read(state: SharedBytes) -> dict[str, Tensor]:
    return load(state.read())


def owners(stepper: Stepper, count: int) -> list[list[int]]:
    """The parameters, by index, that each of `count` processes updates: about equal work."""
    work = dict.fromkeys(range(len(stepper.parameters)), 0.0)
    place = {id(parameter): index for index, parameter in enumerate(stepper.parameters)}
    for optimizer in stepper.optimizers:
        orthogonal = isinstance(optimizer, torch.optim.Muon)
        for parameter in (one for group in optimizer.param_groups for one in group["params"]):
            products = min(parameter.shape) / 8 if orthogonal else 1  # Newton-Schulz multiplies matrices
            work[place[id(parameter)]] = parameter.numel() * max(1.0, products)
    owned: list[list[int]] = [[] for _ in range(count)]
    load = [0.0] * count
    for index in sorted(work, key=lambda index: -work[index]):
        rank = load.index(min(load))
        owned[rank].append(index)
        load[rank] += work[index]
    return [sorted(indices) for indices in owned]


def _share_weights(stepper: Stepper) -> None:
    """Move the weights and the states of the optimisers to shared memory."""
    for parameter in stepper.parameters:
        parameter.data = shared_copy(parameter)
    complete_states(stepper.optimizers)
    for optimizer in stepper.optimizers:
        for slots in optimizer.state.values():
            for name, value in slots.items():
                if isinstance(value, Tensor):
                    slots[name] = shared_copy(value)
