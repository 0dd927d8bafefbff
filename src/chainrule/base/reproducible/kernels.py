"""Compiled sums, products and functions that give the same bits on every CPU.

Two things make ordinary kernels differ between CPUs: the order of additions, which follows the width of the vector
instructions, and fused multiply-adds. Here every order is fixed and no multiplication is fused, because numba compiles
without `fastmath`. Functions such as exp use only additions, multiplications and divisions, which IEEE 754 rounds in
one way, and exact scaling by powers of two. They compute in double precision and are rounded at the end.
"""

from __future__ import annotations

import math

import numba
import numpy as np

from chainrule.base.arrays import Array

LOG2_E = 1.4426950408889634
LN2_HIGH, LN2_LOW = 0.6931471803691238, 1.9082149292705877e-10  # their sum is ln 2 in more than double precision
LN2 = 0.6931471805599453
HALF_PI_PARTS = (1.5707963267341256, 6.077100506303966e-11, 2.0222662487959506e-21)  # π/2, the first two rounded short
MAX_LOG = 745.2  # exp of less is zero
ERF_ONE = 6.0  # erf of more is one in double precision, up to 2e-17
EXP_TERMS, LOG_TERMS, ERF_TERMS, SINE_TERMS = 14, 13, 130, 11


@numba.njit(cache=True, error_model="numpy")
def exp_of(x: float) -> float:
    """e^x by its series on [-ln 2 / 2, ln 2 / 2], scaled by a power of two."""
    if x != x:
        return x
    if x > 709.8:
        return math.inf
    if x < -MAX_LOG:
        return 0.0
    power = math.floor(x * LOG2_E + 0.5)
    rest = (x - power * LN2_HIGH) - power * LN2_LOW
    total = 1.0
    for term in range(EXP_TERMS, 0, -1):
        total = 1.0 + total * rest / term
    return math.ldexp(total, int(power))


@numba.njit(cache=True, error_model="numpy")
def log_of(x: float) -> float:
    """ln x by the series of artanh, after taking out a power of two."""
    if x != x or x < 0.0:
        return math.nan
    if x == 0.0:
        return -math.inf
    if x == math.inf:
        return x
    part, power = math.frexp(x)
    if part < 0.7071067811865476:
        part, power = 2.0 * part, power - 1
    ratio = (part - 1.0) / (part + 1.0)
    square = ratio * ratio
    total = 0.0
    for term in range(LOG_TERMS, 0, -1):
        total = 1.0 / (2 * term + 1) + total * square
    return power * LN2 + 2.0 * ratio * (1.0 + square * total)


@numba.njit(cache=True, error_model="numpy")
def tanh_of(x: float) -> float:
    """tanh x; by its series near 0, where the quotient would lose digits."""
    if abs(x) < 0.02:
        square = x * x
        return x * (1.0 - square / 3.0 * (1.0 - square * 2.0 / 5.0 * (1.0 - square * 17.0 / 42.0)))
    power = exp_of(-2.0 * abs(x))
    return math.copysign((1.0 - power) / (1.0 + power), x)


@numba.njit(cache=True, error_model="numpy")
def sigmoid_of(x: float) -> float:
    """1 / (1 + e^-x)."""
    power = exp_of(-abs(x))
    return 1.0 / (1.0 + power) if x >= 0.0 else power / (1.0 + power)


@numba.njit(cache=True, error_model="numpy")
def erf_of(x: float) -> float:
    """erf x = 2/√π e^(-x²) Σ 2^n x^(2n+1) / (2n+1)!!, whose terms are all positive."""
    if abs(x) > ERF_ONE:
        return math.copysign(1.0, x)
    term = x
    total = x
    for n in range(1, ERF_TERMS):
        term = term * 2.0 * x * x / (2 * n + 1)
        total = total + term
    return 1.1283791670955126 * exp_of(-x * x) * total


@numba.njit(cache=True, error_model="numpy")
def sine_of(x: float, shift: int) -> float:
    """sin(x + shift·π/2) by its series on [-π/4, π/4]; for |x| below a million."""
    quarters = math.floor(x / 1.5707963267948966 + 0.5)
    rest = ((x - quarters * HALF_PI_PARTS[0]) - quarters * HALF_PI_PARTS[1]) - quarters * HALF_PI_PARTS[2]
    quarter = (int(quarters) + shift) % 4
    square = rest * rest
    even = quarter % 2  # then the cosine
    total = 1.0
    for n in range(SINE_TERMS, 0, -1):
        below = 2 * n - even
        total = 1.0 - total * square / (below * (below + 1))
    value = total if even else rest * total
    return -value if quarter >= 2 else value


EXP, LOG, TANH, SIGMOID, ERF, SIN, COS, EXPM1, LOG1P = range(9)


@numba.njit(cache=True, error_model="numpy")
def apply(function: int, values_N: Array, results_N: Array) -> None:
    """One of the functions above of every value; the results have the type of their array."""
    for n in range(len(values_N)):
        x = np.float64(values_N[n])
        if function == EXP:
            results_N[n] = exp_of(x)
        elif function == LOG:
            results_N[n] = log_of(x)
        elif function == TANH:
            results_N[n] = tanh_of(x)
        elif function == SIGMOID:
            results_N[n] = sigmoid_of(x)
        elif function == ERF:
            results_N[n] = erf_of(x)
        elif function == SIN:
            results_N[n] = sine_of(x, 0)
        elif function == COS:
            results_N[n] = sine_of(x, 1)
        elif function == EXPM1:
            results_N[n] = x + x * x / 2.0 + x * x * x / 6.0 if abs(x) < 1e-5 else exp_of(x) - 1.0
        else:
            results_N[n] = x - x * x / 2.0 + x * x * x / 3.0 if abs(x) < 1e-5 else log_of(1.0 + x)


@numba.njit(cache=True, error_model="numpy")
def product(left_NM: Array, right_MX: Array, result_NX: Array) -> None:
    """The matrix product; each element adds its terms in the order of M. `result_NX` begins with zeros."""
    for n in range(left_NM.shape[0]):
        for m in range(left_NM.shape[1]):
            factor = left_NM[n, m]
            for x in range(right_MX.shape[1]):
                result_NX[n, x] += factor * right_MX[m, x]


@numba.njit(cache=True, error_model="numpy")
def sums(values_NM: Array, results_N: Array) -> None:
    """The sum of each row, in order and in double precision."""
    for n in range(values_NM.shape[0]):
        total = 0.0
        for m in range(values_NM.shape[1]):
            total += np.float64(values_NM[n, m])
        results_N[n] = total


@numba.njit(cache=True, error_model="numpy")
def running_sums(values_NM: Array, results_NM: Array) -> None:
    """The sums of the first 1, 2, … values of each row, in double precision."""
    for n in range(values_NM.shape[0]):
        total = 0.0
        for m in range(values_NM.shape[1]):
            total += np.float64(values_NM[n, m])
            results_NM[n, m] = total
