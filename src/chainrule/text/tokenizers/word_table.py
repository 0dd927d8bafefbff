"""The words of UTF-8 text, counted and looked up as bytes: no Python object is made for a token.

A token is a newline, or a word: what stands between white space, which is what `str.split` takes for it. Where tokens
begin and end is found without a branch for each byte: a processor cannot foresee the lengths of words, and its wrong
guesses would cost more than all the rest. A token of up to eight bytes is one number, its key; a longer one has a hash
for its key. Tokens are looked up by open addressing, where key and length tell a short one from all others; of a long
one the bytes are compared too, so that a look-up is always exact.

    slots      uint64, two for a place: the key; the length above the 32 bits of the token's number plus one, 0 if the
               place is empty. The places are a power of two, at most half of them in use
    text       uint8, the bytes of the tokens, one after the other
    offsets    int64, where each token starts in `text`, and at last where the text ends

All kernels release the interpreter, so several threads can work on blocks at once.
Legend: N tokens of a text, W different ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from chainrule.base.parallel import ordered_map

Array = NDArray[Any]
kernel = numba.njit(cache=True, nogil=True)
# A call passes an array as seven numbers and counts who refers to it, which is more than the work of these.
inlined = numba.njit(inline="always")

NEWLINE = 0x0A
SHORT = 8  # bytes of a token that is its own key
HALF, LOW, ALL = np.uint64(32), np.uint64(0xFFFFFFFF), np.uint64(0xFFFFFFFFFFFFFFFF)
ODD = np.uint64(0x9E3779B97F4A7C15)  # 2**64 over the golden ratio: multiplying by it spreads keys that lie close
FEWEST_PLACES = 1 << 12


class BlockWords(NamedTuple):
    """The different words of a block, in the order in which they first come; one is data[start:end]."""

    data: Array
    starts_W: Array
    ends_W: Array
    keys_W: Array
    counts_W: Array


class WordCounts:
    """How often each word came. It takes about 60 bytes a word besides its letters."""

    def __init__(self) -> None:
        self._size = 0
        self._slots = np.zeros(2 * FEWEST_PLACES, np.uint64)
        self._text = np.empty(0, np.uint8)
        self._offsets = np.zeros(1, np.int64)
        self._keys = np.empty(0, np.uint64)
        self._counts = np.empty(0, np.int64)

    def __len__(self) -> int:
        return self._size

    def add(self, block: BlockWords) -> None:
        """Count the words of one more block."""
        numbers_W = _look_up(block.data, block.starts_W, block.ends_W, self._slots, self._text, self._offsets, -1)
        known_W = numbers_W >= 0
        self._counts[numbers_W[known_W]] += block.counts_W[known_W]
        if not known_W.all():
            data, *fields = block
            self._append(BlockWords(data, *(field[~known_W] for field in fields)))

    def without_rare(self, least: int) -> WordCounts:
        """The counts of the words that came `least` times or more."""
        kept = np.flatnonzero(self._counts[: self._size] >= least)
        starts, ends = self._offsets[kept], self._offsets[kept + 1]
        result = WordCounts()
        result._append(BlockWords(self._text, starts, ends, self._keys[kept], self._counts[kept]))
        return result

    def counter(self) -> Counter[str]:
        """Each word with its count."""
        text, cuts = self._text.tobytes(), self._offsets[: self._size + 1].tolist()
        words = (text[start:end].decode(errors="surrogatepass") for start, end in pairwise(cuts))
        return Counter(dict(zip(words, self._counts[: self._size].tolist(), strict=True)))

    def _append(self, new: BlockWords) -> None:
        """Take words that are not here yet."""
        size, lengths_W = self._size + len(new.counts_W), new.ends_W - new.starts_W
        old, self._size = self._size, size
        self._offsets = _enlarged(self._offsets, size + 1)
        self._offsets[old + 1 : size + 1] = self._offsets[old] + np.cumsum(lengths_W)
        self._text = _enlarged(self._text, int(self._offsets[size]))
        self._keys, self._counts = _enlarged(self._keys, size), _enlarged(self._counts, size)
        self._keys[old:size], self._counts[old:size] = new.keys_W, new.counts_W
        _copy(new.data, new.starts_W, self._text, self._offsets[old : size + 1])
        if 4 * size > len(self._slots):
            self._slots = _slots_for(self._keys[:size], np.diff(self._offsets[: size + 1]))
        else:
            _insert(self._slots, new.keys_W, lengths_W, old)


class TokenIndex:
    """Looks the tokens of a text up in a list of them."""

    def __init__(self, tokens: Sequence[str], *, missing: int) -> None:
        """A token's id is its place in `tokens`, or `missing` if it is not there. Only empty strings may repeat."""
        encoded = [token.encode(errors="surrogatepass") for token in tokens]
        lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
        self._missing = missing
        # An array that can be written, as in `WordCounts`: kernels are compiled for either kind.
        self._text = np.frombuffer(bytearray().join(encoded), np.uint8)
        self._offsets = np.zeros(len(encoded) + 1, np.int64)
        np.cumsum(lengths, out=self._offsets[1:])
        self._slots = _slots_for(_keys(self._text, self._offsets), lengths)

    def encode(self, data: bytes) -> NDArray[np.int32]:
        """The ids of the tokens of a text in UTF-8, N."""
        return _encode(np.frombuffer(data, np.uint8), self._slots, self._text, self._offsets, self._missing)

    def look_up(self, data: Array, starts: Array, ends: Array) -> NDArray[np.int32]:
        """The ids of the tokens that stand at some places of a text, in the shape of the places."""
        flat = _look_up(
            data, starts.reshape(-1), ends.reshape(-1), self._slots, self._text, self._offsets, self._missing
        )
        return flat.reshape(starts.shape)


