"""All steps of a recurrent cell as one node of the graph, and the buffers the cells lay out for it.

Recording a Python loop with autograd costs about ten graph nodes a step. Here one autograd node covers all steps:
forward does one matrix product a step and a few in-place operations on buffers laid out beforehand; backward computes
every local derivative for all steps at once, so that its own loop is one product and a few multiplications a step,
and the weight gradients are one product over all steps. Only torch operations are used, so every device runs this.

Shapes: T time, B batch, H hidden width, G gate rows (blocks × H).
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

States = tuple[Tensor, ...]
Saved = tuple[Tensor, ...]


class Gradients(NamedTuple):
    """What a cell's backward gives, in the order of its inputs."""

    gates_TBG: Tensor
    weight_GH: Tensor
    extra: Tensor | None
    state: States


class Cell(Protocol):
    """The arithmetic of one kind of recurrence; it holds no parameters.

    `forward` overwrites `gates_TBG`, which comes filled with the input projections of all steps. It gives the hidden
    states of steps 0..T, the first being the given one, the last of any further state, and what backward needs.
    """

    blocks: int
    states: int
    holding: tuple[float, ...]
    """What, added to the sums of each block, makes a step leave the states besides h as they were; empty: has none."""

    def forward(
        self, gates_TBG: Tensor, weight_GH: Tensor, extra: Tensor | None, state: States
    ) -> tuple[Tensor, States, Saved]: ...

    def backward(
        self, saved: Saved, weight_GH: Tensor, extra: Tensor | None, grad_TBH: Tensor, grad_last: States
    ) -> Gradients: ...

    def step(self, gates_BG: Tensor, weight_GH: Tensor, extra: Tensor | None, state: States) -> States:
        """One step without a graph, for decoding: the next state. Overwrites `gates_BG`."""
        ...


class Unroll(torch.autograd.Function):
    """All steps of a cell as one node of the graph; gives hidden_TBH and the last of any further state."""

    @staticmethod
    def forward(
        ctx: Any, cell: Cell, gates_TBG: Tensor, weight_GH: Tensor, extra: Tensor | None, *state: Tensor
    ) -> tuple[Tensor, ...]:
        path_TBH, rest, saved = cell.forward(gates_TBG, weight_GH, extra, state)
        ctx.cell, ctx.has_extra = cell, extra is not None
        ctx.save_for_backward(weight_GH, *([extra] if extra is not None else []), *saved)
        return path_TBH[1:], *rest

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_TBH: Tensor, *grad_last: Tensor) -> tuple[Tensor | None, ...]:
        weight_GH, *saved = ctx.saved_tensors
        extra = saved.pop(0) if ctx.has_extra else None
        grads = ctx.cell.backward(tuple(saved), weight_GH, extra, grad_TBH, grad_last)
        return None, grads.gates_TBG, grads.weight_GH, grads.extra, *grads.state


def unroll(
    cell: Cell, gates_TBG: Tensor, weight_GH: Tensor, extra: Tensor | None, state: States
) -> tuple[Tensor, States]:
    """Run a cell over all steps, with a graph only if one is wanted: (hidden_TBH, state after the last step)."""
    if torch.is_grad_enabled():
        hidden_TBH, *rest = Unroll.apply(cell, gates_TBG, weight_GH, extra, *state)
        return hidden_TBH, (hidden_TBH[-1], *rest)
    if len(gates_TBG) == 1:
        state = cell.step(gates_TBG[0], weight_GH, extra, state)
        return state[0].unsqueeze(0), state
    path_TBH, last, _ = cell.forward(gates_TBG, weight_GH, extra, state)
    return path_TBH[1:], (path_TBH[-1], *last)


def path_buffer(first_BH: Tensor, steps: int) -> Tensor:
    """A buffer (steps + 1, B, H) that begins with the given state."""
    path_TBH = first_BH.new_empty(steps + 1, *first_BH.shape)
    path_TBH[0] = first_BH
    return path_TBH


def grad_path_buffer(grad_TBH: Tensor) -> Tensor:
    """The gradient of the whole path, the given state first: what comes from above, to be added to in the walk back."""
    grad_path_TBH = grad_TBH.new_empty(len(grad_TBH) + 1, *grad_TBH.shape[1:])
    grad_path_TBH[0] = 0
    grad_path_TBH[1:] = grad_TBH
    return grad_path_TBH


def transposed(weight_GH: Tensor, steps: int) -> Tensor:
    """The transposed weights; over many steps a copy in that order repays itself by quicker products."""
    return weight_GH.t().contiguous() if steps > 4 else weight_GH.t()


def outer(grad_TBG: Tensor, seen_TBH: Tensor) -> Tensor:
    """The gradient GH of a weight that met `seen` at every step, as one product."""
    return grad_TBG.flatten(0, 1).t() @ seen_TBH.flatten(0, 1)
