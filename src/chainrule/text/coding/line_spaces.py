"""The spaces of the lines of a text, measured for all lines at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from chainrule.base.lazy import LazyKernels

if TYPE_CHECKING:
    from chainrule.text.tokenizers.word_table import Words

SPACE, NEWLINE = ord(" "), ord("\n")
OTHER_SPACES = "\t\v\f\r\x1c\x1d\x1e\x1f\x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(
    map(chr, range(0x2000, 0x200B))
)
OTHER_ASCII = 8
"""The first of them, which are ASCII."""

Ints = np.ndarray[Any, np.dtype[np.int64]]

_kernels = LazyKernels("chainrule.text.coding.space_kernels", budget=1 << 23)  # bytes; 0.05 s or less


class LineSpaces(NamedTuple):
    """Numbers of spaces, and how often each occurs, in the order of the text."""

    frames: Counter[tuple[int, bool, int]]  # of lines with words: before the first, single gaps, after the last
    gaps: Counter[int]  # of lines with other gaps than single spaces: each gap between words
    blank: Counter[int]  # of lines without words


def line_spaces(text: str, words: Words | None = None) -> LineSpaces | None:
    """Measure whole lines, of which the words may be known; None: there is white space besides spaces and newlines."""
    kernels = _kernels.after(len(text))
    if kernels is not None:
        return _measure_compiled(words or kernels.Words.of(text.encode(errors="surrogatepass")), kernels)
    if any(space in text for space in (OTHER_SPACES[:OTHER_ASCII] if text.isascii() else OTHER_SPACES)):
        return None
    return _measure(np.frombuffer(text.encode(errors="surrogatepass"), np.uint8))


def _measure_compiled(words: Words, kernels: Any) -> LineSpaces | None:
    data = np.frombuffer(words.data, np.uint8)
    codes_L, gaps, total = kernels.line_codes(data, words.starts_N, words.ends_N)
    if total != np.count_nonzero(data == SPACE):
        return None
    frames, blank, most = Counter[tuple[int, bool, int]](), Counter[int](), (1 << kernels.LEAD - kernels.TRAIL) - 1
    for code, times in _tallied(codes_L, kernels):
        lead = code >> kernels.LEAD
        if code & kernels.BLANK:
            blank[lead] = times
        else:
            frames[lead, bool(code & kernels.REGULAR), code >> kernels.TRAIL & most] = times
    return LineSpaces(frames, Counter(dict(_tallied(gaps, kernels))), blank)


def _tallied(values: Ints, kernels: Any) -> Iterator[tuple[int, int]]:
    """The different values in the order of their first occurrence, with the number of occurrences."""
    found, times = kernels.tally(values)
    return zip(found.tolist(), times.tolist(), strict=True)


def _measure(bytes_N: Any) -> LineSpaces:
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
    return LineSpaces(Counter(frames), Counter(gaps.tolist()), Counter(lead_L[blank_L].tolist()))


def _between(values: Ints, begin_M: Ints, end_M: Ints) -> Ints:
    """The values of some ranges of places, which lie one after another."""
    change = np.zeros(len(values) + 1, np.int64)
    np.add.at(change, begin_M, 1)
    np.add.at(change, end_M, -1)
    return values[np.cumsum(change[:-1]) > 0]