def count_block(data: bytes) -> BlockWords:
    """The different words of a text in UTF-8, with their counts."""
    return BlockWords(*_count(np.frombuffer(data, np.uint8)))


def count_words(blocks: Iterable[str], *, most_types: int, threads: int, rarest: int = 1) -> Counter[str]:
    """Occurrences of each word that came `rarest` times or more, of which alone strings are made.

    Beyond `most_types` different words the rarest are dropped, to bound the memory.

    Threads count blocks by themselves, in tables that fit into their caches; these are added up in order.
    """
    counts = WordCounts()
    for found in ordered_map(lambda block: count_block(block.encode(errors="surrogatepass")), blocks, threads):
        counts.add(found)
        least = 1
        while len(counts) > most_types:
            least += 1
            counts = counts.without_rare(least)
    return (counts.without_rare(rarest) if rarest > 1 else counts).counter()


def _enlarged(array: Array, size: int) -> Array:
    """The array with room for `size` values; it grows by doubling, so that a value is copied few times."""
    if size <= len(array):
        return array
    larger = np.empty(max(size, 2 * len(array)), array.dtype)
    larger[: len(array)] = array
    return larger


def _slots_for(keys_W: Array, lengths_W: Array) -> Array:
    """Slots for different tokens, filled by a quarter to a half."""
    slots = np.zeros(2 * max(FEWEST_PLACES, 1 << (2 * len(keys_W)).bit_length()), np.uint64)
    _insert(slots, keys_W, lengths_W, 0)
    return slots


# Where tokens are


@kernel
def _gaps(data: Array) -> Array:
    """1 for each byte of white space, 0 for each byte of a word, uint8."""
    gaps = np.empty(len(data), np.uint8)
    doubtful = np.uint8(0)
    for at in range(len(data)):  # without branches, so that it is done for many bytes at once
        byte = data[at]
        gaps[at] = ((byte >= 0x1C) & (byte <= 0x20)) | ((byte >= 0x09) & (byte <= 0x0D))
        doubtful |= np.uint8((byte >= 0xC2) & (byte <= 0xE3))
    if doubtful:
        for at in range(len(data)):
            if 0xC2 <= data[at] <= 0xE3:
                for byte in range(_wide_gap(data, at)):
                    gaps[at + byte] = 1
    return gaps


