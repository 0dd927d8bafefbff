"""Parsing and formatting of the numbers in ARPA files, on arrays of bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from chainrule.base.arrays import Array

MAX_LENGTH = 24
"""The largest number of bytes of a formatted number."""

ZERO = 1e-9
"""Smaller magnitudes are written as 0, a factor of one."""

POWERS = np.array([10**exponent for exponent in range(19)], np.int64)
MINUS, PLUS, POINT, DIGIT_0 = (np.uint8(ord(sign)) for sign in "-+.0")


@njit(cache=True, nogil=True)
def put_integer(out: Array, at: int, number: int, digits: int) -> int:
    """Write an integer with leading zeros up to `digits` digits -> the position after it."""
    while digits < 18 and POWERS[digits] <= number:
        digits += 1
    for place in range(digits):
        out[at + digits - 1 - place] = DIGIT_0 + np.uint8(number % 10)
        number //= 10
    return at + digits


@njit(cache=True, nogil=True)
def put_number(out: Array, at: int, number: float) -> int:
    """Write the shortest decimal that parses to the same float32 -> the position after it; -inf is written as -99."""
    if number < -99:
        number = -99.0
    if not abs(number) >= ZERO:
        out[at] = DIGIT_0
        return at + 1
    if number < 0:
        out[at] = MINUS
        at += 1
    size = abs(number)
    digits = 6 - int(np.floor(np.log10(size)))  # after the point, for seven significant digits; nine are always enough
    decimals, scaled = max(0, digits), 0
    for decimals in range(max(0, digits), max(0, digits) + 3):
        scaled = int(np.rint(size * POWERS[decimals]))
        if np.float32(scaled / POWERS[decimals]) == np.float32(size):
            break
    while decimals > 0 and scaled % 10 == 0:
        scaled //= 10
        decimals -= 1
    at = put_integer(out, at, scaled // POWERS[decimals], 1)
    if decimals > 0:
        out[at] = POINT
        at = put_integer(out, at + 1, scaled % POWERS[decimals], decimals)
    return at


@njit(cache=True, nogil=True)
def take_number(data: Array, start: int, end: int) -> float:
    """The number in data[start:end], NaN if it is invalid. The only infinite number allowed is -inf."""
    at, sign = start, 1.0
    if at < end and (data[at] == MINUS or data[at] == PLUS):
        sign = -1.0 if data[at] == MINUS else 1.0
        at += 1
    if sign < 0 and _is_infinity(data, at, end):
        return -np.inf
    mantissa, exponent, seen, point = 0, 0, 0, False
    while at < end and (DIGIT_0 <= data[at] < DIGIT_0 + 10 or (data[at] == POINT and not point)):
        if data[at] == POINT:
            point = True
        else:
            seen += 1
            if mantissa < POWERS[17]:
                mantissa = _append_digit(mantissa, data[at])
                exponent -= point
            else:  # more digits than a double can represent
                exponent += not point
        at += 1
    power = _take_exponent(data, at, end)
    if seen == 0 or power == INVALID_EXPONENT:
        return np.nan
    exponent += power
    return sign * (mantissa / 10.0**-exponent if exponent < 0 else mantissa * 10.0**exponent)


INVALID_EXPONENT = 1 << 20


@njit(cache=True, nogil=True)
def _append_digit(number: int, digit: Any) -> Any:
    """12 and the character 3 -> 123."""
    return 10 * number + np.int64(digit - DIGIT_0)


@njit(cache=True, nogil=True)
def _take_exponent(data: Array, at: int, end: int) -> int:
    """The exponent after a mantissa: empty, or e and an integer."""
    if at == end:
        return 0
    if data[at] | 0x20 != ord("e"):
        return INVALID_EXPONENT
    at += 1
    negative = at < end and data[at] == MINUS
    if at < end and (data[at] == MINUS or data[at] == PLUS):
        at += 1
    if at == end or end - at > 4:
        return INVALID_EXPONENT
    power: int = 0
    for place in range(at, end):
        if not DIGIT_0 <= data[place] < DIGIT_0 + 10:
            return INVALID_EXPONENT
        power = _append_digit(power, data[place])
    return -power if negative else power


@njit(cache=True, nogil=True)
def _is_infinity(data: Array, at: int, end: int) -> bool:
    """Whether the bytes are inf or infinity, in any case."""
    word, length, equal = b"infinity", end - at, 0
    if length != 3 and length != 8:
        return False
    for place in range(length):
        equal += data[at + place] | 0x20 == word[place]
    return equal == length
