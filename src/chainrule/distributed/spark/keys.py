"""N-grams as binary keys: each id plus one in four bytes, the highest first.

The keys sort like the windows of `engines/ngram/sorted_runs.py`: by ids, a window after its own beginnings. A window
that has ended is filled up with zeros: all windows have the same length. An n-gram is only as long as its words.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from chainrule.base.arrays import Array
from chainrule.engines.ngram.windows import NOTHING

WORD = 4
"""Bytes of a word in a key."""


def keys_of(rows: Array, arrow: Any) -> Any:
    """Rows of ids, filled up with NOTHING -> their keys, an array of Arrow."""
    data = (np.ascontiguousarray(rows, np.uint32) + np.uint32(1)).astype(">u4")
    offsets = np.arange(len(rows) + 1, dtype=np.int32) * np.int32(WORD * rows.shape[1])
    return arrow.Array.from_buffers(
        arrow.binary(), len(rows), [None, arrow.py_buffer(offsets.tobytes()), arrow.py_buffer(data.tobytes())]
    )


def rows_of(keys: Any, words: int) -> Array:
    """Keys of the same length -> rows of ids, filled up with NOTHING."""
    _, offsets, data = keys.buffers()
    begin, count = keys.offset, len(keys)
    ends = np.frombuffer(offsets, np.int32)[begin : begin + count + 1] if count else np.zeros(1, np.int32)
    raw = np.frombuffer(data, ">u4", (ends[-1] - ends[0]) // WORD, int(ends[0])) if count else np.empty(0, ">u4")
    return raw.astype(np.uint32).reshape(count, words) - np.uint32(1)


def lengths_of(rows: Array) -> Array:
    """The number of ids of each row."""
    found: Array = (rows != NOTHING).sum(1)
    return found
