"""The words of UTF-8 text, counted and looked up as bytes: no Python object is created for a token.

A token is a newline, or a word between white space as `str.split` defines it. The begins and ends of tokens are found
without a branch per byte: the lengths of words are unpredictable, and mispredicted branches would cost more than all
the rest. The key of a token of up to eight bytes is these bytes as a number; that of a longer one is a hash. Tokens are
looked up by open addressing. Key and length identify a short token; of a long one the bytes are compared too, so that
look-ups are always exact.

    slots      uint64, two for each place: the key; the length in the upper 32 bits with the token's index plus one in
               the lower, 0 if the place is empty. The number of places is a power of two, at most half are in use
    text       uint8, the bytes of the tokens, one after the other
    offsets    int64, where each token starts in `text`, followed by the end of the text

All kernels release the interpreter lock, so several threads can work on blocks at once. N are the tokens of a text, V
its different words.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chainrule.base.arrays import Array
from chainrule.base.parallel import ordered_map
from chainrule.text.tokenizers import word_kernels as kernels


class Words(NamedTuple):
    """The tokens of UTF-8 text, in order; a token is data[start:end]."""

    data: bytes
    starts_N: Array
    ends_N: Array

    @classmethod
    def of(cls, data: bytes) -> Words:
        """Find the tokens of a text."""
        return cls(data, *kernels.tokens(np.frombuffer(data, np.uint8), True))

    def where(self, chosen_N: Array) -> list[bytes]:
        """The chosen tokens."""
        data, bounds = self.data, (self.starts_N[chosen_N].tolist(), self.ends_N[chosen_N].tolist())
        return [data[start:end] for start, end in zip(*bounds, strict=True)]


class BlockWords(NamedTuple):
    """The different words of a block, in order of first occurrence; a word is data[start:end]."""

    data: Array
    starts_V: Array
    ends_V: Array
    keys_V: Array
    counts_V: Array


class WordCounts:
    """The number of occurrences of each word. Takes about 60 bytes per word besides its letters."""

    def __init__(self) -> None:
        self._size = 0
        self._slots = np.zeros(2 * kernels.MIN_PLACES, np.uint64)
        self._text = np.empty(0, np.uint8)
        self._offsets = np.zeros(1, np.int64)
        self._keys = np.empty(0, np.uint64)
        self._counts = np.empty(0, np.int64)

    def __len__(self) -> int:
        return self._size

    def add(self, block: BlockWords) -> None:
        """Count the words of one more block."""
        numbers_V = kernels.look_up(
            block.data, block.starts_V, block.ends_V, self._slots, self._text, self._offsets, -1
        )
        known_V = numbers_V >= 0
        self._counts[numbers_V[known_V]] += block.counts_V[known_V]
        if not known_V.all():
            data, *fields = block
            self._append(BlockWords(data, *(field[~known_V] for field in fields)))

    def without_rare(self, min_count: int) -> WordCounts:
        """The counts of the words that occur at least `min_count` times."""
        kept = np.flatnonzero(self._counts[: self._size] >= min_count)
        starts, ends = self._offsets[kept], self._offsets[kept + 1]
        result = WordCounts()
        result._append(BlockWords(self._text, starts, ends, self._keys[kept], self._counts[kept]))
        return result

    def counter(self) -> Counter[str]:
        """The count of each word."""
        text, cuts = self._text.tobytes(), self._offsets[: self._size + 1].tolist()
        words = (text[start:end].decode(errors="surrogatepass") for start, end in pairwise(cuts))
        return Counter(dict(zip(words, self._counts[: self._size].tolist(), strict=True)))

    def _append(self, new: BlockWords) -> None:
        """Append words that are not in the table yet."""
        size, lengths_V = self._size + len(new.counts_V), new.ends_V - new.starts_V
        old, self._size = self._size, size
        self._offsets = _enlarged(self._offsets, size + 1)
        self._offsets[old + 1 : size + 1] = self._offsets[old] + np.cumsum(lengths_V)
        self._text = _enlarged(self._text, int(self._offsets[size]))
        self._keys, self._counts = _enlarged(self._keys, size), _enlarged(self._counts, size)
        self._keys[old:size], self._counts[old:size] = new.keys_V, new.counts_V
        kernels.copy_tokens(new.data, new.starts_V, self._text, self._offsets[old : size + 1])
        if 4 * size > len(self._slots):
            self._slots = _slots_for(self._keys[:size], np.diff(self._offsets[: size + 1]))
        else:
            kernels.insert(self._slots, new.keys_V, lengths_V, old)


class TokenIndex:
    """Looks up the tokens of a text in a list."""

    def __init__(self, tokens: Sequence[str], *, missing: int) -> None:
        """The id of a token is its index in `tokens`, or `missing`. Only empty strings may repeat."""
        encoded = [token.encode(errors="surrogatepass") for token in tokens]
        lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
        self.missing = missing
        # Writable, as in `WordCounts`: kernels would be compiled again for a read-only array.
        self.text = np.frombuffer(bytearray().join(encoded), np.uint8)
        self.offsets = np.zeros(len(encoded) + 1, np.int64)
        np.cumsum(lengths, out=self.offsets[1:])
        self.slots = _slots_for(kernels.keys_of(self.text, self.offsets), lengths)

    def encode(self, data: bytes, *, unicode: bool = True) -> NDArray[np.int32]:
        """The ids of the tokens of UTF-8 text, N; without `unicode` only white space of ASCII separates words."""
        array = np.frombuffer(data, np.uint8)
        return kernels.encode(array, self.slots, self.text, self.offsets, self.missing, unicode)

    def ids_of(self, words: Words) -> NDArray[np.int32]:
        """The ids of the tokens of a text, N."""
        return self.look_up(np.frombuffer(words.data, np.uint8), words.starts_N, words.ends_N)

    def look_up(self, data: Array, starts: Array, ends: Array) -> NDArray[np.int32]:
        """The ids of the tokens data[start:end], in the shape of `starts`."""
        flat = kernels.look_up(
            data, starts.reshape(-1), ends.reshape(-1), self.slots, self.text, self.offsets, self.missing
        )
        return flat.reshape(starts.shape)


def count_block(data: bytes) -> BlockWords:
    """The different words of UTF-8 text, with their counts."""
    return BlockWords(*kernels.count(np.frombuffer(data, np.uint8)))


def count_words(blocks: Iterable[str], *, max_types: int, threads: int, min_count: int = 1) -> Counter[str]:
    """Occurrences of each word that occurs at least `min_count` times; strings are created for these words only.

    Beyond `max_types` different words the rarest are dropped, to bound the memory. Each thread counts whole blocks, in
    tables that fit into its cache; these are added up in order.
    """
    counts = WordCounts()
    for found in ordered_map(lambda block: count_block(block.encode(errors="surrogatepass")), blocks, threads):
        counts.add(found)
        least = 1
        while len(counts) > max_types:
            least += 1
            counts = counts.without_rare(least)
    return (counts.without_rare(min_count) if min_count > 1 else counts).counter()


def _enlarged(array: Array, size: int) -> Array:
    """The array with room for `size` values; its size at least doubles, so that values are rarely copied."""
    if size <= len(array):
        return array
    larger = np.empty(max(size, 2 * len(array)), array.dtype)
    larger[: len(array)] = array
    return larger


def _slots_for(keys_V: Array, lengths_V: Array) -> Array:
    """Slots for different tokens, a quarter to a half of them in use."""
    slots = np.zeros(2 * max(kernels.MIN_PLACES, 1 << (2 * len(keys_V)).bit_length()), np.uint64)
    kernels.insert(slots, keys_V, lengths_V, 0)
    return slots
