"""The arrays that a call of an engine works in."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from chainrule.engines.decode.linear import rounded_up

MOST = 4
"""Arrays for up to this many times as many items are used again: the rows of a beam become fewer step by step."""


class Room(threading.local):
    """The arrays of the last call of each thread, and what they were made for."""

    model: Any = None
    sizes: tuple[int, ...] = ()
    last: tuple[Any, ...] = ()

    def arrays(self, make: Callable[..., tuple[Any, ...]], model: Any, *sizes: int) -> tuple[Any, ...]:
        """What `make(model, *sizes)` gives; the arrays of the last call, if they are large enough and not far larger.

        The first size is the number of items. Sizes are rounded up, so that the next text, a bit longer, has room.
        """
        fits = self.model is model and all(size <= most for size, most in zip(sizes, self.sizes, strict=True))
        if not fits or self.sizes[0] > MOST * rounded_up(sizes[0]):
            self.model, self.sizes = model, tuple(map(rounded_up, sizes))
            self.last = make(model, *self.sizes)
        return self.last
