"""Numbers as ARPA files write them, put into and taken out of bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from chainrule.base.arrays import Array

LONGEST = 24
"""Bytes that a number takes at most."""

ZERO = 1e-9
"""What is nearer to nought is written as nought: a factor of one."""

POWERS = np.array([10**exponent for exponent in range(19)], np.int64)
MINUS, PLUS, POINT, NOUGHT = (np.uint8(ord(sign)) for sign in "-+.0")


@njit(cache=True, nogil=True)
def put_integer(out: Array, at: int, number: int, digits: int) -> int:
    """Write a number with leading noughts up to so many digits -> the place after it."""
    while digits < 18 and POWERS[digits] <= number:
        digits += 1
    for place in range(digits):
        out[at + digits - 1 - place] = NOUGHT + np.uint8(number % 10)
        number //= 10
    return at + digits


@njit(cache=True, nogil=True)
def put_number(out: Array, at: int, number: float) -> int:
    """Write the shortest decimal that is read as the same float32 -> the place after it; -inf is -99."""
    if number < -99:
        number = -99.0
    if not abs(number) >= ZERO:
        out[at] = NOUGHT
        return at + 1
    if number < 0:
        out[at] = MINUS
        at += 1
    size = abs(number)
    digits = 6 - int(np.floor(np.log10(size)))  # after the point, for seven in all; nine are always enough
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
    """The number in data[start:end]; NaN if it is none. Of the infinite ones only -inf is one here."""
    at, sign = start, 1.0
    if at < end and (data[at] == MINUS or data[at] == PLUS):
        sign = -1.0 if data[at] == MINUS else 1.0
        at += 1
    if sign < 0 and _is_infinity(data, at, end):
        return -np.inf
    mantissa, exponent, seen, point = 0, 0, 0, False
    while at < end and (NOUGHT <= data[at] < NOUGHT + 10 or (data[at] == POINT and not point)):
        if data[at] == POINT:
            point = True
        else:
            seen += 1
            if mantissa < POWERS[17]:
                mantissa = _append_digit(mantissa, data[at])
                exponent -= point
            else:  # digits that a double has no room for
                exponent += not point
        at += 1
    power = _take_exponent(data, at, end)
    if seen == 0 or power == NO_EXPONENT:
        return np.nan
    exponent += power
    return sign * (mantissa / 10.0**-exponent if exponent < 0 else mantissa * 10.0**exponent)


NO_EXPONENT = 1 << 20


@njit(cache=True, nogil=True)
def _append_digit(number: int, digit: Any) -> Any:
    """12 and the sign 3 -> 123."""
    return 10 * number + np.int64(digit - NOUGHT)


@njit(cache=True, nogil=True)
def _take_exponent(data: Array, at: int, end: int) -> int:
    """What follows a mantissa: nothing, or e and a whole number."""
    if at == end:
        return 0
    if data[at] | 0x20 != ord("e"):
        return NO_EXPONENT
    at += 1
    negative = at < end and data[at] == MINUS
    if at < end and (data[at] == MINUS or data[at] == PLUS):
        at += 1
    if at == end or end - at > 4:
        return NO_EXPONENT
    power: int = 0
    for place in range(at, end):
        if not NOUGHT <= data[place] < NOUGHT + 10:
            return NO_EXPONENT
        power = _append_digit(power, data[place])
    return -power if negative else power


@njit(cache=True, nogil=True)
def _is_infinity(data: Array, at: int, end: int) -> bool:
    """inf or infinity, in letters of any case."""
    word, length, equal = b"infinity", end - at, 0
    if length != 3 and length != 8:
        return False
    for place in range(length):
        equal += data[at + place] | 0x20 == word[place]
    return equal == length
