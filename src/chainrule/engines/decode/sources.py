"""What the rows of a translator attend to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]

NOTHING = np.empty(0, np.int64)


class Sources(NamedTuple):
    """What the rows of a state attend to: each to `count_R` positions from `start_R` on, which rows may share."""

    numbers: Array  # layers × N × 2X: keys and values side by side
    start_R: Array
    count_R: Array
    longest: int  # the largest number of positions
    place_N: Array = NOTHING  # where each position is in its source, for attention that depends on it

    def select(self, rows_K: Array) -> Sources:
        return self._replace(start_R=self.start_R[rows_K], count_R=self.count_R[rows_K])

    def join(self, others: Sequence[Sources]) -> Sources:
        parts = (self, *others)
        firsts = np.cumsum([0, *(part.numbers.shape[1] for part in parts)])
        start_R = np.concatenate([part.start_R + first for part, first in zip(parts, firsts, strict=False)])
        numbers = np.concatenate([part.numbers for part in parts], 1)
        count_R = np.concatenate([part.count_R for part in parts])
        place_N = np.concatenate([part.place_N for part in parts])
        return Sources(numbers, start_R, count_R, max(part.longest for part in parts), place_N)

    def arrays(self) -> tuple[Array, int, Array, Array, Array, Array]:
        """As the kernel takes them."""
        count = self.numbers.shape[1]
        order_N = np.arange(count, dtype=np.int32)
        return self.numbers.reshape(-1), count, order_N, self.start_R, self.count_R, self.place_N


NO_SOURCES = Sources(np.empty((0, 0, 0), np.float32), NOTHING, NOTHING, 0)
"""Of a language model."""

NO_MEMORY = NO_SOURCES.arrays()
