"""Recurrent layers that read a text from both sides."""

from __future__ import annotations

from typing import Self

import numpy as np
import torch
from torch import Tensor, nn

from chainrule.base.kernels import inference_kernel_supports
from chainrule.engines.decode.recurrent_encoder import CompiledEncoder, EncoderWeights
from chainrule.layers.compiled import PackedModel, as_array
from chainrule.layers.compiled_recurrence import cell_name, layer_weights
from chainrule.layers.dropout import drop
from chainrule.layers.recurrent.stack import Recurrence, State, reverse


class Bidirectional(nn.Module):
    """Layers of two recurrences each, one from the left and one from the right, whose states are concatenated."""

    def __init__(
        self, kind: str, input_size: int, hidden_size: int, layers: int = 1, dropout: float = 0.0, reset: str = "before"
    ) -> None:
        """`hidden_size` is the width of one direction."""
        super().__init__()
        self.dropout, self._packed = dropout, PackedModel()
        widths = [input_size] + [2 * hidden_size] * (layers - 1)
        self.rightward = nn.ModuleList(Recurrence(kind, width, hidden_size, reset=reset) for width in widths)
        self.leftward = nn.ModuleList(Recurrence(kind, width, hidden_size, reset=reset) for width in widths)

    def forward(self, inputs_BTD: Tensor, lengths_B: Tensor | None = None) -> tuple[Tensor, State]:
        """inputs_BTD -> (hidden_BTU, the state of each layer after the last step of either direction).

        U is twice the width of a direction. Rows end after `lengths_B` steps, each at least 1 (None: all have T).
        """
        engine = self._packed.engine(self, "float32", self.compiled)
        if engine is not None and inference_kernel_supports(inputs_BTD):
            return self._read_compiled(engine, inputs_BTD, lengths_B)
        hidden_BTU, after = inputs_BTD, []
        for depth, (rightward, leftward) in enumerate(zip(self.rightward, self.leftward, strict=True)):
            if depth:
                hidden_BTU = drop(hidden_BTU, self.dropout, training=self.training)
            right_BTU, (right,) = rightward(hidden_BTU, None, lengths_B)
            left_BTU, (left,) = leftward(reverse(hidden_BTU, lengths_B), None, lengths_B)
            hidden_BTU = torch.cat([right_BTU, reverse(left_BTU, lengths_B)], 2)
            after.append(tuple(torch.cat(parts, 1) for parts in zip(right, left, strict=True)))
        return hidden_BTU, after

    def _read_compiled(
        self, engine: CompiledEncoder, inputs_BTD: Tensor, lengths_B: Tensor | None
    ) -> tuple[Tensor, State]:
        """The same by the engine; states beyond the end of a row are zero."""
        count_B = np.full(len(inputs_BTD), inputs_BTD.shape[1]) if lengths_B is None else as_array(lengths_B)
        states_BTE, last_BLXE = engine.read(as_array(inputs_BTD), count_B)
        after = [
            tuple(torch.from_numpy(part_BXE[:, k]) for k in range(engine.states))
            for part_BXE in last_BLXE.swapaxes(0, 1)
        ]
        return torch.from_numpy(states_BTE), after

    def compiled(self) -> EncoderWeights:
        """The parameters for the engine."""
        sides = [side for side in (*self.rightward, *self.leftward) if isinstance(side, Recurrence)]
        cells, depth = [layer for side in sides for layer in layer_weights(side)], len(self.rightward)
        return EncoderWeights(cell_name(sides[0]), list(zip(cells[:depth], cells[depth:], strict=True)))

    def train(self, mode: bool = True) -> Self:
        """What is packed is forgotten: see `PackedModel`."""
        self._packed.forget()
        return super().train(mode)
