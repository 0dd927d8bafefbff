"""An LSTM or a GRU that only answers, in one kernel: what a sentence takes is the arithmetic, not the calls for it.

A row of a batch has few steps and each step little to do, so torch spends most of its time between them. Here rows are
walked four at a time, which reads the weights once for all four, and each ends where it ends: padding costs nothing.
The order of the gates is that of `cells.py`: g i f o, and n z r. Legend: B rows, T time, H hidden width, G gate rows.
"""

from __future__ import annotations

import numpy as np
import torch
from numba import njit
from torch import Tensor

from chainrule.layers.recurrent.cells import Gru, Lstm
from chainrule.layers.recurrent.unroll import Cell, States

QUICK = {"reassoc", "contract", "nsz", "arcp"}
"""What may make sums quicker; nothing promises that there is no infinity."""

TOGETHER = 4
"""Rows that are walked side by side."""

HALF, ONE, TWO = np.float32(0.5), np.float32(1), np.float32(2)
_NOTHING = np.empty(0, np.float32)
LOG2_E = np.float32(1.4426950408889634)
LARGEST = np.float32(126)
POWERS = tuple(np.float32(np.log(2) ** k / np.prod(np.arange(1, k + 1, dtype=np.float64))) for k in range(8))
"""The first terms of 2^r; from -1/2 to 1/2 what is left out is below 1e-8."""


def serves(cell: Cell, inputs: Tensor) -> bool:
    """Whether the kernel has such a cell and such numbers, and no gradient is wanted."""
    plain = isinstance(cell, Gru) or (isinstance(cell, Lstm) and not cell.peephole and not cell.coupled)
    return plain and inputs.device.type == "cpu" and inputs.dtype == torch.float32 and not torch.is_grad_enabled()


def run(
    cell: Cell,
    gates_BTG: Tensor,
    weight_GH: Tensor,
    extra_H: Tensor | None,
    state: States | None = None,
    lengths_B: Tensor | None = None,
    *,
    leftward: bool = False,
) -> tuple[Tensor, States]:
    """What the gates get from the inputs, and the state before (None: zeros) -> (hidden BTH, the state after).

    Rows end after `lengths_B` steps (None: all have T); the state is that after each row's own last one, and beyond
    there are zeros. `leftward`: each row is read from its own end.
    """
    B, T, G = gates_BTG.shape
    H = G // cell.blocks
    lengths = np.full(B, T) if lengths_B is None else lengths_B.numpy()
    gates, weight = gates_BTG.contiguous().numpy(), weight_GH.contiguous().numpy()
    hidden = np.empty((B, T, H), np.float32)
    if state is None:
        after = [np.zeros((B, H), np.float32) for _ in range(cell.states)]
    else:
        after = [part.numpy().copy() for part in state]
    if isinstance(cell, Gru):
        added = _NOTHING if extra_H is None else extra_H.numpy()
        _walk_gru(gates, weight, added, lengths, leftward, hidden, *after)
    else:
        _walk_lstm(gates, weight, lengths, leftward, hidden, *after)
    return torch.from_numpy(hidden), tuple(map(torch.from_numpy, after))


@njit(cache=True, nogil=True, fastmath=QUICK)
def _walk_lstm(gates, weight, lengths, leftward, hidden, last, cell):  # type: ignore[no-untyped-def]
    """Fill BTH with the states; BH come with the first states and leave with the last ones."""
    rows, steps, width = hidden.shape
    sums = np.empty((TOGETHER, 4 * width), np.float32)
    scratch = np.empty(4 * width, np.float32), np.empty(4 * width, np.int32)
    h = np.zeros((TOGETHER, width), np.float32)
    for first in range(0, rows, TOGETHER):
        count = min(TOGETHER, rows - first)
        h[:count] = last[first : first + count]
        for t in range(lengths[first : first + count].max()):
            _dots(weight, h, sums, count)
            for row in range(count):
                length = lengths[first + row]
                if t < length:
                    at = length - 1 - t if leftward else t
                    _step_lstm(gates[first + row, at], sums[row], scratch, h[row], cell[first + row])
                    hidden[first + row, at] = h[row]
        for row in range(count):
            hidden[first + row, lengths[first + row] : steps] = 0
            last[first + row] = h[row]


