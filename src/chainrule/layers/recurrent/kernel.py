"""Inference of an LSTM or a GRU in one kernel, without the cost of a torch call per operation and step.

A row has few steps, and each step needs little arithmetic, so torch spends most of its time between operations. The
kernel processes four rows at a time, which reads the weights once for all four, and ends each row at its length:
padding costs nothing. The gates are in the order of `cells.py`: g i f o, and n z r.
"""

from __future__ import annotations

import numpy as np
import torch
from numba import njit
from torch import Tensor

from chainrule.base.kernels import FAST_MATH, inference_kernel_supports
from chainrule.layers.recurrent.cells import Gru, Lstm
from chainrule.layers.recurrent.unroll import Cell, States

ROWS_AT_ONCE = 4
"""Rows that are processed side by side."""

HALF, ONE, TWO = np.float32(0.5), np.float32(1), np.float32(2)
_NO_BIAS = np.empty(0, np.float32)
LOG2_E = np.float32(1.4426950408889634)
LARGEST = np.float32(126)
POWERS = tuple(np.float32(np.log(2) ** k / np.prod(np.arange(1, k + 1, dtype=np.float64))) for k in range(8))
"""Coefficients of the Taylor series of 2^r; between -1/2 and 1/2 the error is below 1e-8."""


def has_kernel(cell: Cell, inputs: Tensor) -> bool:
    """Whether the kernel implements this cell for such inputs."""
    plain = isinstance(cell, Gru) or (isinstance(cell, Lstm) and not cell.peephole and not cell.coupled)
    return plain and inference_kernel_supports(inputs)


def run_kernel(
    cell: Cell,
    gates_BTG: Tensor,
    weight_GU: Tensor,
    extra_U: Tensor | None,
    state: States | None = None,
    lengths_B: Tensor | None = None,
) -> tuple[Tensor, States]:
    """The input part of the gate sums, and the state before (None: zeros) -> (hidden BTU, the state after).

    Rows end after `lengths_B` steps (None: all have T). The state is the one after the last step of each row; hidden
    states beyond it are zero.
    """
    B, T, G = gates_BTG.shape
    U = G // cell.blocks
    lengths = np.full(B, T) if lengths_B is None else lengths_B.numpy()
    gates, weight = gates_BTG.contiguous().numpy(), weight_GU.contiguous().numpy()
    hidden = np.empty((B, T, U), np.float32)
    if state is None:
        after = [np.zeros((B, U), np.float32) for _ in range(cell.states)]
    else:
        after = [part.numpy().copy() for part in state]
    if isinstance(cell, Gru):
        added = _NO_BIAS if extra_U is None else extra_U.numpy()
        _run_gru(gates, weight, added, lengths, hidden, *after)
    else:
        _run_lstm(gates, weight, lengths, hidden, *after)
    return torch.from_numpy(hidden), tuple(map(torch.from_numpy, after))


@njit(cache=True, nogil=True, fastmath=FAST_MATH)
def _run_lstm(gates, weight, lengths, hidden, last, cell):  # type: ignore[no-untyped-def]
    """Fill `hidden` BTU with the states; `last` and `cell` BU hold the states before, and then those after."""
    rows, steps, width = hidden.shape
    sums = np.empty((ROWS_AT_ONCE, 4 * width), np.float32)
    scratch = np.empty(4 * width, np.float32), np.empty(4 * width, np.int32)
    h = np.zeros((ROWS_AT_ONCE, width), np.float32)
    for first in range(0, rows, ROWS_AT_ONCE):
        count = min(ROWS_AT_ONCE, rows - first)
        h[:count] = last[first : first + count]
        for t in range(lengths[first : first + count].max()):
            _product(weight, h, sums, count)
            for row in range(count):
                length = lengths[first + row]
                if t < length:
                    _step_lstm(gates[first + row, t], sums[row], scratch, h[row], cell[first + row])
                    hidden[first + row, t] = h[row]
        for row in range(count):
            hidden[first + row, lengths[first + row] : steps] = 0
            last[first + row] = h[row]


