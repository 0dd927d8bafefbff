"""Recurrent layers over a source of any length, as a loop inside a graph.

Our own layers loop in Python, which a graph would unroll to one fixed length.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from chainrule.layers.recurrent.bidirectional import Bidirectional
from chainrule.layers.recurrent.stack import Recurrence, RecurrentLayer
from chainrule.layers.recurrent.unroll import States


def scan_layer(layer: RecurrentLayer, inputs_BSD: Tensor, mask_BS: Tensor, *, leftward: bool) -> tuple[Tensor, States]:
    """The hidden states BSU of one layer in one direction, and the state after its last token.

    States do not change at padding: read leftward, padding comes first, and the first state is zero.
    """
    from torch._higher_order_ops.scan import scan

    gates_SBG = functional.linear(inputs_BSD, layer.weight_input_GD, layer.bias_G).transpose(0, 1)
    real_SB1 = mask_BS.t().unsqueeze(2)
    if leftward:
        gates_SBG, real_SB1 = gates_SBG.flip(0), real_SB1.flip(0)

    def step(state: States, inputs: tuple[Tensor, Tensor]) -> tuple[States, Tensor]:
        gates_BG, real_B1 = inputs
        after = layer.cell.step(gates_BG.clone(), layer.weight_hidden_GH, layer.extra, state)
        kept = tuple(torch.where(real_B1, new_BU, old_BU) for new_BU, old_BU in zip(after, state, strict=True))
        return kept, kept[0].clone()

    units = layer.weight_hidden_GH.shape[1]
    first = tuple(inputs_BSD.new_zeros(inputs_BSD.shape[0], units) for _ in range(layer.cell.states))
    last, hidden_SBU = scan(step, first, (gates_SBG, real_SB1), dim=0)
    return (hidden_SBU.flip(0) if leftward else hidden_SBU).transpose(0, 1), last


def scan_recurrence(
    stack: Recurrence, inputs_BSD: Tensor, mask_BS: Tensor, *, leftward: bool
) -> tuple[Tensor, list[States]]:
    """All layers of a stack in one direction: the hidden states of the last, BSU, and the state of each."""
    hidden_BSU, after = inputs_BSD, []
    for layer in stack.layers:
        assert isinstance(layer, RecurrentLayer)
        hidden_BSU, last = scan_layer(layer, hidden_BSU, mask_BS, leftward=leftward)
        after.append(last)
    return hidden_BSU, after


def scan_bidirectional(stack: Bidirectional, inputs_BSD: Tensor, mask_BS: Tensor) -> tuple[Tensor, States]:
    """Layers of both directions: the hidden states of the last, BSU, and its state."""
    last: States = ()
    hidden_BSU = inputs_BSD
    for pair in zip(stack.rightward, stack.leftward, strict=True):
        sides = []
        for side, leftward in zip(pair, (False, True), strict=True):
            assert isinstance(side, Recurrence)
            hidden, states = scan_recurrence(side, hidden_BSU, mask_BS, leftward=leftward)
            sides.append((hidden, *states[0]))
        hidden_BSU, *joined = (torch.cat(parts, -1) for parts in zip(*sides, strict=True))
        last = tuple(joined)
    return hidden_BSU, last
