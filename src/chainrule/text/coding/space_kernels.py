"""Kernels that measure the spaces of lines, for `line_spaces.py`."""

from __future__ import annotations

import numba
import numpy as np

from chainrule.base.arrays import Array
from chainrule.text.tokenizers.word_kernels import wide_gap

kernel = numba.njit(cache=True, nogil=True)

SPACE, NEWLINE = 0x20, 0x0A
BLANK, REGULAR = 1, 2
TRAIL, LEAD = 2, 32
"""Where the numbers of spaces after and before the words of a line begin in its code, in bits."""


@kernel
def has_other_spaces(data: Array) -> bool:
    """Whether UTF-8 text has white space besides spaces and newlines."""
    odd, doubtful = np.uint8(0), np.uint8(0)
    for at in range(len(data)):  # without branches, so that it is vectorised
        byte = data[at]
        odd |= np.uint8(((byte >= 0x09) & (byte <= 0x0D) & (byte != NEWLINE)) | ((byte >= 0x1C) & (byte <= 0x1F)))
        doubtful |= np.uint8((byte >= 0xC2) & (byte <= 0xE3))
    if doubtful:
        for at in range(len(data)):
            if 0xC2 <= data[at] <= 0xE3:
                odd |= np.uint8(wide_gap(data, at))
    return bool(odd != 0)


@kernel
def line_codes(data: Array, codes_L: Array) -> bool:
    """Fill in the code of each line -> whether all lines have single spaces between their words.

    A code has the spaces before the first word and after the last, and the flags REGULAR, for single spaces between
    the words, and BLANK, for a line without words, whose spaces are all before.
    """
    at, all_regular = 0, True
    for line in range(len(codes_L)):
        begin = at
        while data[at] == SPACE:
            at += 1
        lead, doubled = at - begin, 0
        if data[at] == NEWLINE:
            codes_L[line] = lead << LEAD | REGULAR | BLANK
            at += 1
            continue
        while data[at] != NEWLINE:  # no branch for each word: their lengths are unpredictable
            doubled += (data[at] == SPACE) & (data[at + 1] == SPACE)
            at += 1
        trail = 0
        while data[at - 1 - trail] == SPACE:
            trail += 1
        regular = doubled == max(trail - 1, 0)
        all_regular &= regular
        codes_L[line] = lead << LEAD | trail << TRAIL | regular * REGULAR
        at += 1
    return all_regular


@kernel
def inner_gaps(data: Array, codes_L: Array) -> Array:
    """The spaces of each gap between words of the lines that are not regular, in the order of the text."""
    gaps, size, at = np.empty(len(data) // 2 + 1, np.int64), 0, 0
    for line in range(len(codes_L)):
        at += codes_L[line] >> LEAD
        if codes_L[line] & REGULAR:
            while data[at] != NEWLINE:
                at += 1
        run = 0
        while data[at] != NEWLINE:
            if data[at] == SPACE:
                run += 1
            elif run:
                gaps[size] = run
                size += 1
                run = 0
            at += 1
        at += 1
    return gaps[:size].copy()
