"""Allocation of large arrays: in memory, or in temporary files that the system can page out if memory is limited."""

from __future__ import annotations

import contextlib
import mmap
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from chainrule.base.arrays import Array
from chainrule.base.files import allocate, disk_errors

Number = Any
"""An integer inside a compiled function: of numpy or of Python."""

PIECE = 1 << 18
"""Values computed at once, so that no step has a copy of a large array; a multiple of the groups of `packing.py`."""

SCRATCH_PREFIX = "counting-"
"""Prefix of the names of temporary folders."""


class ArrayPool:
    """Allocates arrays. `memory` limits the bytes held at once; None means no limit."""

    def __init__(self, memory: int | None = None, folder: Path | None = None) -> None:
        self.memory = memory
        self.folder = folder
        self._files = 0
        self._mapped: list[np.memmap[Any, Any]] = []

    def empty(self, size: int, dtype: Any) -> Array:
        """An uninitialised array."""
        if self.folder is None or size == 0:
            return np.empty(size, dtype)
        path = self.new_path()
        allocate(path, size * np.dtype(dtype).itemsize)
        self._mapped.append(np.memmap(path, dtype, "r+", shape=(size,)))
        return self._mapped[-1]

    def computed(self, size: int, dtype: Any, values: Callable[[slice], Array]) -> Array:
        """An array of values that are computed for one slice after another."""
        array = self.empty(size, dtype)
        for piece in pieces(size):
            array[piece] = values(piece)
        return array

    def selected(self, array: Array, keep: Array) -> Array:
        """The values of an array at the places where `keep`, of the same length, is true."""
        result, used = self.empty(int(np.count_nonzero(keep)), array.dtype), 0
        for piece in pieces(len(array)):
            kept = array[piece][keep[piece]]
            result[used : used + len(kept)] = kept
            used += len(kept)
        return result

    def sums(self, values: Array, dtype: Any) -> Array:
        """The sums of the first 0, 1, 2, … values. `np.cumsum` alone would convert a copy of all values."""
        array = self.empty(len(values) + 1, dtype)
        array[0] = 0
        for piece in pieces(len(values)):
            part = values[piece].astype(dtype)
            part[:1] += array[piece.start]
            np.cumsum(part, out=array[piece.start + 1 : piece.stop + 1])
        return array

    def release(self) -> None:
        """Release the memory behind mapped files; data that is used again is read again. Call it between stages."""
        if hasattr(mmap, "MADV_DONTNEED"):
            for array in self._mapped:
                array._mmap.madvise(mmap.MADV_DONTNEED)  # type: ignore[attr-defined]

    def new_path(self) -> Path:
        """The path of a new file."""
        assert self.folder is not None
        self._files += 1
        return self.folder / f"{self._files}.bin"


def pieces(size: int) -> Iterator[slice]:
    """Slices of at most PIECE places that cover an array."""
    for begin in range(0, size, PIECE):
        yield slice(begin, min(size, begin + PIECE))


@contextlib.contextmanager
def open_array_pool(memory: int | None, needed: int, scratch: Path | None) -> Iterator[ArrayPool]:
    """A pool in memory, or in a temporary folder inside `scratch` if more than `memory` bytes are needed."""
    if memory is None or needed <= memory:
        yield ArrayPool()
        return
    with (
        disk_errors(scratch or Path(tempfile.gettempdir())),
        tempfile.TemporaryDirectory(dir=scratch, prefix=SCRATCH_PREFIX) as name,
    ):
        yield ArrayPool(memory, Path(name))
