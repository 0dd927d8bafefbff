"""The rows of a batch that this process computes, and random numbers that do not depend on how the rows are shared.

Several processes compute one batch: each has a share of its rows. All hold the same random state, draw the numbers of
the whole batch, and use those of their own rows. So a training gives the same results, except for the order of
floating-point sums, with any number of processes, and its random state is the same in all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor


class Share(NamedTuple):
    """Rows begin to end of a batch of `total` rows."""

    begin: int
    end: int
    total: int

    @classmethod
    def of(cls, rank: int, world: int, total: int) -> Share:
        """The share of process `rank` of `world` processes; sizes differ by at most one row and may be 0."""
        return cls(rank * total // world, (rank + 1) * total // world, total)

    @property
    def size(self) -> int:
        return self.end - self.begin

    @property
    def computed(self) -> Share:
        """The rows to compute: a process without rows computes the first, whose loss it discards.

        So it draws the same random numbers as the others.
        """
        return self if self.size else Share(0, 1, self.total)


_active: Share | None = None


@contextmanager
def computing(share: Share) -> Iterator[None]:
    """Draw random numbers for the rows of a share inside the block."""
    global _active
    before, _active = _active, share if share.size < share.total else None
    try:
        yield
    finally:
        _active = before


def is_shared() -> bool:
    """Whether this process computes only a part of the rows of a batch."""
    return _active is not None


def draw_rows(draw: Callable[[tuple[int, ...]], Tensor], shape: tuple[int, ...]) -> Tensor:
    """`draw(shape)`, where the first dimension of the shape is the rows of the batch, times any factor.

    `draw` gives a random tensor of a shape. It is called with the shape of the whole batch.
    """
    if _active is None:
        return draw(shape)
    per_row = shape[0] // _active.size
    whole = draw((per_row * _active.total, *shape[1:]))
    return whole[_active.begin * per_row : _active.end * per_row]
