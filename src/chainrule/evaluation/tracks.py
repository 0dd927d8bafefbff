"""Cutting a long stream of tokens into tracks that are walked side by side.

One text is one stream, and its state is carried from the first token to the last. A long one is cut into a few
contiguous tracks, the rows of a batch, each of which begins afresh; that makes it many times quicker and costs a little
context once a track. How many there are follows from the number of tokens alone, never from an option, so that a figure
can be made again; the compressor walks the same tracks, so that its file has the size the evaluation says.

Legend: B tracks, T time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from chainrule.errors import ConfigError

TOKENS_A_TRACK = 16384
MOST_TRACKS = 64


def track_count(tokens: int) -> int:
    """One track for every 16,384 tokens, at least 1 and at most 64."""
    return max(1, min(MOST_TRACKS, tokens // TOKENS_A_TRACK))


def tracks_of(model: object, tokens: int) -> int:
    """The same, unless the model says how many it wants: one that remembers the whole text wants 1."""
    return getattr(model, "tracks", None) or track_count(tokens)


@dataclass(frozen=True)
class Tracks:
    """How `tokens` tokens lie in `count` rows: the first `longer` rows have `length` + 1 each, the others `length`."""

    tokens: int
    count: int

    @property
    def length(self) -> int:
        return self.tokens // self.count

    @property
    def longer(self) -> int:
        return self.tokens % self.count

    @property
    def columns(self) -> int:
        """The length of the longest row."""
        return self.length + (self.longer > 0)

    def rows_at(self, column: int) -> int:
        """How many rows have a token in this column: the first so many."""
        return self.count if column < self.length else self.longer

    def starts(self) -> list[int]:
        """Where in the stream each row begins."""
        return [row * self.length + min(row, self.longer) for row in range(self.count)]

    def read(self, tokens: np.ndarray[Any, Any], begin: int, end: int, pad: int) -> np.ndarray[Any, Any]:
        """Columns begin to end of all rows, int64 BT; `pad` stands where a row has ended."""
        block_BT = np.full((self.count, end - begin), pad, dtype=np.int64)
        for row, start in enumerate(self.starts()):
            stop = self.length + (row < self.longer)
            piece = tokens[start + begin : start + min(end, stop)]
            block_BT[row, : len(piece)] = piece
        return block_BT

    def write(self, tokens: np.ndarray[Any, Any], begin: int, block_BT: np.ndarray[Any, Any]) -> None:
        """Put columns from `begin` on back into the stream: the inverse of `read`."""
        for row, start in enumerate(self.starts()):
            stop = min(begin + block_BT.shape[1], self.length + (row < self.longer))
            tokens[start + begin : start + stop] = block_BT[row, : stop - begin]

    def chunks(self, size: int) -> Iterator[tuple[int, int]]:
        """Column ranges of at most `size` that cover all rows."""
        for begin in range(0, self.columns, size):
            yield begin, min(begin + size, self.columns)


def cut(tokens: int, count: int | None = None) -> Tracks:
    """The tracks of a stream; `count` overrules the number that follows from its length."""
    if count is None:
        count = track_count(tokens)
    if count < 1:
        raise ConfigError(f"tracks is {count}, but a stream is walked in at least 1.")
    return Tracks(tokens, min(count, max(1, tokens)))