@njit(cache=True, nogil=True, fastmath=FAST_MATH)
def _run_gru(gates, weight, extra, lengths, hidden, last):  # type: ignore[no-untyped-def]
    """The same for a GRU; with `extra`, the reset gate acts after the product of the candidate, otherwise before."""
    rows, steps, width = hidden.shape
    candidate, gating = weight[:width], weight[width:]
    sums, inner = np.empty((ROWS_AT_ONCE, 2 * width), np.float32), np.empty((ROWS_AT_ONCE, width), np.float32)
    scratch = np.empty(2 * width, np.float32), np.empty(2 * width, np.int32)
    h, reset = np.zeros((ROWS_AT_ONCE, width), np.float32), np.zeros((ROWS_AT_ONCE, width), np.float32)
    before = len(extra) == 0
    for first in range(0, rows, ROWS_AT_ONCE):
        count = min(ROWS_AT_ONCE, rows - first)
        h[:count] = last[first : first + count]
        for t in range(lengths[first : first + count].max()):
            _product(gating, h, sums, count)
            if not before:
                _product(candidate, h, inner, count)
            for row in range(count):
                length = lengths[first + row]
                if t < length:
                    _gates_gru(gates[first + row, t, width:], sums[row], scratch)
                    for j in range(width):
                        if before:
                            reset[row, j] = sums[row, width + j] * h[row, j]
                        else:
                            inner[row, j] = sums[row, width + j] * (inner[row, j] + extra[j])
            if before:
                _product(candidate, reset, inner, count)
            for row in range(count):
                length = lengths[first + row]
                if t < length:
                    _state_gru(gates[first + row, t, :width], inner[row], sums[row], scratch, h[row])
                    hidden[first + row, t] = h[row]
        for row in range(count):
            hidden[first + row, lengths[first + row] : steps] = 0
            last[first + row] = h[row]


@njit(cache=True, nogil=True, fastmath=FAST_MATH)
def _product(weight, h, sums, count):  # type: ignore[no-untyped-def]
    """The product of the weights and the first `count` states."""
    if count == 1:
        _product_of_one(weight, h[0], sums[0])
    else:
        _product_of_four(weight, h, sums)


@njit(cache=True, nogil=True, fastmath=FAST_MATH)
def _product_of_one(weight, h, sums):  # type: ignore[no-untyped-def]
    """Four rows of the weights at a time, whose sums are independent and run in parallel."""
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


@njit(cache=True, nogil=True, fastmath=FAST_MATH)
def _product_of_four(weight, h, sums):  # type: ignore[no-untyped-def]
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


@njit(cache=True, nogil=True, fastmath=FAST_MATH)
def _step_lstm(inputs, sums, scratch, h, c):  # type: ignore[no-untyped-def]
    """One step of one row: c = f∘c + i∘tanh(g), h = o∘tanh(c), where tanh(x) = 2·σ(2x) - 1."""
    sigmoids, bits = scratch
    width = len(h)
    for gate in range(len(sums)):
        sums[gate] += inputs[gate]
    for j in range(width):
        sums[j] *= TWO
    _sigmoid(sums, sigmoids, bits, 4 * width)
    for j in range(width):
        c[j] = sigmoids[2 * width + j] * c[j] + sigmoids[width + j] * (TWO * sigmoids[j] - ONE)
        sums[j] = TWO * c[j]
    _sigmoid(sums, sigmoids, bits, width)
    for j in range(width):
        h[j] = sigmoids[3 * width + j] * (TWO * sigmoids[j] - ONE)


@njit(cache=True, nogil=True, fastmath=FAST_MATH)
def _gates_gru(inputs, sums, scratch):  # type: ignore[no-untyped-def]
    """Replace the sums of one row by its gates z and r."""
    sigmoids, bits = scratch
    for gate in range(len(sums)):
        sums[gate] += inputs[gate]
    _sigmoid(sums, sigmoids, bits, len(sums))
    sums[:] = sigmoids


@njit(cache=True, nogil=True, fastmath=FAST_MATH)
def _state_gru(inputs, inner, gates, scratch, h):  # type: ignore[no-untyped-def]
    """h = n + z∘(h - n), where n = tanh(inputs + inner)."""
    sigmoids, bits = scratch
    for j in range(len(h)):
        inner[j] = TWO * (inner[j] + inputs[j])
    _sigmoid(inner, sigmoids, bits, len(h))
    for j in range(len(h)):
        n = TWO * sigmoids[j] - ONE
        h[j] = n + gates[j] * (h[j] - n)


@njit(cache=True, nogil=True, fastmath=FAST_MATH)
def _sigmoid(values, sigmoids, bits, count):  # type: ignore[no-untyped-def]
    """σ of the first `count` values; exp is an integer power of 2, written into the exponent, times a polynomial."""
    _, p1, p2, p3, p4, p5, p6, p7 = POWERS
    for j in range(count):
        power = min(max(-values[j] * LOG2_E, -LARGEST), LARGEST)
        whole = np.floor(power + HALF)
        r = power - whole
        sigmoids[j] = ONE + r * (p1 + r * (p2 + r * (p3 + r * (p4 + r * (p5 + r * (p6 + r * p7))))))
        bits[j] = (np.int32(whole) + np.int32(127)) << np.int32(23)
    scale = bits.view(np.float32)
    for j in range(count):
        sigmoids[j] = ONE / (ONE + sigmoids[j] * scale[j])