@kernel
def _wide_gap(data: Array, at: int) -> int:
    """The length of the white space character of two or three bytes at `at`, 0 if there is none."""
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
def _tokens(data: Array) -> tuple[Array, Array]:
    """Where each token starts and where it ends, N and N."""
    gaps = _gaps(data)
    size, before = 0, np.uint8(1)
    for at in range(len(data)):
        size += (before & (gaps[at] ^ 1)) | (data[at] == NEWLINE)
        before = gaps[at]
    # Each byte is noted as a start and as an end, and the note stays if it was one: hence one more than there are.
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


# Keys and places


@inlined
def _eight(data: Array, at: int) -> np.uint64:
    """Eight bytes as one number; the compiler makes one load of it."""
    first = np.uint64(at)  # an index without a sign is not tested for counting from the end
    number = np.uint64(0)
    for byte in range(SHORT):
        number |= np.uint64(data[first + np.uint64(byte)]) << np.uint64(8 * byte)
    return number


@inlined
def _key(data: Array, start: int, end: int) -> np.uint64:
    """The token data[start:end] itself if it is short, else a hash of it."""
    length = end - start
    key = np.uint64(0)
    if length > SHORT:
        key = np.uint64(length)
        for at in range(start, end - SHORT, SHORT):
            key = (key ^ _eight(data, at)) * ODD
            key ^= key >> HALF
        key = (key ^ _eight(data, end - SHORT)) * ODD  # these eight bytes may overlap with those before
    elif start + SHORT <= len(data):
        key = _eight(data, start) & (ALL >> np.uint64(8 * (SHORT - length)))
    else:
        for at in range(start, end):
            key |= np.uint64(data[at]) << np.uint64(8 * (at - start))
    return key


@inlined
def _first_place(key: np.uint64, places: int) -> np.int64:
    """Where to begin looking for a key: of two multiplications, so that every bit of the key has a say."""
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
def _keys(text: Array, offsets: Array) -> Array:
    """The key of each token of a list, W."""
    keys_W = np.empty(len(offsets) - 1, np.uint64)
    for token in range(len(keys_W)):
        keys_W[token] = _key(text, offsets[token], offsets[token + 1])
    return keys_W


@kernel
def _insert(slots: Array, keys_W: Array, lengths_W: Array, first: int) -> None:
    """Give tokens that are not in the slots the numbers from `first` on; empty ones are left out."""
    places = len(slots) // 2
    for token in range(len(keys_W)):
        place = _first_place(keys_W[token], places)
        while slots[2 * place + 1] != 0:
            place = (place + 1) & (places - 1)
        if lengths_W[token] > 0:
            slots[2 * place] = keys_W[token]
            slots[2 * place + 1] = np.uint64(lengths_W[token]) << HALF | np.uint64(first + token + 1)


@kernel
def _copy(data: Array, starts_W: Array, text: Array, offsets: Array) -> None:
    """Put the bytes of tokens where the offsets say."""
    for token in range(len(starts_W)):
        for byte in range(offsets[token + 1] - offsets[token]):
            text[offsets[token] + byte] = data[starts_W[token] + byte]


# Looking up and counting: both probe in their own loop, since a shared function would cost more than it does


@kernel
def _look_up(
    data: Array, starts_N: Array, ends_N: Array, slots: Array, text: Array, offsets: Array, missing: int
) -> Array:
    """The number of each token, `missing` for those that have none, N."""
    numbers_N = np.empty(len(starts_N), np.int32)
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
    return numbers_N


@kernel
def _encode(data: Array, slots: Array, text: Array, offsets: Array, missing: int) -> Array:
    """The number of each token of a text, N."""
    starts_N, ends_N = _tokens(data)
    return _look_up(data, starts_N, ends_N, slots, text, offsets, missing)


@kernel
def _count(data: Array) -> tuple[Array, Array, Array, Array, Array]:
    """The fields of `BlockWords`."""
    starts_N, ends_N = _tokens(data)
    size, places = 0, FEWEST_PLACES
    slots = np.zeros(2 * places, np.uint64)
    # Room for the worst case: memory that is not written costs nothing.
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
            _insert(slots, keys[:size], ends[:size] - starts[:size], 0)
    return data, starts[:size].copy(), ends[:size].copy(), keys[:size].copy(), counts[:size].copy()
