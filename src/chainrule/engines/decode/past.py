"""What the state of a stack keeps of its rows: keys and values at places, or the sums of linear attention."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self

import numpy as np

from chainrule.engines.decode.linear import aligned

Array = np.ndarray[Any, Any]

NO_CACHE = np.empty(0, np.float32), 0, 0, np.empty(0, np.int32), np.empty(0, np.int64), 0
NO_SUMS = np.empty(0, np.float32), np.empty(0, np.int64), np.empty(0, np.float32), 0

KernelPast = tuple[tuple[Array, int, int, Array, Array, int], tuple[Array, Array, Array, int]]
"""(cache, sums), as `stack_kernel.read_tokens` takes them."""


class Past:
    """The past of R rows. It stays as it is: what extends it is another one, which may share storage with it."""

    __slots__ = ()

    rewinds: ClassVar[bool] = False
    """Whether the last tokens of a row can be removed: it then ends earlier, and nothing else changes."""

    @property
    def positions(self) -> int:
        """Positions that a row has room for, where each is kept."""
        return 0

    @property
    def kept_tokens(self) -> Array:
        """The tokens of each row, RL, where they are kept."""
        raise TypeError(f"{type(self).__name__} keeps no tokens")

    def extend(
        self, new: int, before_R: Array, after_R: Array, longest: int
    ) -> tuple[Past, Callable[[int], KernelPast]]:
        """The past with `new` more tokens, which a kernel is yet to read: rows of lengths `before_R` get `after_R`.

        The function gives what the kernel takes for the tokens from a number on. `longest` is the largest length.
        """
        raise TypeError(f"{type(self).__name__} must define extend")

    def withdraw(self, count: int, after_R: Array) -> None:
        """The last `count` of the new tokens of `extend` were not read, so that the lengths are `after_R`."""

    def select(self, rows_K: Array, length_K: Array) -> Past:
        """Row k is row rows_K[k] of this past, of length length_K[k]."""
        raise TypeError(f"{type(self).__name__} must define select")

    def join(self, others: Sequence[Self], lengths: Sequence[Array]) -> Past:
        """The rows of this past, then those of others; `lengths` are those of the rows of each."""
        raise TypeError(f"{type(self).__name__} must define join")


class Sums(Past):
    """The sums of linear attention: row r has those in row from_R[r] of a table, so that selecting copies integers."""

    __slots__ = ("from_R", "sums_TX")

    def __init__(self, sums_TX: Array, from_R: Array) -> None:
        self.sums_TX, self.from_R = sums_TX, from_R

    @classmethod
    def empty(cls, rows: int, slots: int) -> Sums:
        """The sums of empty texts, `slots` numbers each."""
        return cls(np.zeros((1, slots), np.float32), np.zeros(rows, np.int64))

    def extend(
        self, new: int, before_R: Array, after_R: Array, longest: int
    ) -> tuple[Past, Callable[[int], KernelPast]]:
        R, slots = len(self.from_R), self.sums_TX.shape[1]
        sums = aligned(R * slots)
        given = NO_CACHE, (self.sums_TX.reshape(-1), self.from_R, sums, slots)
        return Sums(sums.reshape(R, slots), np.arange(R)), lambda begin: given

    def select(self, rows_K: Array, length_K: Array) -> Sums:
        return Sums(self.sums_TX, self.from_R[rows_K])

    def join(self, others: Sequence[Sums], lengths: Sequence[Array]) -> Sums:
        sums_RX = np.concatenate([one.sums_TX[one.from_R] for one in (self, *others)])
        return Sums(sums_RX, np.arange(len(sums_RX)))
