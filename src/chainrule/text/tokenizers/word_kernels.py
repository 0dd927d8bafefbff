"""Kernels that find, look up and count the words of UTF-8 text; the tables are described in `word_table.py`."""

from __future__ import annotations

import numba
import numpy as np

from chainrule.base.arrays import Array

kernel = numba.njit(cache=True, nogil=True)
# A call passes an array as seven numbers and counts a reference to it, which costs more than these functions do.
inlined = numba.njit(inline="always")

NEWLINE = 0x0A
SHORT = 8  # bytes of a token up to which it is its own key
HALF, LOW, ALL = np.uint64(32), np.uint64(0xFFFFFFFF), np.uint64(0xFFFFFFFFFFFFFFFF)
ODD = np.uint64(0x9E3779B97F4A7C15)  # 2**64 over the golden ratio: multiplying by it spreads close keys
MIN_PLACES = 1 << 12


# Where tokens are


@kernel
def _gaps(data: Array, unicode: bool) -> Array:
    """1 for each byte of white space, 0 for each byte of a word, uint8; without `unicode` as for `bytes.split`."""
    gaps = np.empty(len(data), np.uint8)
    doubtful, lowest = np.uint8(0), np.uint8(0x1C if unicode else 0x20)
    for at in range(len(data)):  # without branches, so that it is vectorised
        byte = data[at]
        gaps[at] = ((byte >= lowest) & (byte <= 0x20)) | ((byte >= 0x09) & (byte <= 0x0D))
        doubtful |= np.uint8((byte >= 0xC2) & (byte <= 0xE3))
    if doubtful and unicode:
        for at in range(len(data)):
            if 0xC2 <= data[at] <= 0xE3:
                for byte in range(wide_gap(data, at)):
                    gaps[at + byte] = 1
    return gaps


@kernel
def wide_gap(data: Array, at: int) -> int:
    """The length of a white space character of two or three bytes at `at`, 0 if there is none."""
    left = len(data) - at
    if data[at] == 0xC2:
        return 2 if left > 1 and (data[at + 1] == 0x85 or data[at + 1] == 0xA0) else 0
    if left < 3 or data[at] < 0xE1:
        return 0
    point = (data[at] & 0x0F) << 12 | (data[at + 1] & 0x3F) << 6 | (data[at + 2] & 0x3F)
    if 0x2000 <= point <= 0x200A or 0x2028 <= point <= 0x2029:
        return 3
    return 3 if point == 0x1680 or point == 0x202F or point == 0x205F or point == 0x3000 else 0


@kernel
def tokens(data: Array, unicode: bool) -> tuple[Array, Array]:
    """The start and the end of each token, N each."""
    gaps = _gaps(data, unicode)
    size, before = 0, np.uint8(1)
    for at in range(len(data)):
        size += (before & (gaps[at] ^ 1)) | (data[at] == NEWLINE)
        before = gaps[at]
    # Each byte is written as a start and as an end, and overwritten unless it is one: hence one entry more.
    starts_N, ends_N = np.empty(size + 1, np.int64), np.empty(size + 1, np.int64)
    started, ended, before = 0, 0, np.uint8(1)
    for at in range(len(data)):
        newline = data[at] == NEWLINE
        starts_N[started], ends_N[ended] = at, at
        started += (before & (gaps[at] ^ 1)) | newline
        ended += gaps[at] & (before ^ 1)
        ends_N[ended] = at + 1
        ended += newline
        before = gaps[at]
    ends_N[ended] = len(data)
    return starts_N[:size], ends_N[:size]


@kernel
def split_ascii(data: Array, first: int, last: int, starts_N: Array, ends_N: Array) -> int:
    """Fill in the start and the end of each word between white space of ASCII in data[first:last] -> their number."""
    size, inside = 0, False
    for at in range(first, last):
        gap = (data[at] == 0x20) | ((data[at] >= 0x09) & (data[at] <= 0x0D))
        if inside == gap:
            if inside:
                ends_N[size] = at
                size += 1
            else:
                starts_N[size] = at
            inside = not inside
    if inside:
        ends_N[size] = last
        size += 1
    return size


# Keys and places


@inlined
def _eight(data: Array, at: int) -> np.uint64:
    """Eight bytes as one number; the compiler turns it into one load."""
    first = np.uint64(at)  # an unsigned index is not tested for counting from the end
    number = np.uint64(0)
    for byte in range(SHORT):
        number |= np.uint64(data[first + np.uint64(byte)]) << np.uint64(8 * byte)
    return number


@inlined
def _key(data: Array, start: int, end: int) -> np.uint64:
    """The key of the token data[start:end]: its bytes if it is short, else a hash."""
    length = end - start
    key = np.uint64(0)
    if length > SHORT:
        key = np.uint64(length)
        for at in range(start, end - SHORT, SHORT):
            key = (key ^ _eight(data, at)) * ODD
            key ^= key >> HALF
        key = (key ^ _eight(data, end - SHORT)) * ODD  # these eight bytes may overlap the previous ones
    elif start + SHORT <= len(data):
        key = _eight(data, start) & (ALL >> np.uint64(8 * (SHORT - length)))
    else:
        for at in range(start, end):
            key |= np.uint64(data[at]) << np.uint64(8 * (at - start))
    return key


