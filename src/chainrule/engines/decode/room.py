"""The arrays that a call of the engine works in."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from chainrule.engines.decode.linear import OUTPUTS, aligned, rounded_up
from chainrule.engines.decode.stack_layout import HEAD, HEADS, INTO, OUTPUT, WIDEN, WIDTH

MOST = 4
"""Arrays for up to this many times as many tokens are used again: the rows of a beam become fewer step by step."""


class Room(threading.local):
    """The arrays of the last call of each thread, and what they were made for."""

    model: Any = None
    sizes: tuple[int, int, int] = (0, 0, 0)
    last: tuple[Any, ...] = ()

    def arrays(self, model: Any, items: int, results: int, positions: int) -> tuple[Any, ...]:
        """The arrays of a call; those of the last one, if they are large enough and not far larger."""
        most_items, most_results, most_positions = self.sizes
        fits = items <= most_items <= MOST * items and results <= most_results and positions <= most_positions
        if self.model is not model or not fits:
            self.model, self.sizes = model, (items, results, positions)
            self.last = make_room(model, items, results, positions)
        return self.last


def make_room(model: Any, items: int, results: int, positions: int) -> tuple[Any, ...]:
    """The arrays that a call needs for `items` tokens, `results` of which are wanted, and rows of `positions`."""
    shape, _, blocks, (linears, *_) = model
    stride, X = rounded_up(int(shape[WIDTH])), int(shape[HEADS] * shape[HEAD])
    inner, into = (int(linears[blocks[0, part], OUTPUTS]) for part in (WIDEN, INTO))
    words = 0 if shape[OUTPUT] < 0 else int(linears[shape[OUTPUT], OUTPUTS])
    stream, inputs = aligned(items * stride), aligned(items * stride)
    wide, mixed = aligned(items * max(inner, stride, into)), aligned(items * max(X, stride))
    scores = aligned(int(shape[HEADS]) * rounded_up(positions))
    bytes_ = aligned(items * (max(inner, stride, X) + 4), np.uint8), aligned(items)
    return stream, inputs, wide, mixed, scores, bytes_, stride, aligned(results * words), aligned(results)
