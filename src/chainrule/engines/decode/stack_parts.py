"""What the parts of a block share: the norm before or after, and the sum with the stream."""

from __future__ import annotations

import numpy as np

from chainrule.engines.decode.compiling import compiled
from chainrule.engines.decode.functions import ONE, ZERO
from chainrule.engines.decode.linear import FLOATS, apply_linear
from chainrule.engines.decode.maps import add, copy, normalise_vectors
from chainrule.engines.decode.stack_layout import EPSILON, PRE, RMS, WIDTH
from chainrule.engines.decode.sums import sum_of_differences, sum_of_squares
from chainrule.engines.decode.vectors import LANES


@compiled
def before(model, norm, bias, N, room):  # type: ignore[no-untyped-def]
    """Set the inputs of a part: the normalised stream, or the stream itself if norms come after."""
    shape, constants, _, weights = model
    stream, inputs, _, _, _, _, stride, _, _ = room
    if not shape[PRE]:
        copy(stream, 0, inputs, 0, N * stride)
        return
    for n in range(N):
        normalise(shape, constants, weights[FLOATS], norm, bias, stream, n * stride, inputs, n * stride)


@compiled
def after(model, layer, norm, bias, values, step, out, N, room):  # type: ignore[no-untyped-def]
    """Add the last product of a part to the stream, and normalise the sum if norms come after."""
    shape, constants, _, weights = model
    stream, _, _, _, _, bytes_, stride, _, _ = room
    apply_linear(weights, layer, values, 0, step, out, 0, stride, N, bytes_)
    add(stream, 0, out, 0, N * stride)
    if not shape[PRE]:
        for n in range(N):
            normalise(shape, constants, weights[FLOATS], norm, bias, stream, n * stride, stream, n * stride)


@compiled
def normalise(shape, constants, floats, scale_at, bias_at, values, at, out, out_at):  # type: ignore[no-untyped-def]
    """LayerNorm or RMSNorm of one vector."""
    D = shape[WIDTH]
    whole = D // LANES
    mean = ZERO
    if not shape[RMS]:
        total = sum_of_differences(values, at, whole, ZERO) if whole else ZERO
        for j in range(at + whole * LANES, at + D):
            total += values[j]
        mean = total / np.float32(D)
    squares = sum_of_squares(values, at, whole, mean) if whole else ZERO
    for j in range(at + whole * LANES, at + D):
        squares += (values[j] - mean) * (values[j] - mean)
    factor = ONE / np.sqrt(squares / np.float32(D) + constants[EPSILON])
    vectors = -(-D // LANES)  # tables end with zeros, and so do the vectors
    normalise_vectors(out, out_at, values, at, floats, scale_at, vectors, mean, factor)
    if bias_at >= 0:
        add(out, out_at, floats, bias_at, D)
