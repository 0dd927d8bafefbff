"""Stacks of recurrent layers: one module for rnn, lstm, lstm-peephole, lstm-coupled and gru.

The arithmetic of the cells, and their back-propagation through time, is in `cells.py`; here are the parameters, the
stacking, and the three dropouts: between layers, locked over time (Gal & Ghahramani 2016), and on the
hidden-to-hidden weights (Wan et al. 2013, as in the AWD-LSTM of Merity et al. 2018).

Shapes: B batch, T time, D input width, H hidden width, G gate rows (blocks × H, in the order told in `cells.py`).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from chainrule.errors import ConfigError, unknown_name
from chainrule.graphs import left_out
from chainrule.layers.cells import Gru, Lstm, Rnn
from chainrule.layers.dropout import drop
from chainrule.layers.unroll import Cell, States, unroll

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

    def forward(self, inputs_TBD: Tensor, state: States) -> tuple[Tensor, States]:
        """inputs_TBD and the state before them -> (hidden_TBH, the state after them)."""
        gates_TBG = functional.linear(inputs_TBD, self.weight_input_GD, self.bias_G)
        weight_GH: Tensor = self.weight_hidden_GH
        if self.recurrent_dropout and self.training:
            weight_GH = functional.dropout(weight_GH, self.recurrent_dropout)
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
        self.kind, self.hidden_size = kind, hidden_size
        self.dropout, self.variational = dropout, variational
        widths = [input_size] + [hidden_size] * (layers - 1)
        self.layers = nn.ModuleList(RecurrentLayer(cell, width, hidden_size, recurrent_dropout) for width in widths)

    def start(self, batch: int) -> State:
        """The zero state of `batch` rows, on the device and in the type of the weights."""
        layers = [layer for layer in self.layers if isinstance(layer, RecurrentLayer)]
        return [
            tuple(layer.bias_G.new_zeros(batch, self.hidden_size) for _ in range(layer.cell.states)) for layer in layers
        ]

    @left_out  # a graph would unroll the loop step by step
    def forward(self, inputs_BTD: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """inputs_BTD and the state before them (None: zeros) -> (hidden_BTH, the state after them)."""
        device = inputs_BTD.device.type
        if torch.is_autocast_enabled(device):
            # A sum over many steps needs the whole precision; the products inside would also reject mixed types.
            with torch.autocast(device, enabled=False):
                return self._run(inputs_BTD.float(), state)
        return self._run(inputs_BTD, state)

    def _run(self, inputs_BTD: Tensor, state: State | None) -> tuple[Tensor, State]:
        state = self.start(len(inputs_BTD)) if state is None else state
        hidden_TBH = inputs_BTD.transpose(0, 1).contiguous()
        after: State = []
        for depth, (layer, before) in enumerate(zip(self.layers, state, strict=True)):
            if depth:
                hidden_BTH = hidden_TBH.transpose(0, 1)
                hidden_BTH = drop(hidden_BTH, self.dropout, training=self.training, locked=self.variational)
                hidden_TBH = hidden_BTH.transpose(0, 1)
            hidden_TBH, last = layer(hidden_TBH, before)
            after.append(last)
        return hidden_TBH.transpose(0, 1), after


def spectral_radius(weight_HH: Tensor) -> float:
    """The greatest absolute eigenvalue of a square matrix."""
    return float(torch.linalg.eigvals(weight_HH.detach().double()).abs().max())
