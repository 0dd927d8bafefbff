"""How attention learns the order of tokens: sinusoidal or learned vectors added to embeddings, or rotary positions."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from chainrule.base.parameters import HasTables


def sinusoidal_table(length: int, width: int) -> Tensor:
    """sin and cos of t / 10000^(2i/D), interleaved, as in "Attention Is All You Need" -> (length, D)."""
    position = torch.arange(length, dtype=torch.float32)[:, None]
    frequency = torch.exp(torch.arange(0, width, 2, dtype=torch.float32) * (-math.log(10000.0) / width))
    table = torch.zeros(length, width)
    table[:, 0::2] = torch.sin(position * frequency)
    table[:, 1::2] = torch.cos(position * frequency[: width // 2])
    return table


class AddedPositions(HasTables, nn.Module):
    """A vector for each position of the window, added to the embedding: learned, or the sinusoidal table."""

    tables = ("table_CD",)
    table_CD: Tensor  # (window, D)

    def __init__(self, kind: str, window: int, width: int) -> None:
        super().__init__()
        if kind == "learned":
            self.table_CD = nn.Parameter(torch.randn(window, width) * 0.02)
        else:
            self.register_buffer("table_CD", sinusoidal_table(window, width), persistent=False)

    def forward(self, embedded_BTD: Tensor, offset: int) -> Tensor:
        """Add the vectors of the positions from `offset` on -> BTD."""
        return embedded_BTD + self.table_CD[offset : offset + embedded_BTD.shape[1]]


class Rotary(nn.Module):
    """Rotates queries and keys by an angle that grows with the position, so that scores depend on distances only.

    Su et al., "RoFormer", 2021. Components i and i + E/2 form one plane, so a rotation is two products with the tables.
    """

    cos_CE: Tensor  # (window, E)
    sin_CE: Tensor  # (window, E)

    def __init__(self, window: int, head_width: int, base: float = 10000.0) -> None:
        super().__init__()
        frequency = base ** (-torch.arange(0, head_width, 2, dtype=torch.float32) / head_width)
        angle = torch.outer(torch.arange(window, dtype=torch.float32), frequency).repeat(1, 2)
        sign = torch.cat([-torch.ones(head_width // 2), torch.ones(head_width // 2)])
        self.register_buffer("cos_CE", angle.cos(), persistent=False)
        self.register_buffer("sin_CE", angle.sin() * sign, persistent=False)

    def forward(self, heads_BHTE: Tensor, offset: int) -> Tensor:
        """Rotate queries or keys at the positions from `offset` on -> BHTE."""
        end = offset + heads_BHTE.shape[2]
        swapped = heads_BHTE.roll(heads_BHTE.shape[-1] // 2, -1)
        return torch.addcmul(heads_BHTE * self.cos_CE[offset:end], swapped, self.sin_CE[offset:end])
