"""Adaptive codes: probabilities are learned from the values coded before, so no model has to be sent.

The length of such a code depends on the counts of the values and not on their order, so `bits` computes it in closed
form from the final counts, without a coder.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from math import lgamma, log
from typing import Generic, TypeVar

import numpy as np

from chainrule.text.coding.coders import Coder

T = TypeVar("T", bound=Hashable)
Spell = Callable[[Coder, T | None], T]
MAX_VALUES = 1024


class AdaptiveChoice(Generic[T]):
    """Codes known values by their counts; a new value is coded as an escape of weight 1, and then spelled.

    p(value) = n(value) / (n + 1), p(new) = 1 / (n + 1): the Chinese restaurant process. When `max_values` are known,
    further new ones are not learned, and their number is added to the weight of the escape.
    """

    def __init__(self, known: Iterable[T], max_values: int = MAX_VALUES) -> None:
        self._index = {value: number for number, value in enumerate(known, start=1)}
        self._known = list(self._index)
        self._primed = len(self._known)
        self._weights = np.ones(max(max_values, self._primed) + 1)  # 0 is the escape
        self._seen = 0

    def add(self, value: T, times: int = 1) -> int:
        """Count a value `times` times; return how many of them had to be spelled."""
        self._seen += times
        number = self._index.get(value, 0)
        if number:
            self._weights[number] += times
            return 0
        if len(self._known) + 1 < len(self._weights):
            self._known.append(value)
            self._index[value] = len(self._known)
            self._weights[len(self._known)] += times - 1
            return 1
        self._weights[0] += times
        return times

    def code(self, coder: Coder, value: T | None, spell: Spell[T]) -> T:
        """Code a value and learn it; return the value, given or read."""
        given = None if value is None else self._index.get(value, 0)
        number = coder.code(self._weights[: len(self._known) + 1], given)
        found = self._known[number - 1] if number else spell(coder, value)
        self.add(found)
        return found

    @property
    def bits(self) -> float:
        """The code length of everything added, without the spelling of new values."""
        used = self._weights[: len(self._known) + 1]
        nats = lgamma(self._primed + 1 + self._seen) - lgamma(self._primed + 1) - sum(map(lgamma, used))
        return nats / log(2)


class AdaptiveFlag:
    """Codes booleans with a learned probability: the estimator of Krichevsky and Trofimov (1981)."""

    def __init__(self) -> None:
        self._weights = np.full(2, 0.5)

    def add(self, value: bool, times: int = 1) -> None:
        self._weights[int(value)] += times

    def code(self, coder: Coder, value: bool | None) -> bool:
        """Code a flag and learn it; return the flag, given or read."""
        found = bool(coder.code(self._weights, None if value is None else int(value)))
        self.add(found)
        return found

    @property
    def bits(self) -> float:
        """The code length of everything added."""
        no, yes = map(float, self._weights)
        nats = lgamma(no + yes) - lgamma(no) - lgamma(yes) + 2 * lgamma(0.5)
        return nats / log(2)
