"""Element-wise parts of a Transformer block and their gradients, each in one pass over its arrays.

Torch computes them as several operations, each of which writes a new array. For a batch that leaves the caches this
takes as long as a matrix product. These kernels run on one core, beside those of other processes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from chainrule.base.kernels import FAST_MATH
from chainrule.engines.decode.functions import ONE, TWO, ZERO, exponential

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


# Squared ReLU


@compiled
def square_positive(values_N):  # type: ignore[no-untyped-def]
    """max(x, 0)², in place."""
    for n in range(len(values_N)):
        positive = max(values_N[n], ZERO)
        values_N[n] = positive * positive


@compiled
def square_positive_backward(squares_N, grad_N):  # type: ignore[no-untyped-def]
    """The gradient of the inputs, in place of that of the squares; the derivative is 2·√square."""
    for n in range(len(squares_N)):
        grad_N[n] *= TWO * np.sqrt(squares_N[n])


# Attention


@compiled
def split_heads(projected_NX, cos_TE, sin_TE, scale, query_BHTE, key_BHET, value_BHTE):  # type: ignore[no-untyped-def]
    """Rotate queries and keys, multiply queries by the scale, transpose keys; empty tables: no rotation.

    The first half of `sin_TE` has a negative sign, so that a rotation is x·cos + swapped x·sin.
    """
    B, H, T, E = query_BHTE.shape
    half, rotated = E // 2, len(cos_TE) > 0
    turned = np.empty(E, np.float32)
    for b in range(B):
        for t in range(T):
            line = projected_NX[b * T + t]
            for h in range(H):
                at, query = h * E, query_BHTE[b, h, t]
                if rotated:
                    for j in range(half):
                        query[j] = scale * (line[at + j] * cos_TE[t, j] + line[at + half + j] * sin_TE[t, j])
                    for j in range(half, E):
                        query[j] = scale * (line[at + j] * cos_TE[t, j] + line[at + j - half] * sin_TE[t, j])
                    at += H * E
                    for j in range(half):
                        turned[j] = line[at + j] * cos_TE[t, j] + line[at + half + j] * sin_TE[t, j]
                    for j in range(half, E):
                        turned[j] = line[at + j] * cos_TE[t, j] + line[at + j - half] * sin_TE[t, j]
                else:
                    for j in range(E):
                        query[j] = scale * line[at + j]
                    at += H * E
                    for j in range(E):
                        turned[j] = line[at + j]
                for j in range(E):
                    key_BHET[b, h, j, t] = turned[j]
                at += H * E
                for j in range(E):
                    value_BHTE[b, h, t, j] = line[at + j]


@compiled
def join_heads(query_BHTE, key_BHTE, value_BHTE, cos_TE, sin_TE, scale, projected_NX):  # type: ignore[no-untyped-def]
    """The gradient of the projection, given those of what `split_heads` made of it (keys not transposed)."""
    B, H, T, E = query_BHTE.shape
    half, rotated = E // 2, len(cos_TE) > 0
    for b in range(B):
        for t in range(T):
            line = projected_NX[b * T + t]
            for h in range(H):
                at = h * E
                query, key, value = query_BHTE[b, h, t], key_BHTE[b, h, t], value_BHTE[b, h, t]
                if rotated:
                    for j in range(half):
                        line[at + j] = scale * (query[j] * cos_TE[t, j] + query[half + j] * sin_TE[t, half + j])
                    for j in range(half, E):
                        line[at + j] = scale * (query[j] * cos_TE[t, j] + query[j - half] * sin_TE[t, j - half])
                    at += H * E
                    for j in range(half):
                        line[at + j] = key[j] * cos_TE[t, j] + key[half + j] * sin_TE[t, half + j]
                    for j in range(half, E):
                        line[at + j] = key[j] * cos_TE[t, j] + key[j - half] * sin_TE[t, j - half]
                else:
                    for j in range(E):
                        line[at + j] = scale * query[j]
                    at += H * E
                    for j in range(E):
                        line[at + j] = key[j]
                at += H * E
                for j in range(E):
                    line[at + j] = value[j]


@compiled
def causal_softmax(scores_BHQL, first):  # type: ignore[no-untyped-def]
    """The softmax of each query over the positions up to its own, in place; the first query is at position `first`."""
    B, H, Q, L = scores_BHQL.shape
    for item in range(B * H * Q):
        line, count = scores_BHQL[item // (H * Q), item // Q % H, item % Q], first + item % Q + 1
        top = line[0]
        for k in range(1, count):
            top = max(top, line[k])
        total = ZERO
        for k in range(count):
            weight = exponential(line[k] - top)
            line[k] = weight
            total += weight
        factor = ONE / total
        for k in range(count):
            line[k] *= factor
        for k in range(count, L):
            line[k] = ZERO


@compiled
def causal_softmax_backward(weights_BHQL, grad_BHQL, first):  # type: ignore[no-untyped-def]
    """The gradient of the scores, in place of that of the weights."""
    B, H, Q, L = weights_BHQL.shape
    for item in range(B * H * Q):
        b, h, q, count = item // (H * Q), item // Q % H, item % Q, first + item % Q + 1
        line, grad = weights_BHQL[b, h, q], grad_BHQL[b, h, q]
        mean = ZERO
        for k in range(count):
            mean += line[k] * grad[k]
        for k in range(count):
            grad[k] = line[k] * (grad[k] - mean)
        for k in range(count, L):
            grad[k] = ZERO
