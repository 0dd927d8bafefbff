"""Kernels that measure the spaces of lines, for `line_spaces.py`."""

from __future__ import annotations

import numba
import numpy as np

from chainrule.base.arrays import Array
from chainrule.text.tokenizers.word_kernels import ODD
from chainrule.text.tokenizers.word_table import Words as Words

kernel = numba.njit(cache=True, nogil=True)

NEWLINE = 0x0A
BLANK, REGULAR = 1, 2
TRAIL, LEAD = 2, 32
"""Where the numbers of spaces after and before the words of a line begin in its code, in bits."""


@kernel
def line_codes(data: Array, starts_N: Array, ends_N: Array) -> tuple[Array, Array, int]:
    """The code of each line, the gaps between the words of lines that are not regular, and the size of all gaps.

    A code has the spaces before the first word and after the last, and the flags REGULAR, for single spaces between
    the words, and BLANK, for a line without words, whose spaces are all before.
    """
    codes_L, gaps = np.empty(len(starts_N), np.int64), np.empty(len(starts_N), np.int64)
    lines = kept = size = total = end = 0
    lead, regular = -1, True  # of this line; -1 before its first word
    for token in range(len(starts_N)):
        gap = starts_N[token] - end
        total, end = total + gap, ends_N[token]
        if data[starts_N[token]] != NEWLINE:
            if lead < 0:
                lead = gap
            else:
                gaps[size] = gap
                size, regular = size + 1, regular & (gap == 1)
            continue
        codes_L[lines] = gap << LEAD | REGULAR | BLANK if lead < 0 else lead << LEAD | gap << TRAIL | regular * REGULAR
        kept = kept if regular else size
        lines, size, lead, regular = lines + 1, kept, -1, True
    return codes_L[:lines], gaps[:kept], total


@kernel
def tally(values: Array) -> tuple[Array, Array]:
    """The different values in the order of their first occurrence, and how often each occurs."""
    places = 2
    while places < 2 * len(values):
        places *= 2
    numbers = np.zeros(places, np.int64)  # of each value plus one, by open addressing
    found, times, size = np.empty_like(values), np.zeros_like(values), 0
    for value in values:
        place = np.int64((np.uint64(value) * ODD) >> np.uint64(32)) & (places - 1)
        while numbers[place] and found[numbers[place] - 1] != value:
            place = (place + 1) & (places - 1)
        if not numbers[place]:
            found[size] = value
            size += 1
            numbers[place] = size
        times[numbers[place] - 1] += 1
    return found[:size], times[:size]
