"""Recurrent cells with back-propagation through time written by hand.

How their steps become one node of the graph is told in `unroll.py`. The gate blocks of a cell lie side by side
in an order that keeps the sigmoids adjacent, and adjacent too what is driven by the same gradient:

    rnn             a             h = f(a)
    lstm            g i f o       c = f∘c' + i∘g,  h = o∘tanh(c)                 Hochreiter & Schmidhuber 1997
    lstm-peephole   g i f o       i and f also see c', o also sees c             Gers & Schmidhuber 2000
    lstm-coupled    g i o         c = (1 - i)∘c' + i∘g                           Greff et al. 2017
    gru             n z r         h = z∘h' + (1 - z)∘n,  n = tanh(Wx + U(r∘h'))  Cho et al. 2014
    gru, after      n z r         n = tanh(Wx + r∘(Uh' + b)), the form of cuDNN and torch.nn.GRU

Shapes: T time, B batch, H hidden width, G gate rows (blocks × H).
"""

from __future__ import annotations

import torch
from torch import Tensor

from chainrule.layers.recurrent.unroll import Gradients, Saved, States, grad_path_buffer, outer, path_buffer, transposed

sigmoid_backward = torch.ops.aten.sigmoid_backward.grad_input  # (grad, sigmoid(x)) -> grad∘s∘(1 - s)
tanh_backward = torch.ops.aten.tanh_backward.grad_input  # (grad, tanh(x)) -> grad∘(1 - t²)
SURE = 1e4  # the sigmoid of it is 1, and that of its negative 0, whatever else is added


class Rnn:
    """h = tanh(a) or relu(a)."""

    blocks = 1
    states = 1
    holding: tuple[float, ...] = ()

    def __init__(self, activation: str) -> None:
        self.relu = activation == "relu"

    def forward(
        self, gates_TBG: Tensor, weight_GH: Tensor, extra: Tensor | None, state: States
    ) -> tuple[Tensor, States, Saved]:
        path_TBH = path_buffer(state[0], len(gates_TBG))
        weight_HG, path = transposed(weight_GH, len(gates_TBG)), path_TBH.unbind(0)
        for t, gates_BG in enumerate(gates_TBG.unbind(0)):
            torch.addmm(gates_BG, path[t], weight_HG, out=path[t + 1])
            if self.relu:
                path[t + 1].relu_()
            else:
                path[t + 1].tanh_()
        return path_TBH, (), (path_TBH,)

    def step(self, gates_BG: Tensor, weight_GH: Tensor, extra: Tensor | None, state: States) -> States:
        sums_BH = gates_BG.addmm_(state[0], weight_GH.t())
        return (sums_BH.relu_() if self.relu else sums_BH.tanh_(),)

    def backward(
        self, saved: Saved, weight_GH: Tensor, extra: Tensor | None, grad_TBH: Tensor, grad_last: States
    ) -> Gradients:
        (path_TBH,) = saved
        grad_path_TBH = grad_path_buffer(grad_TBH)
        grad_gates_TBG = torch.empty_like(grad_path_TBH[1:])
        grad_path, grad_gates = grad_path_TBH.unbind(0), grad_gates_TBG.unbind(0)
        slope_TBH = (path_TBH[1:] > 0).to(path_TBH.dtype) if self.relu else 1 - path_TBH[1:].square()
        slopes = slope_TBH.unbind(0)
        for t in reversed(range(len(grad_gates))):
            torch.mul(grad_path[t + 1], slopes[t], out=grad_gates[t])
            grad_path[t].addmm_(grad_gates[t], weight_GH)
        return Gradients(grad_gates_TBG, outer(grad_gates_TBG, path_TBH[:-1]), None, (grad_path[0],))


