"""The spelling of words outside the vocabulary: a model over bytes, fitted to the words of the vocabulary.

An interpolated Witten-Bell n-gram model (Witten & Bell 1991) of order 4 over the UTF-8 bytes of each word and an end
symbol. Every word of the vocabulary counts once, since unknown words resemble rare words, not frequent ones:

    p_k(s | c) = (n(c s) + T(c) p_{k-1}(s | c')) / (n(c) + T(c)),      p_{-1} = 1/257

with n(c s) the count of symbol s after the context c, T(c) the number of different symbols after it, and c' the
context without its first symbol. Every string of bytes has a probability above zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chainrule.text.coding.coders import Coder

ORDER = 4
END = 256
SYMBOLS = 257
START = 257  # in contexts, for the positions before the first byte
BASE = 258  # of contexts written as numbers
WORDS = 1 << 14
"""Words counted at once."""

MAX_WORDS = 1 << 16
"""Words whose code length is kept."""

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class _Level(NamedTuple):
    """Sorted counts of one order: for each context and symbol, and for each context."""

    keys: Ints  # context * BASE + symbol
    counts: Ints
    contexts: Ints
    totals: Ints  # n(c)
    kinds: Ints  # T(c)


class Speller:
    """A distribution over the spellings of words."""

    def __init__(self, words: Iterable[bytes]) -> None:
        self._levels = _count_levels(list(words))
        self._rows: dict[int, Floats] = {}
        self._bits: dict[bytes, float] = {}  # of words that were asked for: unknown words recur

    def bits_of(self, words: Sequence[bytes]) -> Floats:
        """The code length of each word, including its end."""
        known = self._bits
        if new := [word for word in dict.fromkeys(words) if word not in known]:
            if len(known) + len(new) > MAX_WORDS:
                known = self._bits = {}
                new = list(dict.fromkeys(words))
            symbols_N, contexts_N = _events(new)
            bits_N = -np.log2(self._probabilities(symbols_N, contexts_N))
            starts = np.cumsum([0, *(len(word) + 1 for word in new)])[:-1]
            known.update(zip(new, np.add.reduceat(bits_N, starts).tolist(), strict=True))
        return np.array([known[word] for word in words])

    def bits(self, word: bytes) -> float:
        """The code length of one word, including its end."""
        return float(self.bits_of([word])[0])

    def code(self, coder: Coder, word: bytes | None) -> bytes:
        """Code a word symbol by symbol; return the word, given or read."""
        spelled = bytearray()
        context = _EMPTY
        while True:
            given = None if word is None else word[len(spelled)] if len(spelled) < len(word) else END
            symbol = coder.code(self.distribution(context), given)
            if symbol == END:
                return bytes(spelled)
            spelled.append(symbol)
            context = (context * BASE + symbol) % BASE ** (ORDER - 1)

    def distribution(self, context: int) -> Floats:
        """p(. | context) over the 256 bytes and the end, V; a context is three symbols as a number of base 258."""
        if context not in self._rows:
            if len(self._rows) > 4096:  # 2 kB each
                self._rows.clear()
            contexts_V = np.full(SYMBOLS, context, np.int64)
            self._rows[context] = self._probabilities(np.arange(SYMBOLS), contexts_V)
        return self._rows[context]

    def _probabilities(self, symbols_N: Ints, contexts_N: Ints) -> Floats:
        """p(symbol | context) of each pair, N, from the uniform distribution up to the highest order."""
        p_N = np.full(len(symbols_N), 1.0 / SYMBOLS)
        for order, level in enumerate(self._levels):
            suffixes_N = contexts_N % BASE**order
            [count_N] = _look_up(level.keys, suffixes_N * BASE + symbols_N, level.counts)
            total_N, kinds_N = _look_up(level.contexts, suffixes_N, level.totals, level.kinds)
            seen_N = total_N > 0
            mixed_N = (count_N + kinds_N * p_N) / np.maximum(total_N + kinds_N, 1)
            p_N = np.where(seen_N, mixed_N, p_N)
        return p_N


_EMPTY = (START * BASE + START) * BASE + START


def _events(words: Sequence[bytes]) -> tuple[Ints, Ints]:
    """Every symbol of every word, its end included, and the three symbols before it as one number, N each."""
    if not words:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    lengths = np.array([len(word) + 1 for word in words])
    ends = np.cumsum(lengths) - 1
    symbols_N = np.full(int(lengths.sum()), END, np.int64)
    inside_N = np.ones(len(symbols_N), bool)
    inside_N[ends] = False
    symbols_N[inside_N] = np.frombuffer(b"".join(words), np.uint8)
    position_N = np.arange(len(symbols_N)) - np.repeat(ends + 1 - lengths, lengths)
    contexts_N = np.zeros(len(symbols_N), np.int64)
    for back in range(ORDER - 1, 0, -1):
        before_N = np.roll(symbols_N, back)
        contexts_N = contexts_N * BASE + np.where(position_N >= back, before_N, START)
    return symbols_N, contexts_N


def _count_levels(words: Sequence[bytes]) -> list[_Level]:
    """The counts of every order; some words at a time, because the events of all take more memory than the words."""
    found = [(np.zeros(0, np.int64), np.zeros(0, np.int64))] * ORDER
    for begin in range(0, len(words), WORDS):
        symbols_N, contexts_N = _events(words[begin : begin + WORDS])
        for order in range(ORDER):
            keys_N = contexts_N % BASE**order * BASE + symbols_N
            found[order] = _add(found[order], np.unique(keys_N, return_counts=True))
    return [_level(*counted) for counted in found]


def _add(one: tuple[Ints, Ints], other: tuple[Ints, Ints]) -> tuple[Ints, Ints]:
    """The sum of two lists of keys and counts."""
    keys, counts = np.concatenate([one[0], other[0]]), np.concatenate([one[1], other[1]])
    order = np.argsort(keys, kind="stable")
    keys, begins = np.unique(keys[order], return_index=True)
    return keys, np.add.reduceat(counts[order], begins)


def _level(keys: Ints, counts: Ints) -> _Level:
    contexts, first, kinds = np.unique(keys // BASE, return_index=True, return_counts=True)
    totals = np.add.reduceat(counts, first) if len(keys) else counts
    return _Level(keys, counts, contexts, totals, kinds)


def _look_up(keys: Ints, wanted_N: Ints, *values: Ints) -> list[Ints]:
    """The values of each wanted key, 0 where it is missing; `keys` are sorted."""
    if not len(keys):
        return [np.zeros(len(wanted_N), np.int64) for _ in values]
    at_N = np.minimum(np.searchsorted(keys, wanted_N), len(keys) - 1)
    found_N = keys[at_N] == wanted_N
    return [np.where(found_N, value[at_N], 0) for value in values]
