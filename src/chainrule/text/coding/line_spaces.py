"""The spaces of the lines of a text, measured for all lines at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

SPACE, NEWLINE = ord(" "), ord("\n")
Ints = np.ndarray[Any, np.dtype[np.int64]]


class LineSpaces(NamedTuple):
    """Spaces of the lines that have words."""

    frames: dict[tuple[int, bool, int], int]  # by spaces before the first word, single gaps, spaces after the last
    gaps: dict[int, int]  # of lines with other gaps than single spaces, by length
    blank: list[int]  # spaces of each line without words


def line_spaces(text: str) -> LineSpaces:
    """Measure whole lines, in which a space is the only white space. Dictionaries are in the order of the text."""
    bytes_N = np.frombuffer(text.encode(errors="surrogatepass"), np.uint8)
    is_space_N = bytes_N == SPACE
    end_L = np.flatnonzero(bytes_N == NEWLINE)
    begin_L = np.concatenate([[0], end_L[:-1] + 1])
    visible_K = np.flatnonzero(~is_space_N & (bytes_N != NEWLINE))
    first_L, after_L = np.searchsorted(visible_K, (begin_L, end_L))
    worded_L = first_L < after_L
    blank = (end_L - begin_L)[~worded_L].tolist()
    begin_M, end_M = begin_L[worded_L], end_L[worded_L]
    core_M, last_M = visible_K[first_L[worded_L]], visible_K[after_L[worded_L] - 1]
    double_D = np.flatnonzero(is_space_N[1:] & is_space_N[:-1])
    regular_M = np.equal(*np.searchsorted(double_D, (core_M, last_M)))
    lead_M, trail_M = core_M - begin_M, end_M - 1 - last_M
    return LineSpaces(
        dict(_frames(lead_M, regular_M, trail_M)),
        _gaps(is_space_N, core_M[~regular_M], last_M[~regular_M]),
        blank,
    )


def _frames(lead_M: Ints, regular_M: Ints, trail_M: Ints) -> Iterator[tuple[tuple[int, bool, int], int]]:
    size = int(trail_M.max(initial=0)) + 1
    for number, times in _counted((lead_M * size + trail_M) * 2 + regular_M).items():
        sides, regular = divmod(number, 2)
        lead, trail = divmod(sides, size)
        yield (lead, bool(regular), trail), times


def _gaps(is_space_N: Ints, core_M: Ints, last_M: Ints) -> dict[int, int]:
    """Lengths of the gaps between the words of some lines, given where the words begin and end."""
    edges = np.flatnonzero(np.diff(is_space_N.astype(np.int8), prepend=0, append=0))
    begin_G, end_G = edges[::2], edges[1::2]
    line_G = np.searchsorted(core_M, begin_G) - 1
    inside_G = (line_G >= 0) & (begin_G < last_M[line_G]) if len(core_M) else np.zeros(len(begin_G), bool)
    return _counted((end_G - begin_G)[inside_G])


def _counted(values: Ints) -> dict[int, int]:
    """How often each value occurs, in the order of their first occurrence."""
    found, first, times = np.unique(values, return_index=True, return_counts=True)
    order = np.argsort(first)
    return dict(zip(found[order].tolist(), times[order].tolist(), strict=True))
