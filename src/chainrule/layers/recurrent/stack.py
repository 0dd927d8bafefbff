"""Stacks of recurrent layers: one module for rnn, lstm, lstm-peephole, lstm-coupled and gru.

The arithmetic of the cells, and their back-propagation through time, is in `cells.py`; here are the parameters, the
stacking, and the three dropouts: between layers, locked over time (Gal & Ghahramani 2016), and on the
hidden-to-hidden weights (Wan et al. 2013, as in the AWD-LSTM of Merity et al. 2018).

Shapes: B batch, T time, D input width, H hidden width, G gate rows (blocks × H, in the order told in `cells.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from chainrule.base.compiling import left_out
from chainrule.errors import ConfigError, unknown_name
from chainrule.layers.dropout import drop
from chainrule.layers.recurrent.cells import Gru, Lstm, Rnn
from chainrule.layers.recurrent.kernel import run, serves
from chainrule.layers.recurrent.unroll import Cell, States, unroll

KERNEL_ROWS = 8
"""Rows up to which a kernel is quicker over some steps than a product of matrices at each."""

State = list[States]
"""One tuple a layer: (h_BH,), or (h_BH, c_BH) for the lstm kinds."""

KINDS: dict[str, Callable[[str, str], Cell]] = {
    "rnn": lambda activation, reset: Rnn(activation),
    "lstm": lambda activation, reset: Lstm(),
    "lstm-peephole": lambda activation, reset: Lstm(peephole=True),
    "lstm-coupled": lambda activation, reset: Lstm(coupled=True),
    "gru": lambda activation, reset: Gru(after=reset == "after"),
}


def make_cell(kind: str, activation: str = "tanh", reset: str = "before") -> Cell:
    """The cell of a name; `activation` matters to rnn alone, `reset` to gru alone."""
    if kind not in KINDS:
        raise unknown_name("recurrent cell", kind, KINDS)
    if activation not in ("tanh", "relu"):
        raise unknown_name("activation", activation, ("tanh", "relu"))
    if reset not in ("before", "after"):
        raise unknown_name("reset", reset, ("before", "after"))
    return KINDS[kind](activation, reset)


class Padding(NamedTuple):
    """Where the rows of a batch end."""

    after_TB1: Tensor  # 1 at steps after a row's last, 0 before
    last_B: Tensor
    row_B: Tensor

    @classmethod
    def of(cls, lengths_B: Tensor, steps: int, dtype: torch.dtype) -> Padding:
        time_T = torch.arange(steps, device=lengths_B.device)
        after_TB1 = (time_T[:, None, None] >= lengths_B[:, None]).to(dtype)
        return cls(after_TB1, lengths_B - 1, torch.arange(len(lengths_B), device=lengths_B.device))


class RecurrentLayer(nn.Module):
    """The parameters of one layer, started as that kind of cell wants them."""

    def __init__(self, cell: Cell, input_size: int, hidden_size: int, recurrent_dropout: float) -> None:
        super().__init__()
        self.cell, self.recurrent_dropout = cell, recurrent_dropout
        rows = cell.blocks * hidden_size
        self.weight_input_GD = nn.Parameter(torch.empty(rows, input_size))
        self.weight_hidden_GH = nn.Parameter(torch.empty(rows, hidden_size))
        self.bias_G = nn.Parameter(torch.empty(rows))
        self.extra = self._extra(hidden_size)
        self.reset_parameters()

    def _extra(self, hidden_size: int) -> nn.Parameter | None:
        if isinstance(self.cell, Lstm) and self.cell.peephole:
            return nn.Parameter(torch.empty(3, hidden_size))
        if isinstance(self.cell, Gru) and self.cell.after:
            return nn.Parameter(torch.empty(hidden_size))
        return None

    @torch.no_grad()
    def reset_parameters(self) -> None:
        width = self.weight_hidden_GH.shape[1]
        for parameter in self.parameters():
            parameter.uniform_(-(width**-0.5), width**-0.5)
        if isinstance(self.cell, Rnn):
            self.weight_hidden_GH.div_(spectral_radius(self.weight_hidden_GH))
        if isinstance(self.cell, Lstm):
            # A memory that keeps what it has can learn over long spans from the start (Gers 2000, Jozefowicz 2015).
            block = 1 if self.cell.coupled else 2
            self.bias_G[block * width : (block + 1) * width] = -1.0 if self.cell.coupled else 1.0

    def forward(self, inputs_TBD: Tensor, state: States, padding: Padding | None = None) -> tuple[Tensor, States]:
        """inputs_TBD and the state before them -> (hidden_TBH, the state after them, or after each row's last)."""
        gates_TBG = functional.linear(inputs_TBD, self.weight_input_GD, self.bias_G)
        if padding is None:
            return self.recur(gates_TBG, state)
        if self.cell.holding:
            hold_G = gates_TBG.new_tensor(self.cell.holding).repeat_interleave(self.weight_hidden_GH.shape[1])
            gates_TBG = gates_TBG.addcmul_(padding.after_TB1, hold_G)
        hidden_TBH, (_, *rest) = self.recur(gates_TBG, state)
        return hidden_TBH, (hidden_TBH[padding.last_B, padding.row_B], *rest)

    def recur(self, gates_TBG: Tensor, state: States) -> tuple[Tensor, States]:
        """What the gates get from the inputs, and the state before -> (hidden_TBH, the state after them)."""
        weight_GH: Tensor = self.weight_hidden_GH
        if self.recurrent_dropout and self.training:
            weight_GH = functional.dropout(weight_GH, self.recurrent_dropout)
        elif len(gates_TBG) > 1 and gates_TBG.shape[1] <= KERNEL_ROWS and serves(self.cell, gates_TBG):
            hidden_BTH, state = run(self.cell, gates_TBG.transpose(0, 1), weight_GH, self.extra, state)
            return hidden_BTH.transpose(0, 1), state
        return unroll(self.cell, gates_TBG, weight_GH, self.extra, state)


class Recurrence(nn.Module):
    """A stack of recurrent layers of one kind.

    `dropout` acts between layers and not after the last; with `variational` one mask serves all steps of a call.
    `recurrent_dropout` drops hidden-to-hidden weights, the same ones for all steps of a call.
    """

    def __init__(
        self,
        kind: str,
        input_size: int,
        hidden_size: int,
        layers: int = 1,
        dropout: float = 0.0,
        variational: bool = False,
        recurrent_dropout: float = 0.0,
        activation: str = "tanh",
        reset: str = "before",
    ) -> None:
        super().__init__()
        if min(input_size, hidden_size, layers) < 1:
            raise ConfigError(
                f"a recurrent stack needs input_size, hidden_size and layers of at least 1, "
                f"but got {input_size}, {hidden_size} and {layers}: raise the one below 1"
            )
        for name, rate in (("dropout", dropout), ("recurrent_dropout", recurrent_dropout)):
            if not 0 <= rate < 1:
                raise ConfigError(f"{name} is {rate}, but it must be at least 0 and below 1: choose such a rate")
        cell = make_cell(kind, activation, reset)
        self.kind, self.cell, self.hidden_size = kind, cell, hidden_size
        self.dropout, self.variational = dropout, variational
        widths = [input_size] + [hidden_size] * (layers - 1)
        self.layers = nn.ModuleList(RecurrentLayer(cell, width, hidden_size, recurrent_dropout) for width in widths)

    def start(self, batch: int) -> State:
        """The zero state of `batch` rows, on the device and in the type of the weights."""
        like = next(self.parameters())
        parts = range(self.cell.states)
        return [tuple(like.new_zeros(batch, self.hidden_size) for _ in parts) for _ in self.layers]

    @left_out  # a graph would unroll the loop step by step
    def forward(
        self, inputs_BTD: Tensor, state: State | None = None, lengths_B: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """inputs_BTD and the state before them (None: zeros) -> (hidden_BTH, the state after them).

        With `lengths_B`, each at least 1, the state is that after each row's own last step. What is given of the steps
        beyond means nothing.
        """
        device = inputs_BTD.device.type
        if torch.is_autocast_enabled(device):
            # A sum over many steps needs the whole precision; the products inside would also reject mixed types.
            with torch.autocast(device, enabled=False):
                return self._run(inputs_BTD.float(), state, lengths_B)
        return self._run(inputs_BTD, state, lengths_B)

    def _run(self, inputs_BTD: Tensor, state: State | None, lengths_B: Tensor | None) -> tuple[Tensor, State]:
        state = self.start(len(inputs_BTD)) if state is None else state
        hidden_TBH = inputs_BTD.transpose(0, 1).contiguous()
        padding = None if lengths_B is None else Padding.of(lengths_B, len(hidden_TBH), hidden_TBH.dtype)
        after: State = []
        for depth, (layer, before) in enumerate(zip(self.layers, state, strict=True)):
            if depth:
                hidden_BTH = hidden_TBH.transpose(0, 1)
                hidden_BTH = drop(hidden_BTH, self.dropout, training=self.training, locked=self.variational)
                hidden_TBH = hidden_BTH.transpose(0, 1)
            hidden_TBH, last = layer(hidden_TBH, before, padding)
            after.append(last)
        return hidden_TBH.transpose(0, 1), after

    def gates(self, inputs_BTD: Tensor) -> Tensor:
        """What the first layer's gates get from the inputs of all steps -> TBG."""
        first = self.layers[0]
        assert isinstance(first, RecurrentLayer)
        return functional.linear(inputs_BTD.transpose(0, 1), first.weight_input_GD, first.bias_G)

    def advance(self, gates_BG: Tensor, state: State) -> tuple[Tensor, State]:
        """One step of all layers, from the first one's gate sums, which may be overwritten -> (hidden_BH, the state).

        For loops in which an input depends on the last output, so that only `gates` can be had for all steps at once.
        """
        hidden_1BH, after = gates_BG.unsqueeze(0), []
        for depth, (layer, before) in enumerate(zip(self.layers, state, strict=True)):
            assert isinstance(layer, RecurrentLayer)
            if depth:
                hidden_1BH, last = layer(drop(hidden_1BH, self.dropout, training=self.training), before)
            else:
                hidden_1BH, last = layer.recur(hidden_1BH, before)
            after.append(last)
        return hidden_1BH[0], after


class Bidirectional(nn.Module):
    """Layers of two recurrences each, one from the left and one from the right, whose states are joined."""

    def __init__(
        self, kind: str, input_size: int, hidden_size: int, layers: int = 1, dropout: float = 0.0, reset: str = "before"
    ) -> None:
        """`hidden_size` is that of one direction."""
        super().__init__()
        self.cell, self.dropout = make_cell(kind, reset=reset), dropout
        widths = [input_size] + [2 * hidden_size] * (layers - 1)
        self.rightward = nn.ModuleList(Recurrence(kind, width, hidden_size, reset=reset) for width in widths)
        self.leftward = nn.ModuleList(Recurrence(kind, width, hidden_size, reset=reset) for width in widths)

    def forward(self, inputs_BTD: Tensor, lengths_B: Tensor | None = None) -> tuple[Tensor, State]:
        """inputs_BTD -> (hidden_BTH, the state of each layer after the last step of either direction).

        H is twice the width of a direction. Rows end after `lengths_B` steps, each at least 1 (None: all have T).
        """
        if not self.training and serves(self.cell, inputs_BTD):
            return self._by_kernel(inputs_BTD, lengths_B)
        hidden_BTH, after = inputs_BTD, []
        for depth, (rightward, leftward) in enumerate(zip(self.rightward, self.leftward, strict=True)):
            if depth:
                hidden_BTH = drop(hidden_BTH, self.dropout, training=self.training)
            right_BTH, (right,) = rightward(hidden_BTH, None, lengths_B)
            left_BTH, (left,) = leftward(reverse(hidden_BTH, lengths_B), None, lengths_B)
            hidden_BTH = torch.cat([right_BTH, reverse(left_BTH, lengths_B)], 2)
            after.append(tuple(torch.cat(parts, 1) for parts in zip(right, left, strict=True)))
        return hidden_BTH, after

    def _by_kernel(self, inputs_BTD: Tensor, lengths_B: Tensor | None) -> tuple[Tensor, State]:
        """The same in a fraction of the time; beyond the end of a row there are zeros."""
        hidden_BTH, after = inputs_BTD, []
        for pair in zip(self.rightward, self.leftward, strict=True):
            found = []
            for side, leftward in zip(pair, (False, True), strict=True):
                assert isinstance(side, Recurrence)
                layer = side.layers[0]
                assert isinstance(layer, RecurrentLayer)
                gates_BTG = functional.linear(hidden_BTH, layer.weight_input_GD, layer.bias_G)
                weights = layer.weight_hidden_GH, layer.extra
                own_BTH, last = run(layer.cell, gates_BTG, *weights, None, lengths_B, leftward=leftward)
                found.append((own_BTH, *last))
            hidden_BTH, *joined = (torch.cat(parts, -1) for parts in zip(*found, strict=True))
            after.append(tuple(joined))
        return hidden_BTH, after


def reverse(inputs_BT: Tensor, lengths_B: Tensor | None = None) -> Tensor:
    """Each row of BT or BTD backwards, its padding left where it is."""
    if lengths_B is None:
        return inputs_BT.flip(1)
    time_T = torch.arange(inputs_BT.shape[1], device=inputs_BT.device)
    from_end_BT = lengths_B[:, None] - 1 - time_T
    place_BT = torch.where(from_end_BT < 0, time_T, from_end_BT)
    return inputs_BT[torch.arange(len(inputs_BT), device=inputs_BT.device)[:, None], place_BT]


def spectral_radius(weight_HH: Tensor) -> float:
    """The greatest absolute eigenvalue of a square matrix."""
    return float(torch.linalg.eigvals(weight_HH.detach().double()).abs().max())
