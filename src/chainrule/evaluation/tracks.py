"""A long stream of tokens, cut into tracks that are scored side by side.

A text is one stream, and its state is carried from the first token to the last. A long text is cut into a few
contiguous tracks, the rows of a batch, each of which starts with an empty context. This is many times faster and costs
a little context once per track. The number of tracks depends only on the number of tokens, never on an option, so that
figures are reproducible. The compressor uses the same tracks, so its file has the size that the evaluation reports.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from chainrule.base.arrays import Array
from chainrule.errors import ConfigError
from chainrule.types import Model, StreamScorer

TOKENS_PER_TRACK = 16384
MAX_TRACKS = 64


def track_count(tokens: int) -> int:
    """Return the number of tracks: one per 16,384 tokens, at least 1 and at most 64."""
    return max(1, min(MAX_TRACKS, tokens // TOKENS_PER_TRACK))


def choose_tracks(model: Model | StreamScorer, tokens: int) -> int:
    """Return the number of tracks that the model states (1 if it remembers the whole text), else `track_count`."""
    return model.tracks or track_count(tokens)


@dataclass(frozen=True)
class Tracks:
    """Layout of `tokens` tokens in `count` rows: the first `longer` rows have `length` + 1, the others `length`."""

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
        """Number of rows that have a token in this column; they are the first ones."""
        return self.count if column < self.length else self.longer

    def starts(self) -> list[int]:
        """Offset in the stream at which each row begins."""
        return [row * self.length + min(row, self.longer) for row in range(self.count)]

    def read(self, tokens: Array, begin: int, end: int, pad: int) -> Array:
        """Return columns begin to end of all rows, int64 BT; rows that have ended are filled with `pad`."""
        block_BT = np.full((self.count, end - begin), pad, dtype=np.int64)
        for row, start in enumerate(self.starts()):
            stop = self.length + (row < self.longer)
            piece = tokens[start + begin : start + min(end, stop)]
            block_BT[row, : len(piece)] = piece
        return block_BT

    def write(self, tokens: Array, begin: int, block_BT: Array) -> None:
        """Write columns from `begin` on into the stream: the inverse of `read`."""
        for row, start in enumerate(self.starts()):
            stop = min(begin + block_BT.shape[1], self.length + (row < self.longer))
            tokens[start + begin : start + stop] = block_BT[row, : stop - begin]

    def chunks(self, size: int) -> Iterator[tuple[int, int]]:
        """Yield column ranges of at most `size` that cover all rows."""
        for begin in range(0, self.columns, size):
            yield begin, min(begin + size, self.columns)


def token_mask(layout: Tracks, begin: int, end: int) -> Array:
    """False at padding of columns begin to end, bool BT; only the last column of a text can have some."""
    mask_BT = np.ones((layout.count, end - begin), bool)
    mask_BT[layout.rows_at(end - 1) :, -1] = False
    return mask_BT


def cut_tracks(tokens: int, count: int | None = None) -> Tracks:
    """Return the layout of a stream; `count` overrides the number of tracks that follows from its length."""
    if count is None:
        count = track_count(tokens)
    if count < 1:
        raise ConfigError(f"tracks is {count}, but a stream needs at least 1.")
    return Tracks(tokens, min(count, max(1, tokens)))