@inlined
def _first_place(key: np.uint64, places: int) -> np.int64:
    """Where to start probing for a key: two multiplications, so that every bit of the key matters."""
    mixed = key * ODD
    return np.int64(((mixed ^ (mixed >> HALF)) * ODD) >> HALF) & (places - 1)


@kernel
def _same(text: Array, first: int, last: int, data: Array, start: int, end: int) -> bool:
    """Whether the long tokens text[first:last] and data[start:end] are equal."""
    if last - first != end - start:
        return False
    for offset in range(0, end - start - SHORT, SHORT):
        if _eight(text, first + offset) != _eight(data, start + offset):
            return False
    return bool(_eight(text, last - SHORT) == _eight(data, end - SHORT))


@kernel
def keys_of(text: Array, offsets: Array) -> Array:
    """The key of each token of a list, V."""
    keys_V = np.empty(len(offsets) - 1, np.uint64)
    for token in range(len(keys_V)):
        keys_V[token] = _key(text, offsets[token], offsets[token + 1])
    return keys_V


@kernel
def insert(slots: Array, keys_V: Array, lengths_V: Array, first: int) -> None:
    """Enter tokens that are not in the slots, with indices from `first` on; empty ones are skipped."""
    places = len(slots) // 2
    for token in range(len(keys_V)):
        place = _first_place(keys_V[token], places)
        while slots[2 * place + 1] != 0:
            place = (place + 1) & (places - 1)
        if lengths_V[token] > 0:
            slots[2 * place] = keys_V[token]
            slots[2 * place + 1] = np.uint64(lengths_V[token]) << HALF | np.uint64(first + token + 1)


@kernel
def copy_tokens(data: Array, starts_V: Array, text: Array, offsets: Array) -> None:
    """Copy the bytes of tokens to their offsets."""
    for token in range(len(starts_V)):
        for byte in range(offsets[token + 1] - offsets[token]):
            text[offsets[token] + byte] = data[starts_V[token] + byte]


# Looking up and counting: each has its own probing loop, since calling a shared function would cost more


@kernel
def look_up(
    data: Array, starts_N: Array, ends_N: Array, slots: Array, text: Array, offsets: Array, missing: int
) -> Array:
    """The index of each token, `missing` for unknown ones, N."""
    numbers_N = np.empty(len(starts_N), np.int32)
    look_up_into(data, starts_N, ends_N, slots, text, offsets, missing, numbers_N)
    return numbers_N


@kernel
def look_up_into(
    data: Array,
    starts_N: Array,
    ends_N: Array,
    slots: Array,
    text: Array,
    offsets: Array,
    missing: int,
    numbers_N: Array,
) -> None:
    """Fill in the index of each token."""
    places = len(slots) // 2
    for token in range(len(starts_N)):
        start, end = starts_N[token], ends_N[token]
        key = _key(data, start, end)
        place, found = _first_place(key, places), np.int64(missing)
        while slots[2 * place + 1] != 0:
            about = slots[2 * place + 1]
            if slots[2 * place] == key and about >> HALF == np.uint64(end - start) & LOW:
                number = np.int64(about & LOW) - 1
                if end - start <= SHORT or _same(text, offsets[number], offsets[number + 1], data, start, end):
                    found = number
                    break
            place = (place + 1) & (places - 1)
        numbers_N[token] = found


@kernel
def encode(data: Array, slots: Array, text: Array, offsets: Array, missing: int, unicode: bool) -> Array:
    """The index of each token of a text, N."""
    starts_N, ends_N = tokens(data, unicode)
    return look_up(data, starts_N, ends_N, slots, text, offsets, missing)


@kernel
def count(data: Array) -> tuple[Array, Array, Array, Array, Array]:
    """The fields of `BlockWords`."""
    starts_N, ends_N = tokens(data, True)
    size, places = 0, MIN_PLACES
    slots = np.zeros(2 * places, np.uint64)
    # Room for the worst case: memory that is never written costs nothing.
    starts, ends = np.empty_like(starts_N), np.empty_like(starts_N)
    keys, counts = np.empty(len(starts_N), np.uint64), np.empty_like(starts_N)
    for token in range(len(starts_N)):
        start, end = starts_N[token], ends_N[token]
        if data[start] == NEWLINE:
            continue
        key = _key(data, start, end)
        place, found = _first_place(key, places), np.int64(-1)
        while slots[2 * place + 1] != 0:
            about = slots[2 * place + 1]
            if slots[2 * place] == key and about >> HALF == np.uint64(end - start) & LOW:
                number = np.int64(about & LOW) - 1
                if end - start <= SHORT or _same(data, starts[number], ends[number], data, start, end):
                    found = number
                    break
            place = (place + 1) & (places - 1)
        if found >= 0:
            counts[found] += 1
            continue
        slots[2 * place] = key
        slots[2 * place + 1] = np.uint64(end - start) << HALF | np.uint64(size + 1)
        starts[size], ends[size], keys[size], counts[size] = start, end, key, 1
        size += 1
        if 2 * size > places:
            places *= 2
            slots = np.zeros(2 * places, np.uint64)
            insert(slots, keys[:size], ends[:size] - starts[:size], 0)
    return data, starts[:size].copy(), ends[:size].copy(), keys[:size].copy(), counts[:size].copy()
