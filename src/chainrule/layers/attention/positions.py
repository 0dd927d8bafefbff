"""Where a token stands: three ways of telling attention about order.

Legend: B batch, T time, H heads, D width, C the longest window, E width of a head.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

KINDS = ("rotary", "sinusoidal", "learned", "none")


def sinusoidal_table(length: int, width: int) -> Tensor:
    """sin and cos of t / 10000^(2i/D), interleaved, as in "Attention Is All You Need" -> CD."""
    position_C1 = torch.arange(length, dtype=torch.float32)[:, None]
    frequency = torch.exp(torch.arange(0, width, 2, dtype=torch.float32) * (-math.log(10000.0) / width))
    table_CD = torch.zeros(length, width)
    table_CD[:, 0::2] = torch.sin(position_C1 * frequency)
    table_CD[:, 1::2] = torch.cos(position_C1 * frequency[: width // 2])
    return table_CD


class AddedPositions(nn.Module):
    """A vector for each place in the window, added to the embedding; learned, or the sinusoidal table."""

    table_CD: Tensor

    def __init__(self, kind: str, window: int, width: int) -> None:
        super().__init__()
        if kind == "learned":
            self.table_CD = nn.Parameter(torch.randn(window, width) * 0.02)
        else:
            self.register_buffer("table_CD", sinusoidal_table(window, width), persistent=False)

    def forward(self, embedded_BTD: Tensor, offset: int) -> Tensor:
        return embedded_BTD + self.table_CD[offset : offset + embedded_BTD.shape[1]]


class Rotary(nn.Module):
    """Turns queries and keys by an angle that grows with the place: scores then see distances only (RoFormer, 2021).

    Components i and i + E/2 form one plane, so a rotation is two products with the tables.
    """

    cos_CE: Tensor
    sin_CE: Tensor

    def __init__(self, window: int, head_width: int, base: float = 10000.0) -> None:
        super().__init__()
        frequency = base ** (-torch.arange(0, head_width, 2, dtype=torch.float32) / head_width)
        angle = torch.outer(torch.arange(window, dtype=torch.float32), frequency).repeat(1, 2)
        sign = torch.cat([-torch.ones(head_width // 2), torch.ones(head_width // 2)])
        self.register_buffer("cos_CE", angle.cos(), persistent=False)
        self.register_buffer("sin_CE", angle.sin() * sign, persistent=False)

    def forward(self, heads_BHTE: Tensor, offset: int) -> Tensor:
        end = offset + heads_BHTE.shape[2]
        swapped = heads_BHTE.roll(heads_BHTE.shape[-1] // 2, -1)
        return torch.addcmul(heads_BHTE * self.cos_CE[offset:end], swapped, self.sin_CE[offset:end])
