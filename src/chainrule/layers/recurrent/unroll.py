"""All steps of a recurrent cell as one node of the autograd graph, and the buffers that the cells share.

Recording a Python loop with autograd costs about ten graph nodes per step. Here one autograd node covers all steps:
forward does one matrix product per step and a few in-place operations on preallocated buffers; backward computes every
local derivative for all steps at once, so that its loop is one product and a few multiplications per step, and the
weight gradients are one product over all steps. Only torch operations are used, so it runs on every device.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from chainrule.layers.fused.softmax import multiply

States = tuple[Tensor, ...]
Saved = tuple[Tensor, ...]


class Gradients(NamedTuple):
    """The gradients of a cell's inputs, in their order."""

    gates_TBG: Tensor
    weight_GU: Tensor
    extra: Tensor | None
    state: States


class Cell(Protocol):
    """The arithmetic of one kind of recurrence, without parameters.

    `forward` overwrites `gates_TBG`, which contains the input projections of all steps. It returns the hidden states of
    steps 0..T, of which the first is the given one, the last value of any further state, and the tensors for backward.
    """

    blocks: int
    states: int
    hold_bias: tuple[float, ...]
    """Added to the gate sums of each block, these make a step keep every state but h; empty: h is the only state."""

    @property
    def gate_blocks(self) -> dict[str, int]:
        """The blocks that are gates, by name."""
        ...

    def forward(
        self, gates_TBG: Tensor, weight_GU: Tensor, extra: Tensor | None, state: States
    ) -> tuple[Tensor, States, Saved]: ...

    def backward(
        self, saved: Saved, weight_GU: Tensor, extra: Tensor | None, grad_TBU: Tensor, grad_last: States
    ) -> Gradients: ...

    def step(self, gates_BG: Tensor, weight_GU: Tensor, extra: Tensor | None, state: States) -> States:
        """The state after one step without a graph, for decoding. Overwrites `gates_BG`."""
        ...


class Unroll(torch.autograd.Function):
    """All steps of a cell as one node of the graph: hidden_TBU and the last value of any further state."""

    @staticmethod
    def forward(
        ctx: Any, cell: Cell, gates_TBG: Tensor, weight_GU: Tensor, extra: Tensor | None, *state: Tensor
    ) -> tuple[Tensor, ...]:
        path_TBU, rest, saved = cell.forward(gates_TBG, weight_GU, extra, state)
        ctx.cell, ctx.has_extra = cell, extra is not None
        ctx.save_for_backward(weight_GU, *([extra] if extra is not None else []), *saved)
        return path_TBU[1:], *rest

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_TBU: Tensor, *grad_last: Tensor) -> tuple[Tensor | None, ...]:
        weight_GU, *saved = ctx.saved_tensors
        extra = saved.pop(0) if ctx.has_extra else None
        grads = ctx.cell.backward(tuple(saved), weight_GU, extra, grad_TBU, grad_last)
        return None, grads.gates_TBG, grads.weight_GU, grads.extra, *grads.state


def unroll(
    cell: Cell, gates_TBG: Tensor, weight_GU: Tensor, extra: Tensor | None, state: States
) -> tuple[Tensor, States]:
    """Run a cell over all steps, with a graph only if gradients are enabled: (hidden_TBU, state after the last)."""
    if torch.is_grad_enabled():
        hidden_TBU, *rest = Unroll.apply(cell, gates_TBG, weight_GU, extra, *state)
        return hidden_TBU, (hidden_TBU[-1], *rest)
    if len(gates_TBG) == 1:
        state = cell.step(gates_TBG[0], weight_GU, extra, state)
        return state[0].unsqueeze(0), state
    path_TBU, last, _ = cell.forward(gates_TBG, weight_GU, extra, state)
    return path_TBU[1:], (path_TBU[-1], *last)


def path_buffer(first_BU: Tensor, steps: int) -> Tensor:
    """A buffer (steps + 1, B, U) whose first entry is the given state."""
    path_TBU = first_BU.new_empty(steps + 1, *first_BU.shape)
    path_TBU[0] = first_BU
    return path_TBU


def grad_path_buffer(grad_TBU: Tensor) -> Tensor:
    """A buffer for the gradient of all states, first the given one, filled with the gradient from the layer above."""
    grad_path_TBU = grad_TBU.new_empty(len(grad_TBU) + 1, *grad_TBU.shape[1:])
    grad_path_TBU[0] = 0
    grad_path_TBU[1:] = grad_TBU
    return grad_path_TBU


def transpose(weight_GU: Tensor, steps: int) -> Tensor:
    """The transposed weights; over many steps, copying them to that layout is worth the faster products."""
    return weight_GU.t().contiguous() if steps > 4 else weight_GU.t()


def outer(grad_TBG: Tensor, seen_TBU: Tensor) -> Tensor:
    """The gradient GU of a weight that was multiplied by `seen` at every step, as one product."""
    grad_NG, seen_NU = grad_TBG.flatten(0, 1), seen_TBU.flatten(0, 1)
    return multiply(grad_NG.t(), seen_NU, grad_NG.new_empty(grad_NG.shape[1], seen_NU.shape[1]))
