"""Packed linear layers against plain products, and functions of single numbers against those of torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numba import njit
from torch.nn import functional as F

from chainrule.engines.decode.compiling import compiled
from chainrule.engines.decode.functions import ACTIVATIONS, activate, exponential, tanh
from chainrule.engines.decode.linear import OUTPUTS, Packer, apply_linear, pack_bytes, quantise, rounded_up
from chainrule.engines.decode.tiles import PAIRS, PLAIN, ByteArithmetic, _make_byte_tile, byte_arithmetic
from chainrule.engines.decode.vectors import host_has

Array = np.ndarray[Any, Any]
SHAPES = [(65, 128), (384, 32), (32, 200), (17, 33), (1, 1)]


def random(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def product(weight_XD: Array, bias_X: Array | None, inputs_ND: Array, *, int8: bool) -> Array:
    packer = Packer(int8=int8)
    number, weights = packer.linear(weight_XD, bias_X), packer.weights()
    (N, D), width = inputs_ND.shape, int(weights[0][number, OUTPUTS])
    outputs = np.empty(N * width, np.float32)
    spare = np.empty(N * rounded_up(D, 4), np.uint8), np.empty(N, np.float32)
    apply_linear(weights, number, inputs_ND.ravel(), 0, D, outputs, 0, width, N, spare)
    return outputs.reshape(N, width)[:, : len(weight_XD)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rows", [1, 2, 3, 5, 7, 17])
def test_a_packed_layer_is_the_product_with_its_weights(shape: tuple[int, int], rows: int) -> None:
    weight_XD, bias_X, inputs_ND = random(*shape), random(shape[0], seed=1), random(rows, shape[1], seed=2)
    expected_NX = inputs_ND.astype(np.float64) @ weight_XD.T + bias_X
    np.testing.assert_allclose(product(weight_XD, bias_X, inputs_ND, int8=False), expected_NX, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rows", [1, 4, 11])
def test_8_bit_products_are_exact_sums_of_rounded_numbers(shape: tuple[int, int], rows: int) -> None:
    weight_XD, inputs_ND = random(*shape), random(rows, shape[1], seed=2)
    quantised_XD, scale_X = quantise(weight_XD)
    scale_N = np.abs(inputs_ND).max(1) / np.float32(127)
    rounded_ND = np.floor(inputs_ND * (np.float32(1) / scale_N)[:, None] + np.float32(0.5)).astype(np.int64)
    expected_NX = (rounded_ND @ quantised_XD.T.astype(np.int64)) * (scale_N[:, None] * scale_X)
    found_NX = product(weight_XD, None, inputs_ND, int8=True)
    # An input between two numbers may be rounded to either; everything after that is exact.
    step_NX = scale_N[:, None] * scale_X * 127
    assert (np.abs(found_NX - expected_NX) <= 1e-5 * np.abs(expected_NX) + step_NX + 1e-6).all()


def test_quantised_weights_are_within_half_a_step() -> None:
    weight_XD = random(20, 30)
    quantised_XD, scale_X = quantise(weight_XD)
    assert (np.abs(quantised_XD * scale_X[:, None] - weight_XD) <= 0.5001 * scale_X[:, None]).all()


@pytest.mark.parametrize("int8", [False, True])
def test_the_numbers_of_a_row_do_not_depend_on_the_other_rows(int8: bool) -> None:
    weight_XD, inputs_ND = random(200, 77), random(11, 77, seed=3)
    together_NX = product(weight_XD, None, inputs_ND, int8=int8)
    for n in range(len(inputs_ND)):
        assert np.array_equal(product(weight_XD, None, inputs_ND[n : n + 1], int8=int8)[0], together_NX[n])


def _arithmetics() -> list[ByteArithmetic]:
    """Those that this processor has instructions for."""
    found = [PLAIN]
    if host_has("avx2"):
        found.append(PAIRS)
    if byte_arithmetic not in found:
        found.append(byte_arithmetic)
    return found


@pytest.mark.parametrize("arithmetic", _arithmetics(), ids=lambda one: one.name)
@pytest.mark.parametrize("count", [200, 203])
def test_8_bit_products_are_exact_by_all_instructions(arithmetic: ByteArithmetic, count: int) -> None:
    draw, fours = np.random.default_rng(0), -(-count // 4)
    weight_XD = draw.integers(-127, 128, (32, count)).astype(np.int8)
    weight_XD[0], weight_XD[1] = 127, -127
    inputs = np.zeros(4 * fours, np.uint8)
    inputs[:count] = draw.integers(0, 256, count)
    inputs[:50] = 255  # the sum of two products is the largest
    ones, zeros, found = np.ones(32, np.float32), np.zeros(32, np.float32), np.empty(32, np.float32)
    terms = zeros.astype(np.int32), 0, np.concatenate([ones, zeros]), 0, 32
    tile = _make_byte_tile(1, 2, arithmetic)

    @njit(error_model="numpy", _nrt=False)  # type: ignore[untyped-decorator]
    def multiply(weights, inputs, scales, terms, out, fours):  # type: ignore[no-untyped-def]
        tile(weights, 0, 128, inputs, 0, 0, scales, 0, terms, out, 0, 0, fours)

    multiply(pack_bytes(weight_XD, pairs=arithmetic.pairs), inputs, ones[:1], terms, found, fours)
    assert np.array_equal(found, weight_XD.astype(np.int64) @ inputs[:count])  # below 2²⁴: exact in single precision


@compiled
def _functions(values, exponentials, tangents):  # type: ignore[no-untyped-def]
    for j in range(len(values)):
        exponentials[j] = exponential(values[j])
        tangents[j] = tanh(values[j])


def test_exponential_and_tanh() -> None:
    values = np.concatenate([np.linspace(-64, 87, 10_001), np.linspace(-1, 1, 1001), [-np.inf, -1000.0, -64.01]])
    values = values.astype(np.float32)
    found, tangents = np.empty_like(values), np.empty_like(values)
    _functions(values, found, tangents)
    exact = np.exp(values.astype(np.float64))
    np.testing.assert_allclose(found[:-3], exact[:-3], rtol=3e-7)
    assert found[-3:].tolist() == [0.0, 0.0, 0.0]
    np.testing.assert_allclose(tangents, np.tanh(values.astype(np.float64)), atol=2e-7)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_are_those_of_torch(name: str) -> None:
    values = np.linspace(-9, 9, 1237).astype(np.float32)
    functions = {
        "relu2": lambda x: F.relu(x).square(),
        "gelu": F.gelu,
        "gelu-tanh": lambda x: F.gelu(x, approximate="tanh"),
        "relu": F.relu,
        "swish": F.silu,
    }
    expected = functions[name](torch.from_numpy(values).double()).numpy()
    activate(ACTIVATIONS.index(name), values, 0, len(values))
    np.testing.assert_allclose(values, expected, rtol=1e-6, atol=1e-6)
