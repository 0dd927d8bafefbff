"""Element-wise parts of a Transformer block and of a softmax, each in one pass over its arrays.

Torch computes them as several operations, each of which writes a new array. For a batch that leaves the caches this
takes as long as a matrix product. These kernels run on one core, beside those of other processes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from chainrule.base.kernels import FAST_MATH
from chainrule.engines.decode.compiling import compiled as exact
from chainrule.engines.decode.functions import ONE, ZERO, exponential

compiled: Any = njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST_MATH)
"""Decorator of a kernel; sums may use vector instructions."""


# LayerNorm without biases


@compiled
def normalise(inputs_ND, weight_D, eps, outputs_ND, mean_N, factor_N):  # type: ignore[no-untyped-def]
    """outputs = (inputs - mean) · factor · weight, with factor = 1 / √(variance + eps)."""
    N, D = inputs_ND.shape
    size = np.float32(D)
    for n in range(N):
        line, out = inputs_ND[n], outputs_ND[n]
        total = ZERO
        for j in range(D):
            total += line[j]
        mean = total / size
        squares = ZERO
        for j in range(D):
            squares += (line[j] - mean) * (line[j] - mean)
        factor = ONE / np.sqrt(squares / size + np.float32(eps))
        for j in range(D):
            out[j] = (line[j] - mean) * factor * weight_D[j]
        mean_N[n], factor_N[n] = mean, factor


@compiled
def normalise_backward(inputs_ND, weight_D, mean_N, factor_N, grad_ND, skip_ND, out_ND, weight_grad_D):  # type: ignore[no-untyped-def]
    """The gradient of the inputs, given that of the outputs, plus `skip_ND`, which goes round the norm.

    Adds to the gradient of the weight. `out_ND` may be `grad_ND`.
    """
    N, D = inputs_ND.shape
    size = np.float32(D)
    for n in range(N):
        line, grad, skip, out = inputs_ND[n], grad_ND[n], skip_ND[n], out_ND[n]
        mean, factor = mean_N[n], factor_N[n]
        total, along = ZERO, ZERO
        for j in range(D):
            unit = (line[j] - mean) * factor
            part = grad[j] * weight_D[j]
            total += part
            along += part * unit
            weight_grad_D[j] += grad[j] * unit
        total /= size
        along /= size
        for j in range(D):
            unit = (line[j] - mean) * factor
            out[j] = skip[j] + factor * (grad[j] * weight_D[j] - total - unit * along)


# Softmax


@exact
def exponentiate(scores_MV, bias_V, highest_M, sums_M):  # type: ignore[no-untyped-def]
    """Replace scores by e^(score + bias - highest of the row), and write the highest and the sum of each row.

    `bias_V` may be empty.
    """
    for m in range(len(scores_MV)):
        line = scores_MV[m]
        for j in range(len(bias_V)):
            line[j] += bias_V[j]
        highest = _highest(line)
        for j in range(len(line)):
            line[j] = exponential(line[j] - highest)
        highest_M[m], sums_M[m] = highest, _sum(line)


@compiled
def _highest(line):  # type: ignore[no-untyped-def]
    highest = line[0]
    for j in range(1, len(line)):
        highest = max(highest, line[j])
    return highest


@compiled
def _sum(line):  # type: ignore[no-untyped-def]
    total = ZERO
    for j in range(len(line)):
        total += line[j]
    return total
