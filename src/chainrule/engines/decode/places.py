"""Where the keys and values of each position of each row lie: the memory of attention, shared by all states.

A pool has places for keys and values, for all layers. A new position takes the next free place, whichever row it
belongs to, and a row lists the places of its positions. So reordering the hypotheses of a beam copies lists of small
integers, rows with a common past share its places, and rows may have different lengths. A place is never written
again, so a state stays as it is while someone holds it. When a pool is full, the places that the rows of a state use
are copied into a new one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from chainrule.engines.decode.linear import aligned
from chainrule.engines.decode.past import NO_SUMS, KernelPast, Past

Array = np.ndarray[Any, Any]

FIRST_PLACES = 64
"""Places of the first pool, and positions that a row has room for."""


class Pool:
    """Keys and values of `capacity` places: layers × 2 × capacity × X numbers in a flat array."""

    __slots__ = ("capacity", "layers", "numbers", "used", "width")

    def __init__(self, layers: int, width: int, capacity: int) -> None:
        self.layers, self.width, self.capacity, self.used = layers, width, capacity, 0
        self.numbers = aligned(layers * 2 * capacity * width)

    @property
    def parts(self) -> Array:
        """The numbers as layers × 2 × capacity × X."""
        return self.numbers.reshape(self.layers, 2, self.capacity, self.width)


class Rows:
    """The rows of a state: their tokens, and the places of their positions.

    States that follow one another share the tables. `filled_R` is how far they are filled: a state that ends there may
    append in place, any other copies the tables first.
    """

    __slots__ = ("filled_R", "places_RL", "tokens_RL")

    def __init__(self, places_RL: Array, tokens_RL: Array, filled_R: Array) -> None:
        self.places_RL, self.tokens_RL, self.filled_R = places_RL, tokens_RL, filled_R

    @classmethod
    def empty(cls, rows: int, room: int) -> Rows:
        places_RL = np.zeros((rows, room), np.int32)
        return cls(places_RL, np.zeros((rows, room), np.int64), np.zeros(rows, np.int64))

    def select(self, rows_K: Array, length_K: Array) -> Rows:
        """A copy of some rows, which have these lengths."""
        return Rows(self.places_RL[rows_K], self.tokens_RL[rows_K], length_K.copy())

    def with_room(self, length_R: Array, positions: int) -> Rows:
        """These rows, or a copy of them, to which positions may be appended at `length_R`, `positions` in all."""
        room = self.places_RL.shape[1]
        if positions <= room and (self.filled_R is length_R or (self.filled_R == length_R).all()):
            return self
        places_RL, tokens_RL = self.places_RL, self.tokens_RL
        if positions > room:
            more = ((0, 0), (0, max(positions, 2 * room) - room))
            return Rows(np.pad(places_RL, more), np.pad(tokens_RL, more), length_R.copy())
        return Rows(places_RL.copy(), tokens_RL.copy(), length_R.copy())


class Places(Past):
    """The pool of a state, and its rows."""

    __slots__ = ("pool", "rows")

    rewinds = True

    def __init__(self, pool: Pool, rows: Rows) -> None:
        self.pool, self.rows = pool, rows

    @classmethod
    def empty(cls, rows: int, layers: int, width: int, window: int) -> Places:
        """The places of empty texts, which grow to at most `window` positions."""
        return cls(Pool(layers, width, rows * FIRST_PLACES), Rows.empty(rows, min(window, FIRST_PLACES)))

    @property
    def positions(self) -> int:
        return int(self.rows.places_RL.shape[1])

    @property
    def kept_tokens(self) -> Array:
        return self.rows.tokens_RL

    def extend(
        self, new: int, before_R: Array, after_R: Array, longest: int
    ) -> tuple[Past, Callable[[int], KernelPast]]:
        pool, rows = self._space(new, before_R, longest)
        first = pool.used
        pool.used += new
        rows.filled_R = after_R
        places, tokens, room = rows.places_RL.reshape(-1), rows.tokens_RL.reshape(-1), rows.places_RL.shape[1]
        return Places(pool, rows), lambda begin: (
            (pool.numbers, pool.capacity, first + begin, places, tokens, room),
            NO_SUMS,
        )

    def withdraw(self, count: int, after_R: Array) -> None:
        self.pool.used -= count
        self.rows.filled_R = after_R

    def _space(self, new: int, length_R: Array, longest: int) -> tuple[Pool, Rows]:
        """The pool and the rows with room for `new` places, and for `longest` positions of each row."""
        if self.pool.used + new > self.pool.capacity:
            return self._new_pool(new, length_R, longest)
        return self.pool, self.rows.with_room(length_R, longest)

    def _new_pool(self, new: int, length_R: Array, longest: int) -> tuple[Pool, Rows]:
        """The rows with a pool of their own, which has room for `new` more places."""
        own = joined([(self.pool, self.rows, length_R)])
        pool = own.pool
        if pool.used + new > pool.capacity:
            larger = Pool(pool.layers, pool.width, 2 * (pool.used + new))
            larger.parts[:, :, : pool.used] = pool.parts[:, :, : pool.used]
            larger.used, pool = pool.used, larger
        return pool, own.rows.with_room(length_R, longest)

    def select(self, rows_K: Array, length_K: Array) -> Places:
        return Places(self.pool, self.rows.select(rows_K, length_K))

    def join(self, others: Sequence[Places], lengths: Sequence[Array]) -> Places:
        parts = (self, *others)
        return appended([(one.pool, one.rows, length_R) for one, length_R in zip(parts, lengths, strict=True)])


Part = tuple[Pool, Rows, Array]
"""The pool of a state, its rows, and their lengths."""


def joined(parts: list[Part]) -> Places:
    """The rows of several states, with their places in a new pool, which has no others."""
    used = [used_places(one, length_R) for _, one, length_R in parts]
    first = parts[0][0]
    return _collect(parts, used, Pool(first.layers, first.width, 2 * sum(map(len, used)) + FIRST_PLACES))


def appended(parts: list[Part]) -> Places:
    """The rows of several states, in the pool of the first if it has room, so that only the others are copied."""
    pool = parts[0][0]
    used = [None if one_pool is pool else used_places(one, length_R) for one_pool, one, length_R in parts]
    if pool.used + sum(len(places_N) for places_N in used if places_N is not None) > pool.capacity:
        return joined(parts)
    return _collect(parts, used, pool)


def _collect(parts: list[Part], used: Sequence[Array | None], pool: Pool) -> Places:
    """The rows of all parts; `used` has the places to copy into the pool, None of a part that is in it."""
    lengths_R = np.concatenate([lengths for _, _, lengths in parts])
    room = max(FIRST_PLACES, int(lengths_R.max(initial=0)) + 1)
    rows = Rows.empty(len(lengths_R), room)
    rows.filled_R[:] = lengths_R
    row = 0
    for (old, one, length_R), places_N in zip(parts, used, strict=True):
        count, columns = len(length_R), min(room, one.places_RL.shape[1])
        places_RL = one.places_RL[:, :columns]
        if places_N is not None:
            end = pool.used + len(places_N)
            pool.parts[:, :, pool.used : end] = old.parts[:, :, places_N]
            places_RL = np.searchsorted(places_N, places_RL) + pool.used
            pool.used = end
        rows.places_RL[row : row + count, :columns] = places_RL
        rows.tokens_RL[row : row + count, :columns] = one.tokens_RL[:, :columns]
        row += count
    return Places(pool, rows)


def used_places(rows: Rows, length_R: Array) -> Array:
    """The places of all positions, in ascending order."""
    within_RL = np.arange(rows.places_RL.shape[1]) < length_R[:, None]
    return np.unique(rows.places_RL[within_RL])
