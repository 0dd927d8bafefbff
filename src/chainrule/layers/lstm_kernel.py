"""An LSTM that only answers, in one kernel: what a sentence takes is the arithmetic, not the calls that ask for it.

A row of a batch has few steps and each step little to do, so torch spends most of its time between them. Here rows are
walked four at a time, which reads the weights once for all four, and each ends where it ends: padding costs nothing.
The order of the gates is that of `cells.py`: g i f o. Legend: B rows, T time, H hidden width, G = 4·H.
"""

from __future__ import annotations

import numpy as np
import torch
from numba import njit
from torch import Tensor

QUICK = {"reassoc", "contract", "nsz", "arcp"}
"""What may make sums quicker; nothing promises that there is no infinity."""

TOGETHER = 4
"""Rows that are walked side by side."""

HALF, ONE, TWO = np.float32(0.5), np.float32(1), np.float32(2)
LOG2_E = np.float32(1.4426950408889634)
LARGEST = np.float32(126)
POWERS = tuple(np.float32(np.log(2) ** k / np.prod(np.arange(1, k + 1, dtype=np.float64))) for k in range(8))
"""The first terms of 2^r; from -1/2 to 1/2 what is left out is below 1e-8."""


def run_lstm(gates_BTG: Tensor, weight_GH: Tensor, lengths_B: Tensor, *, leftward: bool) -> tuple[Tensor, ...]:
    """What the gates get from the inputs -> (hidden BTH, 0 beyond each row's length; the last h BH; the last c BH).

    All float32 on the CPU, without gradients; `leftward`: each row is read from its own end.
    """
    B, T, G = gates_BTG.shape
    hidden_BTH = np.empty((B, T, G // 4), np.float32)
    last_BH, cell_BH = np.empty((B, G // 4), np.float32), np.empty((B, G // 4), np.float32)
    lengths = lengths_B.numpy()
    _walk(
        gates_BTG.contiguous().numpy(), weight_GH.contiguous().numpy(), lengths, leftward, hidden_BTH, last_BH, cell_BH
    )
    return torch.from_numpy(hidden_BTH), torch.from_numpy(last_BH), torch.from_numpy(cell_BH)


@njit(cache=True, nogil=True, fastmath=QUICK)
def _walk(gates, weight, lengths, leftward, hidden, last, cell):  # type: ignore[no-untyped-def]
    """Fill BTH with the states, BH with the last ones."""
    rows, steps, width = hidden.shape
    sums = np.empty((TOGETHER, 4 * width), np.float32)
    scratch = np.empty(4 * width, np.float32), np.empty(4 * width, np.int32)
    h, c = np.empty((TOGETHER, width), np.float32), np.empty((TOGETHER, width), np.float32)
    for first in range(0, rows, TOGETHER):
        count = min(TOGETHER, rows - first)
        h[:], c[:] = 0, 0
        for t in range(lengths[first : first + count].max()):
            if count == 1:
                _dots(weight, h[0], sums[0])
            else:
                _dots_together(weight, h, sums)
            for row in range(count):
                length = lengths[first + row]
                if t < length:
                    at = length - 1 - t if leftward else t
                    _step(gates[first + row, at], sums[row], scratch, h[row], c[row])
                    hidden[first + row, at] = h[row]
        for row in range(count):
            hidden[first + row, lengths[first + row] : steps] = 0
            last[first + row], cell[first + row] = h[row], c[row]


@njit(cache=True, nogil=True, fastmath=QUICK)
def _dots(weight, h, sums):  # type: ignore[no-untyped-def]
    for gate in range(len(weight)):
        own = weight[gate]
        total = np.float32(0)
        for j in range(len(h)):
            total += own[j] * h[j]
        sums[gate] = total


@njit(cache=True, nogil=True, fastmath=QUICK)
def _dots_together(weight, h, sums):  # type: ignore[no-untyped-def]
    h0, h1, h2, h3 = h[0], h[1], h[2], h[3]
    for gate in range(len(weight)):
        own = weight[gate]
        a, b, c, d = np.float32(0), np.float32(0), np.float32(0), np.float32(0)
        for j in range(len(own)):
            a += own[j] * h0[j]
            b += own[j] * h1[j]
            c += own[j] * h2[j]
            d += own[j] * h3[j]
        sums[0, gate], sums[1, gate], sums[2, gate], sums[3, gate] = a, b, c, d


@njit(cache=True, nogil=True, fastmath=QUICK)
def _step(inputs, sums, scratch, h, c):  # type: ignore[no-untyped-def]
    """One step of one row: c = f∘c + i∘tanh(g), h = o∘tanh(c), where tanh(x) = 2·σ(2x) - 1."""
    squashed, bits = scratch
    width = len(h)
    for gate in range(len(sums)):
        sums[gate] += inputs[gate]
    for j in range(width):
        sums[j] *= TWO
    _squash(sums, squashed, bits, 4 * width)
    for j in range(width):
        c[j] = squashed[2 * width + j] * c[j] + squashed[width + j] * (TWO * squashed[j] - ONE)
        sums[j] = TWO * c[j]
    _squash(sums, squashed, bits, width)
    for j in range(width):
        h[j] = squashed[3 * width + j] * (TWO * squashed[j] - ONE)


@njit(cache=True, nogil=True, fastmath=QUICK)
def _squash(values, squashed, bits, count):  # type: ignore[no-untyped-def]
    """σ of the first values: exp by a power of 2, which is written into the exponent, and a polynomial for the rest."""
    _, p1, p2, p3, p4, p5, p6, p7 = POWERS
    for j in range(count):
        power = min(max(-values[j] * LOG2_E, -LARGEST), LARGEST)
        whole = np.floor(power + HALF)
        r = power - whole
        squashed[j] = ONE + r * (p1 + r * (p2 + r * (p3 + r * (p4 + r * (p5 + r * (p6 + r * p7))))))
        bits[j] = (np.int32(whole) + np.int32(127)) << np.int32(23)
    scale = bits.view(np.float32)
    for j in range(count):
        squashed[j] = ONE / (ONE + squashed[j] * scale[j])
