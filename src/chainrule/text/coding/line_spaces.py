"""The spaces of the lines of a text, measured for all lines at once."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

import numpy as np

SPACE, NEWLINE = ord(" "), ord("\n")
Ints = np.ndarray[Any, np.dtype[np.int64]]


class LineSpaces(NamedTuple):
    """Spaces of the lines that have words."""

    frames: Counter[tuple[int, bool, int]]  # by spaces before the first word, single gaps, spaces after the last
    gaps: Counter[int]  # of lines with other gaps than single spaces, by length
    blank: list[int]  # spaces of each line without words


def line_spaces(text: str) -> LineSpaces:
    """Measure whole lines, in which a space is the only white space. Counters are in the order of the text."""
    bytes_N = np.frombuffer(text.encode(errors="surrogatepass"), np.uint8)
    end_L, space_S = np.flatnonzero(bytes_N == NEWLINE), np.flatnonzero(bytes_N == SPACE)
    begin_L = np.concatenate([[0], end_L[:-1] + 1])
    new_S = np.diff(space_S, prepend=-2) != 1
    begin_R = space_S[new_S]  # runs of spaces
    size_R = np.diff(np.flatnonzero(new_S), append=len(space_S))
    last_L = np.searchsorted(begin_R, end_L)  # the runs of a line are those from `first` to `last`
    first_L = np.concatenate([[0], last_L[:-1]])
    # One more run of no size, for lines without any.
    begin_Q, size_Q = np.append(begin_R, -1), np.append(size_R, 0)
    leads_L = (first_L < last_L) & (begin_Q[first_L] == begin_L)
    lead_L = np.where(leads_L, size_Q[first_L], 0)
    blank_L = lead_L == end_L - begin_L
    trails_L = (first_L < last_L) & (begin_Q[last_L - 1] + size_Q[last_L - 1] == end_L)
    trail_L = np.where(trails_L, size_Q[last_L - 1], 0)
    inner_L, outer_L = first_L + leads_L, last_L - trails_L  # the runs between the words
    long_Q = np.concatenate([[0], np.cumsum(size_R > 1)])
    regular_L = blank_L | (long_Q[outer_L.clip(inner_L)] == long_Q[inner_L])
    frames = zip(lead_L[~blank_L].tolist(), regular_L[~blank_L].tolist(), trail_L[~blank_L].tolist(), strict=True)
    gaps = _between(size_R, inner_L[~regular_L], outer_L[~regular_L])
    return LineSpaces(Counter(frames), Counter(gaps.tolist()), lead_L[blank_L].tolist())


def _between(values: Ints, begin_M: Ints, end_M: Ints) -> Ints:
    """The values of some ranges of places, which lie one after another."""
    change = np.zeros(len(values) + 1, np.int64)
    np.add.at(change, begin_M, 1)
    np.add.at(change, end_M, -1)
    return values[np.cumsum(change[:-1]) > 0]
