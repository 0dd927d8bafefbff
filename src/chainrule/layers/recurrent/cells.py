"""Recurrent cells with back-propagation through time written by hand.

`unroll.py` turns their steps into one node of the autograd graph. The gate blocks of a cell lie side by side, in an
order that keeps the sigmoids adjacent, and also the blocks that receive the same gradient:

    rnn             a             h = f(a)
    lstm            g i f o       c = f∘c' + i∘g,  h = o∘tanh(c)                 Hochreiter & Schmidhuber 1997
    lstm-peephole   g i f o       i and f also see c', o also sees c             Gers & Schmidhuber 2000
    lstm-coupled    g i o         c = (1 - i)∘c' + i∘g                           Greff et al. 2017
    gru             n z r         h = z∘h' + (1 - z)∘n,  n = tanh(Wx + U(r∘h'))  Cho et al. 2014
    gru, after      n z r         n = tanh(Wx + r∘(Uh' + b)), the form of cuDNN and torch.nn.GRU
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from chainrule.layers.recurrent.unroll import Gradients, Saved, States, grad_path_buffer, outer, path_buffer, transpose

sigmoid_backward = torch.ops.aten.sigmoid_backward.grad_input  # (grad, sigmoid(x)) -> grad∘s∘(1 - s)
tanh_backward = torch.ops.aten.tanh_backward.grad_input  # (grad, tanh(x)) -> grad∘(1 - t²)
SATURATED = 1e4  # its sigmoid is 1 and that of its negative 0, whatever else is added


class Rnn:
    """h = tanh(a) or relu(a)."""

    blocks = 1
    states = 1
    hold_bias: tuple[float, ...] = ()
    gate_blocks: ClassVar[dict[str, int]] = {}

    def __init__(self, activation: str) -> None:
        self.relu = activation == "relu"

    def forward(
        self, gates_TBG: Tensor, weight_GU: Tensor, extra: Tensor | None, state: States
    ) -> tuple[Tensor, States, Saved]:
        path_TBU = path_buffer(state[0], len(gates_TBG))
        weight_UG, path = transpose(weight_GU, len(gates_TBG)), path_TBU.unbind(0)
        for t, gates_BG in enumerate(gates_TBG.unbind(0)):
            torch.addmm(gates_BG, path[t], weight_UG, out=path[t + 1])
            if self.relu:
                path[t + 1].relu_()
            else:
                path[t + 1].tanh_()
        return path_TBU, (), (path_TBU,)

    def step(self, gates_BG: Tensor, weight_GU: Tensor, extra: Tensor | None, state: States) -> States:
        sums_BU = gates_BG.addmm_(state[0], weight_GU.t())
        return (sums_BU.relu_() if self.relu else sums_BU.tanh_(),)

    def backward(
        self, saved: Saved, weight_GU: Tensor, extra: Tensor | None, grad_TBU: Tensor, grad_last: States
    ) -> Gradients:
        (path_TBU,) = saved
        grad_path_TBU = grad_path_buffer(grad_TBU)
        grad_gates_TBG = torch.empty_like(grad_path_TBU[1:])
        grad_path, grad_gates = grad_path_TBU.unbind(0), grad_gates_TBG.unbind(0)
        slope_TBU = (path_TBU[1:] > 0).to(path_TBU.dtype) if self.relu else 1 - path_TBU[1:].square()
        slopes = slope_TBU.unbind(0)
        for t in reversed(range(len(grad_gates))):
            torch.mul(grad_path[t + 1], slopes[t], out=grad_gates[t])
            grad_path[t].addmm_(grad_gates[t], weight_GU)
        return Gradients(grad_gates_TBG, outer(grad_gates_TBG, path_TBU[:-1]), None, (grad_path[0],))


class Lstm:
    """The gated cell with a separate memory c; `extra` holds the diagonal peepholes (3, U) of i, f and o."""

    states = 2

    def __init__(self, *, peephole: bool = False, coupled: bool = False) -> None:
        self.peephole, self.coupled = peephole, coupled
        self.blocks = 3 if coupled else 4
        self.gate_blocks = {"input": 1, "output": 2} if coupled else {"input": 1, "forget": 2, "output": 3}
        self.hold_bias: tuple[float, ...] = (0.0, -SATURATED, 0.0) if coupled else (0.0, -SATURATED, SATURATED, 0.0)

    def forward(
        self, gates_TBG: Tensor, weight_GU: Tensor, extra: Tensor | None, state: States
    ) -> tuple[Tensor, States, Saved]:
        steps, width = len(gates_TBG), weight_GU.shape[1]
        path_TBU, cells_TBU = path_buffer(state[0], steps), path_buffer(state[1], steps)
        tanh_cells_TBU = torch.empty_like(cells_TBU[1:])
        path, cells, tanh_cells = path_TBU.unbind(0), cells_TBU.unbind(0), tanh_cells_TBU.unbind(0)
        weight_UG = transpose(weight_GU, steps)
        # Views are created once, before the loop: slicing inside it would cost several times as much.
        gates = gates_TBG.unbind(0)
        sigmoids = gates_TBG[:, :, width:].unbind(0) if extra is None else self._input_and_forget_sums(gates_TBG, width)
        g, i, *f, o = (block.unbind(0) for block in gates_TBG.unflatten(2, (self.blocks, width)).unbind(2))
        for t in range(steps):
            gates[t].addmm_(path[t], weight_UG)
            g[t].tanh_()
            if extra is not None:
                sigmoids[t].addcmul_(cells[t].unsqueeze(1), extra[:2])
            sigmoids[t].sigmoid_()
            if self.coupled:
                torch.lerp(cells[t], g[t], i[t], out=cells[t + 1])
            else:
                torch.mul(f[0][t], cells[t], out=cells[t + 1])
                cells[t + 1].addcmul_(i[t], g[t])
            if extra is not None:
                o[t].addcmul_(cells[t + 1], extra[2]).sigmoid_()
            torch.tanh(cells[t + 1], out=tanh_cells[t])
            torch.mul(o[t], tanh_cells[t], out=path[t + 1])
        return path_TBU, (cells[-1],), (gates_TBG, path_TBU, cells_TBU, tanh_cells_TBU)

    def step(self, gates_BG: Tensor, weight_GU: Tensor, extra: Tensor | None, state: States) -> States:
        hidden_BU, cell_BU = state
        g, i, *f, o = gates_BG.addmm_(hidden_BU, weight_GU.t()).chunk(self.blocks, 1)
        if extra is None:
            gates_BG[:, weight_GU.shape[1] :].sigmoid_()
        else:
            i.addcmul_(cell_BU, extra[0]).sigmoid_()
            f[0].addcmul_(cell_BU, extra[1]).sigmoid_()
        g.tanh_()
        cell_BU = torch.lerp(cell_BU, g, i) if self.coupled else (f[0] * cell_BU).addcmul_(i, g)
        if extra is not None:
            o.addcmul_(cell_BU, extra[2]).sigmoid_()
        return o * cell_BU.tanh(), cell_BU

    @staticmethod
    def _input_and_forget_sums(gates_TBG: Tensor, width: int) -> tuple[Tensor, ...]:
        """The sums of i and f, (B, 2, U) per step: with peepholes they are needed before the sum of o is known."""
        sums_TB2U: Tensor = gates_TBG[:, :, width : 3 * width].unflatten(2, (2, width))
        return sums_TB2U.unbind(0)

    def backward(
        self, saved: Saved, weight_GU: Tensor, extra: Tensor | None, grad_TBU: Tensor, grad_last: States
    ) -> Gradients:
        gates_TBG, path_TBU, cells_TBU, tanh_cells_TBU = saved
        # `grad_gates` first holds local derivatives of the gate sums; the loop multiplies them by the gradient.
        grad_gates_TBG, into_cell_TBU, keep_TBU = self._local_derivatives(gates_TBG, cells_TBU, tanh_cells_TBU, extra)
        grad_path_TBU, grad_cell_BU = grad_path_buffer(grad_TBU), grad_last[0].clone()
        by_block = grad_gates_TBG.unflatten(2, (self.blocks, -1))
        by_cell, by_hidden = by_block[:, :, :-1].unbind(0), by_block[:, :, -1].unbind(0)
        into_cell, keep, grad_path = into_cell_TBU.unbind(0), keep_TBU.unbind(0), grad_path_TBU.unbind(0)
        grad_gates = grad_gates_TBG.unbind(0)
        for t in reversed(range(len(grad_gates))):
            grad_hidden_BU = grad_path[t + 1]
            grad_cell_BU.addcmul_(grad_hidden_BU, into_cell[t])
            by_hidden[t].mul_(grad_hidden_BU)
            by_cell[t].mul_(grad_cell_BU.unsqueeze(1))
            grad_cell_BU.mul_(keep[t])
            grad_path[t].addmm_(grad_gates[t], weight_GU)
        grad_extra = None if extra is None else _peephole_gradient(by_block, cells_TBU)
        grad_weight_GU = outer(grad_gates_TBG, path_TBU[:-1])
        return Gradients(grad_gates_TBG, grad_weight_GU, grad_extra, (grad_path[0], grad_cell_BU))

    def _local_derivatives(
        self, gates_TBG: Tensor, cells_TBU: Tensor, tanh_cells_TBU: Tensor, extra: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """For all steps: d(gate sums)/d(h or c) as TBG, d(c)/d(h) as TBU, and d(c_t)/d(c_{t-1}) as TBU."""
        local_TBG, into_cell_TBU = torch.empty_like(gates_TBG), torch.empty_like(tanh_cells_TBU)
        g, i, *forget, o = gates_TBG.unflatten(2, (self.blocks, -1)).unbind(2)
        local_g, local_i, *local_forget, local_o = local_TBG.unflatten(2, (self.blocks, -1)).unbind(2)
        before_TBU = cells_TBU[:-1]
        tanh_backward(i, g, grad_input=local_g)
        sigmoid_backward(tanh_cells_TBU, o, grad_input=local_o)
        tanh_backward(o, tanh_cells_TBU, grad_input=into_cell_TBU)
        if self.coupled:
            sigmoid_backward(g - before_TBU, i, grad_input=local_i)
            return local_TBG, into_cell_TBU, 1 - i
        sigmoid_backward(g, i, grad_input=local_i)
        sigmoid_backward(before_TBU, forget[0], grad_input=local_forget[0])
        if extra is None:
            return local_TBG, into_cell_TBU, forget[0]
        # A peephole only adds a path between a gate's sum and the memory, which these two factors include.
        into_cell_TBU.addcmul_(local_o, extra[2])
        keep_TBU = torch.addcmul(forget[0], local_i, extra[0]).addcmul_(local_forget[0], extra[1])
        return local_TBG, into_cell_TBU, keep_TBU


class Gru:
    """The gated cell without a separate memory; with `after`, the reset gate acts after U, and `extra` is b."""

    blocks = 3
    states = 1
    hold_bias: tuple[float, ...] = ()
    gate_blocks: ClassVar[dict[str, int]] = {"update": 1, "reset": 2}

    def __init__(self, *, after: bool = False) -> None:
        self.after = after

    def forward(
        self, gates_TBG: Tensor, weight_GU: Tensor, extra: Tensor | None, state: States
    ) -> tuple[Tensor, States, Saved]:
        steps, width = len(gates_TBG), weight_GU.shape[1]
        path_TBU = path_buffer(state[0], steps)
        inner_TBU = torch.empty_like(path_TBU[1:])  # r∘h', or with `after` Uh' + b
        path, inner = path_TBU.unbind(0), inner_TBU.unbind(0)
        weight_UG = transpose(weight_GU, steps)
        candidate_UU, gating_UG = weight_UG[:, :width], weight_UG[:, width:]
        gating = gates_TBG[:, :, width:].unbind(0)
        n, z, r = (block.unbind(0) for block in gates_TBG.unflatten(2, (3, width)).unbind(2))
        for t in range(steps):
            gating[t].addmm_(path[t], gating_UG).sigmoid_()
            if extra is not None:
                torch.addmm(extra, path[t], candidate_UU, out=inner[t])
                n[t].addcmul_(r[t], inner[t]).tanh_()
            else:
                torch.mul(r[t], path[t], out=inner[t])
                n[t].addmm_(inner[t], candidate_UU).tanh_()
            torch.lerp(n[t], path[t], z[t], out=path[t + 1])
        return path_TBU, (), (gates_TBG, path_TBU, inner_TBU)

    def step(self, gates_BG: Tensor, weight_GU: Tensor, extra: Tensor | None, state: States) -> States:
        (hidden_BU,), width = state, weight_GU.shape[1]
        n, z, r = gates_BG.chunk(3, 1)
        gates_BG[:, width:].addmm_(hidden_BU, weight_GU[width:].t()).sigmoid_()
        if extra is None:
            n.addmm_(r * hidden_BU, weight_GU[:width].t()).tanh_()
        else:
            n.addcmul_(r, torch.addmm(extra, hidden_BU, weight_GU[:width].t())).tanh_()
        return (torch.lerp(n, hidden_BU, z),)

    def backward(
        self, saved: Saved, weight_GU: Tensor, extra: Tensor | None, grad_TBU: Tensor, grad_last: States
    ) -> Gradients:
        gates_TBG, path_TBU, inner_TBU = saved
        n, z, r = gates_TBG.unflatten(2, (3, -1)).unbind(2)
        local_TBG = torch.empty_like(gates_TBG)
        local_n, local_z, local_r = local_TBG.unflatten(2, (3, -1)).unbind(2)
        tanh_backward(1 - z, n, grad_input=local_n)
        sigmoid_backward(path_TBU[:-1] - n, z, grad_input=local_z)
        sigmoid_backward(inner_TBU if self.after else path_TBU[:-1], r, grad_input=local_r)
        grad_path_TBU = grad_path_buffer(grad_TBU)
        walk = self._walk_after if self.after else self._walk_before
        grad_inner_TBU = walk(local_TBG, grad_path_TBU, z, r, weight_GU)
        width = weight_GU.shape[1]
        candidate_UU = outer(grad_inner_TBU, path_TBU[:-1] if self.after else inner_TBU)
        grad_weight_GU = torch.cat([candidate_UU, outer(local_TBG[:, :, width:], path_TBU[:-1])])
        grad_extra = grad_inner_TBU.sum((0, 1)) if self.after else None
        return Gradients(local_TBG, grad_weight_GU, grad_extra, (grad_path_TBU[0],))

    @staticmethod
    def _walk_before(
        grad_gates_TBG: Tensor, grad_path_TBU: Tensor, z_TBU: Tensor, r_TBU: Tensor, weight_GU: Tensor
    ) -> Tensor:
        """Turn local derivatives into gradients in place, from the last step back; returns those of Uₙ(r∘h')."""
        width = weight_GU.shape[1]
        grad_reset_BU = torch.empty_like(grad_path_TBU[0])
        grad_path, keep, reset = grad_path_TBU.unbind(0), z_TBU.unbind(0), r_TBU.unbind(0)
        for t, grad_gates_BG in reversed(list(enumerate(grad_gates_TBG.unbind(0)))):
            grad_gates_BG[:, : 2 * width].unflatten(1, (2, width)).mul_(grad_path[t + 1].unsqueeze(1))
            torch.mm(grad_gates_BG[:, :width], weight_GU[:width], out=grad_reset_BU)
            grad_gates_BG[:, 2 * width :].mul_(grad_reset_BU)
            grad_path[t].addcmul_(grad_path[t + 1], keep[t]).addcmul_(grad_reset_BU, reset[t])
            grad_path[t].addmm_(grad_gates_BG[:, width:], weight_GU[width:])
        return grad_gates_TBG[:, :, :width]

    @staticmethod
    def _walk_after(
        grad_gates_TBG: Tensor, grad_path_TBU: Tensor, z_TBU: Tensor, r_TBU: Tensor, weight_GU: Tensor
    ) -> Tensor:
        """The same for the form `after`; returns the gradients of Uₙh' + b."""
        width = weight_GU.shape[1]
        n, _, r = grad_gates_TBG.unflatten(2, (3, width)).unbind(2)
        r.mul_(n)  # the gradient reaches the reset gate through the candidate
        inner_TBU: Tensor = n * r_TBU
        grad_path, keep, inner = grad_path_TBU.unbind(0), z_TBU.unbind(0), inner_TBU.unbind(0)
        for t, grad_gates_BG in reversed(list(enumerate(grad_gates_TBG.unbind(0)))):
            grad_gates_BG.unflatten(1, (3, width)).mul_(grad_path[t + 1].unsqueeze(1))
            inner[t].mul_(grad_path[t + 1])
            grad_path[t].addcmul_(grad_path[t + 1], keep[t])
            grad_path[t].addmm_(grad_gates_BG[:, width:], weight_GU[width:]).addmm_(inner[t], weight_GU[:width])
        return inner_TBU


def _peephole_gradient(by_block: Tensor, cells_TBU: Tensor) -> Tensor:
    """(3, U): i and f saw the memory before the step, o the one after it."""
    input_forget_2U = (by_block[:, :, 1:3] * cells_TBU[:-1].unsqueeze(2)).sum((0, 1))
    output_U = (by_block[:, :, 3] * cells_TBU[1:]).sum((0, 1))
    return torch.cat([input_forget_2U, output_U.unsqueeze(0)])