class Lstm:
    """The gated cell with a separate memory c; `extra` is the diagonal peepholes (3, H) of i, f and o."""

    states = 2

    def __init__(self, *, peephole: bool = False, coupled: bool = False) -> None:
        self.peephole, self.coupled = peephole, coupled
        self.blocks = 3 if coupled else 4
        self.holding: tuple[float, ...] = (0.0, -SURE, 0.0) if coupled else (0.0, -SURE, SURE, 0.0)

    def forward(
        self, gates_TBG: Tensor, weight_GH: Tensor, extra: Tensor | None, state: States
    ) -> tuple[Tensor, States, Saved]:
        steps, width = len(gates_TBG), weight_GH.shape[1]
        path_TBH, cells_TBH = path_buffer(state[0], steps), path_buffer(state[1], steps)
        squashed_TBH = torch.empty_like(cells_TBH[1:])
        path, cells, squashed = path_TBH.unbind(0), cells_TBH.unbind(0), squashed_TBH.unbind(0)
        weight_HG = transposed(weight_GH, steps)
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

    def step(self, gates_BG: Tensor, weight_GH: Tensor, extra: Tensor | None, state: States) -> States:
        hidden_BH, cell_BH = state
        g, i, *f, o = gates_BG.addmm_(hidden_BH, weight_GH.t()).chunk(self.blocks, 1)
        if extra is None:
            gates_BG[:, weight_GH.shape[1] :].sigmoid_()
        else:
            i.addcmul_(cell_BH, extra[0]).sigmoid_()
            f[0].addcmul_(cell_BH, extra[1]).sigmoid_()
        g.tanh_()
        cell_BH = torch.lerp(cell_BH, g, i) if self.coupled else (f[0] * cell_BH).addcmul_(i, g)
        if extra is not None:
            o.addcmul_(cell_BH, extra[2]).sigmoid_()
        return o * cell_BH.tanh(), cell_BH

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
        grad_path_TBH, grad_cell_BH = grad_path_buffer(grad_TBH), grad_last[0].clone()
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
        grad_weight_GH = outer(grad_gates_TBG, path_TBH[:-1])
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
    holding: tuple[float, ...] = ()

    def __init__(self, *, after: bool = False) -> None:
        self.after = after

    def forward(
        self, gates_TBG: Tensor, weight_GH: Tensor, extra: Tensor | None, state: States
    ) -> tuple[Tensor, States, Saved]:
        steps, width = len(gates_TBG), weight_GH.shape[1]
        path_TBH = path_buffer(state[0], steps)
        aside_TBH = torch.empty_like(path_TBH[1:])  # r∘h' before, or Uh' + b after
        path, aside = path_TBH.unbind(0), aside_TBH.unbind(0)
        weight_HG = transposed(weight_GH, steps)
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

    def step(self, gates_BG: Tensor, weight_GH: Tensor, extra: Tensor | None, state: States) -> States:
        (hidden_BH,), width = state, weight_GH.shape[1]
        n, z, r = gates_BG.chunk(3, 1)
        gates_BG[:, width:].addmm_(hidden_BH, weight_GH[width:].t()).sigmoid_()
        if extra is None:
            n.addmm_(r * hidden_BH, weight_GH[:width].t()).tanh_()
        else:
            n.addcmul_(r, torch.addmm(extra, hidden_BH, weight_GH[:width].t())).tanh_()
        return (torch.lerp(n, hidden_BH, z),)

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
        grad_path_TBH = grad_path_buffer(grad_TBH)
        walk = self._walk_after if self.after else self._walk_before
        aside_grad_TBH = walk(local_TBG, grad_path_TBH, z, r, weight_GH)
        width = weight_GH.shape[1]
        candidate_HH = outer(aside_grad_TBH, path_TBH[:-1] if self.after else aside_TBH)
        grad_weight_GH = torch.cat([candidate_HH, outer(local_TBG[:, :, width:], path_TBH[:-1])])
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


def _peephole_gradient(grad_TBXH: Tensor, cells_TBH: Tensor) -> Tensor:
    """(3, H): i and f saw the memory before the step, o the one after it."""
    early_2H = (grad_TBXH[:, :, 1:3] * cells_TBH[:-1].unsqueeze(2)).sum((0, 1))
    late_H = (grad_TBXH[:, :, 3] * cells_TBH[1:]).sum((0, 1))
    return torch.cat([early_2H, late_H.unsqueeze(0)])
