"""Stacks of recurrent layers: one module for rnn, lstm, lstm-peephole, lstm-coupled and gru.

The arithmetic of the cells, their back-propagation through time and the order of their gates are in `cells.py`. This
file has the parameters, the stacking, and three kinds of dropout: between layers, locked over time (Gal & Ghahramani
2016), and on the hidden-to-hidden weights (Wan et al. 2013, as in the AWD-LSTM of Merity et al. 2018).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from chainrule.base.compiling import uncompiled
from chainrule.errors import ConfigError, unknown_name
from chainrule.layers.dropout import drop
from chainrule.layers.fused.linear import linear
from chainrule.layers.recurrent.cells import Gru, Lstm, Rnn
from chainrule.layers.recurrent.kernel import has_kernel, run_kernel
from chainrule.layers.recurrent.unroll import Cell, States, unroll

KERNEL_ROWS = 8
"""Rows up to which the kernel is faster over several steps than a matrix product per step."""

State = list[States]
"""One tuple per layer: (h_BU,), or (h_BU, c_BU) for the lstm kinds."""

CELLS: dict[str, Callable[[str, str], Cell]] = {
    "rnn": lambda activation, reset: Rnn(activation),
    "lstm": lambda activation, reset: Lstm(),
    "lstm-peephole": lambda activation, reset: Lstm(peephole=True),
    "lstm-coupled": lambda activation, reset: Lstm(coupled=True),
    "gru": lambda activation, reset: Gru(after=reset == "after"),
}


def make_cell(kind: str, activation: str = "tanh", reset: str = "before") -> Cell:
    """The cell of a name; only rnn uses `activation`, only gru uses `reset`."""
    if kind not in CELLS:
        raise unknown_name("recurrent cell", kind, CELLS)
    if activation not in ("tanh", "relu"):
        raise unknown_name("activation", activation, ("tanh", "relu"))
    if reset not in ("before", "after"):
        raise unknown_name("reset", reset, ("before", "after"))
    return CELLS[kind](activation, reset)


class Padding(NamedTuple):
    """Where the rows of a batch end."""

    after_TB1: Tensor  # 1 at steps after the last of a row, otherwise 0
    last_B: Tensor
    row_B: Tensor

    @classmethod
    def from_lengths(cls, lengths_B: Tensor, steps: int, dtype: torch.dtype) -> Padding:
        time_T = torch.arange(steps, device=lengths_B.device)
        after_TB1 = (time_T[:, None, None] >= lengths_B[:, None]).to(dtype)
        return cls(after_TB1, lengths_B - 1, torch.arange(len(lengths_B), device=lengths_B.device))


class RecurrentLayer(nn.Module):
    """The parameters of one layer, initialised for its cell."""

    def __init__(self, cell: Cell, input_size: int, hidden_size: int, recurrent_dropout: float) -> None:
        super().__init__()
        self.cell, self.recurrent_dropout = cell, recurrent_dropout
        rows = cell.blocks * hidden_size
        self.weight_input_GD = nn.Parameter(torch.empty(rows, input_size))
        self.weight_hidden_GH = nn.Parameter(torch.empty(rows, hidden_size))
        self.bias_G = nn.Parameter(torch.empty(rows))
        self.extra = self._make_extra(hidden_size)
        self.reset_parameters()

    def _make_extra(self, hidden_size: int) -> nn.Parameter | None:
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
            # A memory that initially keeps its contents learns long spans sooner (Gers 2000, Jozefowicz 2015).
            block = 1 if self.cell.coupled else 2
            self.bias_G[block * width : (block + 1) * width] = -1.0 if self.cell.coupled else 1.0

    def forward(self, inputs_TBD: Tensor, state: States, padding: Padding | None = None) -> tuple[Tensor, States]:
        """inputs_TBD and the state before them -> (hidden_TBU, the state after the last input of each row)."""
        gates_TBG = linear(inputs_TBD, self.weight_input_GD, self.bias_G)
        if padding is None:
            return self.recur(gates_TBG, state)
        if self.cell.hold_bias:
            hold_G = gates_TBG.new_tensor(self.cell.hold_bias).repeat_interleave(self.weight_hidden_GH.shape[1])
            gates_TBG = gates_TBG.addcmul_(padding.after_TB1, hold_G)
        hidden_TBU, (_, *rest) = self.recur(gates_TBG, state)
        return hidden_TBU, (hidden_TBU[padding.last_B, padding.row_B], *rest)

    def recur(self, gates_TBG: Tensor, state: States) -> tuple[Tensor, States]:
        """The input part of the gate sums, and the state before -> (hidden_TBU, the state after)."""
        weight_GU: Tensor = self.weight_hidden_GH
        if self.recurrent_dropout and self.training:
            weight_GU = functional.dropout(weight_GU, self.recurrent_dropout)
        elif len(gates_TBG) > 1 and gates_TBG.shape[1] <= KERNEL_ROWS and has_kernel(self.cell, gates_TBG):
            hidden_BTU, state = run_kernel(self.cell, gates_TBG.transpose(0, 1), weight_GU, self.extra, state)
            return hidden_BTU.transpose(0, 1), state
        return unroll(self.cell, gates_TBG, weight_GU, self.extra, state)

    def trace(self, inputs_TBD: Tensor, state: States) -> LayerPath:
        """Read inputs after a state, and keep the value of every gate."""
        gates_TBG = linear(inputs_TBD, self.weight_input_GD, self.bias_G)
        path_TBU, _, _ = self.cell.forward(gates_TBG, self.weight_hidden_GH, self.extra, state)  # activates the gates
        blocks = gates_TBG.unflatten(2, (self.cell.blocks, -1)).unbind(2)
        return LayerPath({name: blocks[place] for name, place in self.cell.gate_blocks.items()}, path_TBU)


class LayerPath(NamedTuple):
    """What one layer did while it read T inputs."""

    gates: dict[str, Tensor]  # by name, TBU
    states_TBU: Tensor  # T + 1 of them: before the first input, and after each


class Recurrence(nn.Module):
    """A stack of recurrent layers of one kind.

    `dropout` acts between layers and not after the last; with `variational`, all steps of a call share one mask.
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
                raise ConfigError(f"{name} is {rate}: choose a rate of at least 0 and below 1")
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

    @uncompiled  # a compiler would unroll the loop step by step
    def forward(
        self, inputs_BTD: Tensor, state: State | None = None, lengths_B: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """inputs_BTD and the state before them (None: zeros) -> (hidden_BTU, the state after them).

        With `lengths_B`, each at least 1, the state is the one after the last step of each row; outputs beyond it are
        undefined.
        """
        device = inputs_BTD.device.type
        if torch.is_autocast_enabled(device):
            # A sum over many steps needs full precision, and the products inside reject mixed types.
            with torch.autocast(device, enabled=False):
                return self._run_layers(inputs_BTD.float(), state, lengths_B)
        return self._run_layers(inputs_BTD, state, lengths_B)

    def _run_layers(self, inputs_BTD: Tensor, state: State | None, lengths_B: Tensor | None) -> tuple[Tensor, State]:
        state = self.start(len(inputs_BTD)) if state is None else state
        hidden_TBU = inputs_BTD.transpose(0, 1).contiguous()
        padding = None if lengths_B is None else Padding.from_lengths(lengths_B, len(hidden_TBU), hidden_TBU.dtype)
        after: State = []
        for depth, (layer, before) in enumerate(zip(self.layers, state, strict=True)):
            if depth:
                hidden_BTU = hidden_TBU.transpose(0, 1)
                hidden_BTU = drop(hidden_BTU, self.dropout, training=self.training, locked=self.variational)
                hidden_TBU = hidden_BTU.transpose(0, 1)
            hidden_TBU, last = layer(hidden_TBU, before, padding)
            after.append(last)
        return hidden_TBU.transpose(0, 1), after

    def trace(self, inputs_BTD: Tensor) -> list[LayerPath]:
        """The gates and states of every layer while it reads inputs from the empty state."""
        paths, inputs_TBD = list[LayerPath](), inputs_BTD.transpose(0, 1).contiguous()
        for layer, before in zip(self.layers, self.start(len(inputs_BTD)), strict=True):
            assert isinstance(layer, RecurrentLayer)
            paths.append(layer.trace(inputs_TBD, before))
            inputs_TBD = paths[-1].states_TBU[1:]
        return paths

    def gates(self, inputs_BTD: Tensor) -> Tensor:
        """The input part of the gate sums of the first layer, for all steps -> TBG."""
        first = self.layers[0]
        assert isinstance(first, RecurrentLayer)
        return linear(inputs_BTD.transpose(0, 1), first.weight_input_GD, first.bias_G)

    def advance(self, gates_BG: Tensor, state: State) -> tuple[Tensor, State]:
        """One step of all layers from the gate sums of the first, which may be overwritten -> (hidden_BU, the state).

        For loops in which an input depends on the last output, so that only `gates` can be computed for all steps.
        """
        hidden_1BU, after = gates_BG.unsqueeze(0), []
        for depth, (layer, before) in enumerate(zip(self.layers, state, strict=True)):
            assert isinstance(layer, RecurrentLayer)
            if depth:
                hidden_1BU, last = layer(drop(hidden_1BU, self.dropout, training=self.training), before)
            else:
                hidden_1BU, last = layer.recur(hidden_1BU, before)
            after.append(last)
        return hidden_1BU[0], after


def reverse(inputs_BT: Tensor, lengths_B: Tensor | None = None) -> Tensor:
    """Each row of BT or BTD in reverse order; padding stays at the end."""
    if lengths_B is None:
        return inputs_BT.flip(1)
    time_T = torch.arange(inputs_BT.shape[1], device=inputs_BT.device)
    from_end_BT = lengths_B[:, None] - 1 - time_T
    place_BT = torch.where(from_end_BT < 0, time_T, from_end_BT)
    return inputs_BT[torch.arange(len(inputs_BT), device=inputs_BT.device)[:, None], place_BT]


def spectral_radius(weight_UU: Tensor) -> float:
    """The largest absolute eigenvalue of a square matrix."""
    return float(torch.linalg.eigvals(weight_UU.detach().double()).abs().max())