@njit(cache=True, nogil=True, fastmath=QUICK)
def _walk_gru(gates, weight, extra, lengths, leftward, hidden, last):  # type: ignore[no-untyped-def]
    """The same for a GRU; with `extra`, the reset gate acts after the candidate's product, and else before."""
    rows, steps, width = hidden.shape
    candidate, gating = weight[:width], weight[width:]
    sums, inner = np.empty((TOGETHER, 2 * width), np.float32), np.empty((TOGETHER, width), np.float32)
    scratch = np.empty(2 * width, np.float32), np.empty(2 * width, np.int32)
    h, reset = np.zeros((TOGETHER, width), np.float32), np.zeros((TOGETHER, width), np.float32)
    before = len(extra) == 0
    for first in range(0, rows, TOGETHER):
        count = min(TOGETHER, rows - first)
        h[:count] = last[first : first + count]
        for t in range(lengths[first : first + count].max()):
            _dots(gating, h, sums, count)
            if not before:
                _dots(candidate, h, inner, count)
            for row in range(count):
                length = lengths[first + row]
                at = length - 1 - t if leftward else t
                if t < length:
                    _open_gru(gates[first + row, at, width:], sums[row], scratch)
                    for j in range(width):
                        if before:
                            reset[row, j] = sums[row, width + j] * h[row, j]
                        else:
                            inner[row, j] = sums[row, width + j] * (inner[row, j] + extra[j])
            if before:
                _dots(candidate, reset, inner, count)
            for row in range(count):
                length = lengths[first + row]
                at = length - 1 - t if leftward else t
                if t < length:
                    _close_gru(gates[first + row, at, :width], inner[row], sums[row], scratch, h[row])
                    hidden[first + row, at] = h[row]
        for row in range(count):
            hidden[first + row, lengths[first + row] : steps] = 0
            last[first + row] = h[row]


@njit(cache=True, nogil=True, fastmath=QUICK)
def _dots(weight, h, sums, count):  # type: ignore[no-untyped-def]
    """Every row of the weights with the first `count` of the states."""
    if count == 1:
        _dots_alone(weight, h[0], sums[0])
    else:
        _dots_together(weight, h, sums)


@njit(cache=True, nogil=True, fastmath=QUICK)
def _dots_alone(weight, h, sums):  # type: ignore[no-untyped-def]
    """Four rows of the weights at a time, as their sums do not wait for one another."""
    whole = len(weight) - len(weight) % 4
    for gate in range(0, whole, 4):
        w0, w1, w2, w3 = weight[gate], weight[gate + 1], weight[gate + 2], weight[gate + 3]
        a, b, c, d = np.float32(0), np.float32(0), np.float32(0), np.float32(0)
        for j in range(len(h)):
            a += w0[j] * h[j]
            b += w1[j] * h[j]
            c += w2[j] * h[j]
            d += w3[j] * h[j]
        sums[gate], sums[gate + 1], sums[gate + 2], sums[gate + 3] = a, b, c, d
    for gate in range(whole, len(weight)):
        sums[gate] = np.sum(weight[gate] * h)


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
def _step_lstm(inputs, sums, scratch, h, c):  # type: ignore[no-untyped-def]
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
def _open_gru(inputs, sums, scratch):  # type: ignore[no-untyped-def]
    """The gates z and r of one row, in place of their sums."""
    squashed, bits = scratch
    for gate in range(len(sums)):
        sums[gate] += inputs[gate]
    _squash(sums, squashed, bits, len(sums))
    sums[:] = squashed


@njit(cache=True, nogil=True, fastmath=QUICK)
def _close_gru(inputs, inner, gates, scratch, h):  # type: ignore[no-untyped-def]
    """h = n + z∘(h - n), where n = tanh(inputs + inner)."""
    squashed, bits = scratch
    for j in range(len(h)):
        inner[j] = TWO * (inner[j] + inputs[j])
    _squash(inner, squashed, bits, len(h))
    for j in range(len(h)):
        n = TWO * squashed[j] - ONE
        h[j] = n + gates[j] * (h[j] - n)


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
