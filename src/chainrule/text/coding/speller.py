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
        symbols_N, contexts_N = _events(list(words))
        self._levels = [_count(symbols_N, contexts_N % BASE**order) for order in range(ORDER)]
        self._rows: dict[int, Floats] = {}

    def bits_of(self, words: Sequence[bytes]) -> Floats:
        """The code length of each word, including its end."""
        symbols_N, contexts_N = _events(words)
        bits_N = -np.log2(self._probabilities(symbols_N, contexts_N))
        starts = np.cumsum([0, *(len(word) + 1 for word in words)])[:-1]
        return np.add.reduceat(bits_N, starts) if len(words) else np.zeros(0)

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
            count_N = _look_up(level.keys, level.counts, suffixes_N * BASE + symbols_N)
            total_N = _look_up(level.contexts, level.totals, suffixes_N)
            kinds_N = _look_up(level.contexts, level.kinds, suffixes_N)
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


def _count(symbols_N: Ints, contexts_N: Ints) -> _Level:
    keys, counts = np.unique(contexts_N * BASE + symbols_N, return_counts=True)
    contexts, first, kinds = np.unique(keys // BASE, return_index=True, return_counts=True)
    totals = np.add.reduceat(counts, first) if len(keys) else counts
    return _Level(keys, counts, contexts, totals, kinds)


def _look_up(keys: Ints, values: Ints, wanted_N: Ints) -> Ints:
    """The value of each wanted key, 0 where it is missing; `keys` are sorted."""
    if not len(keys):
        return np.zeros(len(wanted_N), np.int64)
    at_N = np.minimum(np.searchsorted(keys, wanted_N), len(keys) - 1)
    return np.where(keys[at_N] == wanted_N, values[at_N], 0)
