"""Every window of n tokens of a text in sorted order, from which all counts follow; n is the order of the model.

A window starts at each token and contains it and the n - 1 tokens after it. In sorted order equal windows are adjacent,
and so are windows with equal beginnings: the n-grams of every order are groups of adjacent windows, and one sort counts
them all.

A text is `eos` and its tokens. Where lines are independent, a window ends with the first `eos` after its first token,
because no n-gram crosses the end of a line; an `eos` that starts a window is the beginning of the next line.

The sort is a radix sort from the first word on. A counting sort orders the windows by their first word. Then each group
of windows that are equal so far is sorted by the next one or more words; many groups are sorted together, as integers
of (group, words, slot), by one call of numpy. A slot is a position in sorted order.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
from numba import njit

from chainrule.base.arrays import Array

NOTHING = np.uint32(0xFFFFFFFF)
"""The id after the last token of a text."""

SAME, ENDED = np.uint8(255), np.uint8(254)
"""In `shared`: equal to the previous window as far as compared; equal to it, and both have ended."""

SPAN = 1 << 20
"""The largest number of windows that one call sorts, unless a single group is larger."""

KEY_BITS = 64
MIDDLE_BITS = 26
"""Bits of a key reserved for groups and slots where there is a choice: spans of some thousand windows."""


class Windows(NamedTuple):
    """Sorted windows. That of slot i begins at ids[places[i]] and ends after n tokens, with eos, or before NOTHING."""

    ids: Array  # uint32
    places: Array  # uint32
    shared: Array  # uint8: number of leading tokens equal to those of the previous window; n or more: all
    counts: Array  # int64: occurrences of each window; empty: one each


def stream(tokens: Array, begin: int, end: int, eos: int, order: int) -> Array:
    """Places `begin` to `end` of eos and the tokens, and the n places after them, NOTHING after the last -> uint32."""
    ids = np.full(end - begin + order, NOTHING, np.uint32)
    first = max(begin, 1)  # place 0 is the eos before the text
    known = tokens[first - 1 : end + order - 1]
    ids[first - begin : first - begin + len(known)] = known
    if begin == 0:
        ids[0] = eos
    return ids


def sort_windows(ids: Array, count: int, *, order: int, vocab_size: int, eos: int, threads: int) -> Windows:
    """Sort the windows that start at the first `count` places of `ids`; `eos` is -1 if windows may cross lines."""
    places, shared = np.empty(count, np.uint32), np.empty(count, np.uint8)
    _sort_by_first_word(ids, count, vocab_size, places, shared)
    word_bits, depth = int(vocab_size + 1).bit_length(), 1
    slot_bits = max(MIDDLE_BITS, int(_largest_group(shared)).bit_length())
    with ThreadPoolExecutor(threads) as executor:
        while depth < order:
            words = min(order - depth, max(1, (KEY_BITS - slot_bits) // word_bits))

            def refine(span: tuple[int, int], depth: int = depth, words: int = words) -> None:
                _refine(ids, places, shared, span, depth, words, word_bits, eos)

            spare_bits = KEY_BITS - words * word_bits
            for _ in executor.map(refine, _spans(shared, min(SPAN, 1 << ((spare_bits - 1) // 2)))):
                pass
            depth += words
    return Windows(ids, places, shared, np.empty(0, np.int64))


def _spans(shared: Array, size: int) -> Iterator[tuple[int, int]]:
    """Divide the slots into spans of at most `size`, or of one group if that is larger."""
    begin = 0
    while begin < len(shared):
        end = _cut(shared, begin, begin + size)
        yield begin, end
        begin = end


@njit(cache=True, nogil=True)
def _cut(shared: Array, begin: int, end: int) -> int:
    """The start of the group at slot `end`; if that is `begin`, the end of the group."""
    if end >= len(shared):
        return len(shared)
    cut = end
    while cut > begin and shared[cut] == SAME:
        cut -= 1
    if cut == begin:
        cut = end
        while cut < len(shared) and shared[cut] == SAME:
            cut += 1
    return cut


@njit(cache=True, nogil=True)
def _sort_by_first_word(ids: Array, count: int, vocab_size: int, places: Array, shared: Array) -> None:
    """Sort all places by their first token: a counting sort."""
    starts = np.zeros(vocab_size + 1, np.int64)
    for place in range(count):
        starts[ids[place] + 1] += 1
    for word in range(vocab_size):
        starts[word + 1] += starts[word]
    shared[:] = SAME
    for word in range(vocab_size):
        if starts[word] < count:
            shared[starts[word]] = 0
    for place in range(count):
        word = ids[place]
        places[starts[word]] = place
        starts[word] += 1


@njit(cache=True, nogil=True)
def _largest_group(shared: Array) -> int:
    """The largest number of windows with the same first token."""
    largest, size = 0, 0
    for slot in range(len(shared)):
        size = size + 1 if shared[slot] == SAME else 1
        largest = max(largest, size)
    return largest


def _refine(
    ids: Array,
    places: Array,
    shared: Array,
    span: tuple[int, int],
    depth: int,
    words: int,
    word_bits: int,
    eos: int,
) -> None:
    """Sort the windows of each group in a span of slots by `words` tokens from `depth` on; mark where they differ."""
    begin, end = span
    keys, slots = np.empty(end - begin, np.uint64), np.empty(end - begin, np.uint32)
    slot_bits = int(end - begin).bit_length()
    used = _list_active(shared, begin, end, words * word_bits + slot_bits, keys, slots)
    if not used:
        return
    keys, slots = keys[:used], slots[:used]
    _add_words(ids, places, begin, depth, words, word_bits, slot_bits, eos, keys, slots)
    keys.sort()
    before = places[begin:end].copy()
    _apply_order(keys, slots, places, shared, before, depth, words, word_bits, slot_bits, eos)


@njit(cache=True, nogil=True)
def _list_active(shared: Array, begin: int, end: int, shift: int, keys: Array, slots: Array) -> int:
    """List the slots of groups of two or more, with the number of the group as the head of the key -> the number."""
    used, group = 0, 0
    for slot in range(begin, end):
        grouped = shared[slot] == SAME
        if grouped or (slot + 1 < end and shared[slot + 1] == SAME):
            if not grouped:
                group += 1
            keys[used] = np.uint64(group - 1) << np.uint64(shift) if shift < 64 else np.uint64(0)
            slots[used] = slot
            used += 1
    return used


@njit(cache=True, nogil=True)
def _add_words(
    ids: Array,
    places: Array,
    begin: int,
    depth: int,
    words: int,
    word_bits: int,
    slot_bits: int,
    eos: int,
    keys: Array,
    slots: Array,
) -> None:
    """Put the words (as id + 1; 0 after the end) and the slot into the keys. Without branches, so the reads overlap."""
    for number in range(len(keys)):
        slot = slots[number]
        place = np.int64(places[slot]) + depth
        head, alive = np.uint64(0), np.uint64(1)
        for word in range(words):
            token = ids[place + word]
            head = (head << np.uint64(word_bits)) | (np.uint64(np.uint32(token + np.uint32(1))) * alive)
            alive &= np.uint64((token != eos) & (token != NOTHING))
        keys[number] |= (head << np.uint64(slot_bits)) | np.uint64(slot - begin)


@njit(cache=True, nogil=True)
def _apply_order(
    keys: Array,
    slots: Array,
    places: Array,
    shared: Array,
    before: Array,
    depth: int,
    words: int,
    word_bits: int,
    slot_bits: int,
    eos: int,
) -> None:
    """Move the windows to the order of the keys. Groups keep their slots, so the i-th key belongs to the i-th slot."""
    slot_mask = (np.uint64(1) << np.uint64(slot_bits)) - np.uint64(1)
    word_mask = (np.uint64(1) << np.uint64(word_bits)) - np.uint64(1)
    last_head = np.uint64(0)
    for number in range(len(keys)):
        slot = slots[number]
        places[slot] = before[np.int64(keys[number] & slot_mask)]
        head = keys[number] >> np.uint64(slot_bits)
        if shared[slot] == SAME:  # not the first of its group
            different = head ^ last_head
            if different == 0:
                final = np.int64(head & word_mask)
                if final == 0 or final == eos + 1:
                    shared[slot] = ENDED
            else:
                equal = words
                while different != 0:
                    different >>= np.uint64(word_bits)
                    equal -= 1
                shared[slot] = depth + equal
        last_head = head
