"""Recurrent cells with back-propagation through time written by hand.

Recording a Python loop with autograd costs about ten graph nodes a step. Here one autograd node covers all steps:
forward does one matrix product a step and a few in-place operations on buffers laid out beforehand; backward computes
every local derivative for all steps at once, so that its own loop is one product and a few multiplications a step,
and the weight gradients are one product over all steps. Only torch operations are used, so every device runs this.

The gate blocks of a cell lie side by side in an order that keeps the sigmoids adjacent, and adjacent too what is
driven by the same gradient:

    rnn             a             h = f(a)
    lstm            g i f o       c = f∘c' + i∘g,  h = o∘tanh(c)                 Hochreiter & Schmidhuber 1997
    lstm-peephole   g i f o       i and f also see c', o also sees c             Gers & Schmidhuber 2000
    lstm-coupled    g i o         c = (1 - i)∘c' + i∘g                           Greff et al. 2017
    gru             n z r         h = z∘h' + (1 - z)∘n,  n = tanh(Wx + U(r∘h'))  Cho et al. 2014
    gru, after      n z r         n = tanh(Wx + r∘(Uh' + b)), the form of cuDNN and torch.nn.GRU

Shapes: T time, B batch, H hidden width, G gate rows (blocks × H).
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

sigmoid_backward = torch.ops.aten.sigmoid_backward.grad_input  # (grad, sigmoid(x)) -> grad∘s∘(1 - s)
tanh_backward = torch.ops.aten.tanh_backward.grad_input  # (grad, tanh(x)) -> grad∘(1 - t²)

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

    def forward(
        self, gates_TBG: Tensor, weight_GH: Tensor, extra: Tensor | None, state: States
    ) -> tuple[Tensor, States, Saved]: ...

    def backward(
        self, saved: Saved, weight_GH: Tensor, extra: Tensor | None, grad_TBH: Tensor, grad_last: States
    ) -> Gradients: ...


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
    path_TBH, last, _ = cell.forward(gates_TBG, weight_GH, extra, state)
    return path_TBH[1:], (path_TBH[-1], *last)


class Rnn:
    """h = tanh(a) or relu(a)."""

    blocks = 1
    states = 1

    def __init__(self, activation: str) -> None:
        self.relu = activation == "relu"

    def forward(
        self, gates_TBG: Tensor, weight_GH: Tensor, extra: Tensor | None, state: States
    ) -> tuple[Tensor, States, Saved]:
        path_TBH = _path(state[0], len(gates_TBG))
        weight_HG, path = _for_products(weight_GH, len(gates_TBG)), path_TBH.unbind(0)
        for t, gates_BG in enumerate(gates_TBG.unbind(0)):
            torch.addmm(gates_BG, path[t], weight_HG, out=path[t + 1])
            if self.relu:
                path[t + 1].relu_()
            else:
                path[t + 1].tanh_()
        return path_TBH, (), (path_TBH,)

    def backward(
        self, saved: Saved, weight_GH: Tensor, extra: Tensor | None, grad_TBH: Tensor, grad_last: States
    ) -> Gradients:
        (path_TBH,) = saved
        grad_path_TBH = _grad_path(grad_TBH)
        grad_gates_TBG = torch.empty_like(grad_path_TBH[1:])
        grad_path, grad_gates = grad_path_TBH.unbind(0), grad_gates_TBG.unbind(0)
        slope_TBH = (path_TBH[1:] > 0).to(path_TBH.dtype) if self.relu else 1 - path_TBH[1:].square()
        slopes = slope_TBH.unbind(0)
        for t in reversed(range(len(grad_gates))):
            torch.mul(grad_path[t + 1], slopes[t], out=grad_gates[t])
            grad_path[t].addmm_(grad_gates[t], weight_GH)
        return Gradients(grad_gates_TBG, _outer(grad_gates_TBG, path_TBH[:-1]), None, (grad_path[0],))


class Lstm:
    """The gated cell with a separate memory c; `extra` is the diagonal peepholes (3, H) of i, f and o."""

    states = 2

    def __init__(self, *, peephole: bool = False, coupled: bool = False) -> None:
        self.peephole, self.coupled = peephole, coupled
        self.blocks = 3 if coupled else 4

    def forward(
        self, gates_TBG: Tensor, weight_GH: Tensor, extra: Tensor | None, state: States
    ) -> tuple[Tensor, States, Saved]:
        steps, width = len(gates_TBG), weight_GH.shape[1]
        path_TBH, cells_TBH = _path(state[0], steps), _path(state[1], steps)
        squashed_TBH = torch.empty_like(cells_TBH[1:])
        path, cells, squashed = path_TBH.unbind(0), cells_TBH.unbind(0), squashed_TBH.unbind(0)
        weight_HG = _for_products(weight_GH, steps)
        # Views are cut once, before the loop, where each costs a fraction of a slice taken inside it.
        gates = gates_TBG.unbind(0)
        squash = gates_TBG[:, :, width:].unbind(0) if extra is None else self._early(gates_TBG, width)
        g, i, *f, o = (block.unbind(0) for block in gates_TBG.unflatten(2, (self.blocks, width)).unbind(2))
        for t in range(steps):
            gates[t].addmm_(path[t], weight_HG)
            g[t].tanh_()
            if extra is not None:
                squash[t].addcmul_(cells[t].unsqueeze(1), extra[:2])
            squash[t].sigmoid_()
            if self.coupled:
                torch.lerp(cells[t], g[t], i[t], out=cells[t + 1])
            else:
                torch.mul(f[0][t], cells[t], out=cells[t + 1])
                cells[t + 1].addcmul_(i[t], g[t])
            if extra is not None:
                o[t].addcmul_(cells[t + 1], extra[2]).sigmoid_()
            torch.tanh(cells[t + 1], out=squashed[t])
            torch.mul(o[t], squashed[t], out=path[t + 1])
        return path_TBH, (cells[-1],), (gates_TBG, path_TBH, cells_TBH, squashed_TBH)

    @staticmethod
    def _early(gates_TBG: Tensor, width: int) -> tuple[Tensor, ...]:
        """The sums of i and f, (B, 2, H) a step: with peepholes they are squashed before that of o is known."""
        early_TB2H: Tensor = gates_TBG[:, :, width : 3 * width].unflatten(2, (2, width))
        return early_TB2H.unbind(0)

    def backward(
        self, saved: Saved, weight_GH: Tensor, extra: Tensor | None, grad_TBH: Tensor, grad_last: States
    ) -> Gradients:
        gates_TBG, path_TBH, cells_TBH, squashed_TBH = saved
        # From here on `grad_gates` holds d(gate sum)/d(dh or dc), to be multiplied in place by the gradient itself.
        grad_gates_TBG, into_cell_TBH, keep_TBH = self._local(gates_TBG, cells_TBH, squashed_TBH, extra)
        grad_path_TBH, grad_cell_BH = _grad_path(grad_TBH), grad_last[0].clone()
        by_block_TBXH = grad_gates_TBG.unflatten(2, (self.blocks, -1))
        by_cell, by_hidden = by_block_TBXH[:, :, :-1].unbind(0), by_block_TBXH[:, :, -1].unbind(0)
        into_cell, keep, grad_path = into_cell_TBH.unbind(0), keep_TBH.unbind(0), grad_path_TBH.unbind(0)
        grad_gates = grad_gates_TBG.unbind(0)
        for t in reversed(range(len(grad_gates))):
            grad_hidden_BH = grad_path[t + 1]
            grad_cell_BH.addcmul_(grad_hidden_BH, into_cell[t])
            by_hidden[t].mul_(grad_hidden_BH)
            by_cell[t].mul_(grad_cell_BH.unsqueeze(1))
            grad_cell_BH.mul_(keep[t])
            grad_path[t].addmm_(grad_gates[t], weight_GH)
        grad_extra = None if extra is None else _peephole_gradient(by_block_TBXH, cells_TBH)
        grad_weight_GH = _outer(grad_gates_TBG, path_TBH[:-1])
        return Gradients(grad_gates_TBG, grad_weight_GH, grad_extra, (grad_path[0], grad_cell_BH))

    def _local(
        self, gates_TBG: Tensor, cells_TBH: Tensor, squashed_TBH: Tensor, extra: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """For all steps: d(gate sums)/d(h or c) as TBG, d(c)/d(h) as TBH, and d(c_t)/d(c_{t-1}) as TBH."""
        local_TBG, into_cell_TBH = torch.empty_like(gates_TBG), torch.empty_like(squashed_TBH)
        g, i, *forget, o = gates_TBG.unflatten(2, (self.blocks, -1)).unbind(2)
        local_g, local_i, *local_forget, local_o = local_TBG.unflatten(2, (self.blocks, -1)).unbind(2)
        before_TBH = cells_TBH[:-1]
        tanh_backward(i, g, grad_input=local_g)
        sigmoid_backward(squashed_TBH, o, grad_input=local_o)
        tanh_backward(o, squashed_TBH, grad_input=into_cell_TBH)
        if self.coupled:
            sigmoid_backward(g - before_TBH, i, grad_input=local_i)
            return local_TBG, into_cell_TBH, 1 - i
        sigmoid_backward(g, i, grad_input=local_i)
        sigmoid_backward(before_TBH, forget[0], grad_input=local_forget[0])
        if extra is None:
            return local_TBG, into_cell_TBH, forget[0]
        # A peephole only adds a path between a gate's sum and the memory, so it folds into these two factors.
        into_cell_TBH.addcmul_(local_o, extra[2])
        keep_TBH = torch.addcmul(forget[0], local_i, extra[0]).addcmul_(local_forget[0], extra[1])
        return local_TBG, into_cell_TBH, keep_TBH


class Gru:
    """The gated cell without a separate memory; with `after`, the reset gate acts after U, and `extra` is b (H)."""

    blocks = 3
    states = 1

    def __init__(self, *, after: bool = False) -> None:
        self.after = after

    def forward(
        self, gates_TBG: Tensor, weight_GH: Tensor, extra: Tensor | None, state: States
    ) -> tuple[Tensor, States, Saved]:
        steps, width = len(gates_TBG), weight_GH.shape[1]
        path_TBH = _path(state[0], steps)
        aside_TBH = torch.empty_like(path_TBH[1:])  # r∘h' before, or Uh' + b after
        path, aside = path_TBH.unbind(0), aside_TBH.unbind(0)
        weight_HG = _for_products(weight_GH, steps)
        candidate_HH, gating_HG = weight_HG[:, :width], weight_HG[:, width:]
        gating = gates_TBG[:, :, width:].unbind(0)
        n, z, r = (block.unbind(0) for block in gates_TBG.unflatten(2, (3, width)).unbind(2))
        for t in range(steps):
            gating[t].addmm_(path[t], gating_HG).sigmoid_()
            if extra is not None:
                torch.addmm(extra, path[t], candidate_HH, out=aside[t])
                n[t].addcmul_(r[t], aside[t]).tanh_()
            else:
                torch.mul(r[t], path[t], out=aside[t])
                n[t].addmm_(aside[t], candidate_HH).tanh_()
            torch.lerp(n[t], path[t], z[t], out=path[t + 1])
        return path_TBH, (), (gates_TBG, path_TBH, aside_TBH)

    def backward(
        self, saved: Saved, weight_GH: Tensor, extra: Tensor | None, grad_TBH: Tensor, grad_last: States
    ) -> Gradients:
        gates_TBG, path_TBH, aside_TBH = saved
        n, z, r = gates_TBG.unflatten(2, (3, -1)).unbind(2)
        local_TBG = torch.empty_like(gates_TBG)
        local_n, local_z, local_r = local_TBG.unflatten(2, (3, -1)).unbind(2)
        tanh_backward(1 - z, n, grad_input=local_n)
        sigmoid_backward(path_TBH[:-1] - n, z, grad_input=local_z)
        sigmoid_backward(aside_TBH if self.after else path_TBH[:-1], r, grad_input=local_r)
        grad_path_TBH = _grad_path(grad_TBH)
        walk = self._walk_after if self.after else self._walk_before
        aside_grad_TBH = walk(local_TBG, grad_path_TBH, z, r, weight_GH)
        width = weight_GH.shape[1]
        candidate_HH = _outer(aside_grad_TBH, path_TBH[:-1] if self.after else aside_TBH)
        grad_weight_GH = torch.cat([candidate_HH, _outer(local_TBG[:, :, width:], path_TBH[:-1])])
        grad_extra = aside_grad_TBH.sum((0, 1)) if self.after else None
        return Gradients(local_TBG, grad_weight_GH, grad_extra, (grad_path_TBH[0],))

    @staticmethod
    def _walk_before(
        grad_gates_TBG: Tensor, grad_path_TBH: Tensor, z_TBH: Tensor, r_TBH: Tensor, weight_GH: Tensor
    ) -> Tensor:
        """Turn local derivatives into gradients, in place, from the last step back; gives those of Uₙ(r∘h')."""
        width = weight_GH.shape[1]
        grad_reset_BH = torch.empty_like(grad_path_TBH[0])
        grad_path, keep, reset = grad_path_TBH.unbind(0), z_TBH.unbind(0), r_TBH.unbind(0)
        for t, grad_gates_BG in reversed(list(enumerate(grad_gates_TBG.unbind(0)))):
            grad_gates_BG[:, : 2 * width].unflatten(1, (2, width)).mul_(grad_path[t + 1].unsqueeze(1))
            torch.mm(grad_gates_BG[:, :width], weight_GH[:width], out=grad_reset_BH)
            grad_gates_BG[:, 2 * width :].mul_(grad_reset_BH)
            grad_path[t].addcmul_(grad_path[t + 1], keep[t]).addcmul_(grad_reset_BH, reset[t])
            grad_path[t].addmm_(grad_gates_BG[:, width:], weight_GH[width:])
        return grad_gates_TBG[:, :, :width]

    @staticmethod
    def _walk_after(
        grad_gates_TBG: Tensor, grad_path_TBH: Tensor, z_TBH: Tensor, r_TBH: Tensor, weight_GH: Tensor
    ) -> Tensor:
        """The same for the other form; gives the gradients of Uₙh' + b."""
        width = weight_GH.shape[1]
        n, _, r = grad_gates_TBG.unflatten(2, (3, width)).unbind(2)
        r.mul_(n)  # the reset gate is reached through the candidate
        aside_TBH: Tensor = n * r_TBH
        grad_path, keep, aside = grad_path_TBH.unbind(0), z_TBH.unbind(0), aside_TBH.unbind(0)
        for t, grad_gates_BG in reversed(list(enumerate(grad_gates_TBG.unbind(0)))):
            grad_gates_BG.unflatten(1, (3, width)).mul_(grad_path[t + 1].unsqueeze(1))
            aside[t].mul_(grad_path[t + 1])
            grad_path[t].addcmul_(grad_path[t + 1], keep[t])
            grad_path[t].addmm_(grad_gates_BG[:, width:], weight_GH[width:]).addmm_(aside[t], weight_GH[:width])
        return aside_TBH


def _path(first_BH: Tensor, steps: int) -> Tensor:
    """A buffer (steps + 1, B, H) that begins with the given state."""
    path_TBH = first_BH.new_empty(steps + 1, *first_BH.shape)
    path_TBH[0] = first_BH
    return path_TBH


def _grad_path(grad_TBH: Tensor) -> Tensor:
    """The gradient of the whole path, the given state first: what comes from above, to be added to in the walk back."""
    grad_path_TBH = grad_TBH.new_empty(len(grad_TBH) + 1, *grad_TBH.shape[1:])
    grad_path_TBH[0] = 0
    grad_path_TBH[1:] = grad_TBH
    return grad_path_TBH


def _for_products(weight_GH: Tensor, steps: int) -> Tensor:
    """The transposed weights; over many steps a copy in that order repays itself by quicker products."""
    return weight_GH.t().contiguous() if steps > 4 else weight_GH.t()


def _outer(grad_TBG: Tensor, seen_TBH: Tensor) -> Tensor:
    """The gradient GH of a weight that met `seen` at every step, as one product."""
    return grad_TBG.flatten(0, 1).t() @ seen_TBH.flatten(0, 1)


def _peephole_gradient(grad_TBXH: Tensor, cells_TBH: Tensor) -> Tensor:
    """(3, H): i and f saw the memory before the step, o the one after it."""
    early_2H = (grad_TBXH[:, :, 1:3] * cells_TBH[:-1].unsqueeze(2)).sum((0, 1))
    late_H = (grad_TBXH[:, :, 3] * cells_TBH[1:]).sum((0, 1))
    return torch.cat([early_2H, late_H.unsqueeze(0)])
