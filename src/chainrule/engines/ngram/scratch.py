"""Where large arrays live: in memory, or in files that the system may page out, where memory is to be bounded."""

from __future__ import annotations

import contextlib
import mmap
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Number = Any
"""An integer inside a compiled function: numpy's or Python's, as it comes."""


SCRATCH = "counting-"
"""How the names of temporary folders begin."""


class Room:
    """Makes arrays. `memory` is the most bytes that may be held at once; None: as many as it takes."""

    def __init__(self, memory: int | None = None, folder: Path | None = None) -> None:
        self.memory = memory
        self.folder = folder
        self._files = 0
        self._mapped: list[np.memmap[Any, Any]] = []

    def empty(self, size: int, dtype: Any) -> Array:
        """An array to fill; what was not written yet takes no space."""
        if self.folder is None or size == 0:
            return np.empty(size, dtype)
        self._mapped.append(np.memmap(self.path(), dtype, "w+", shape=(size,)))
        return self._mapped[-1]

    def rest(self) -> None:
        """Let go of the memory behind files: what is used again is read again. To be called between two stages."""
        if hasattr(mmap, "MADV_DONTNEED"):
            for array in self._mapped:
                array._mmap.madvise(mmap.MADV_DONTNEED)  # type: ignore[attr-defined]

    def path(self) -> Path:
        """The name of a new file."""
        assert self.folder is not None
        self._files += 1
        return self.folder / f"{self._files}.bin"


@contextlib.contextmanager
def open_room(memory: int | None, needed: int, scratch: Path | None) -> Iterator[Room]:
    """Memory, or a temporary folder in `scratch` if more than `memory` bytes will be needed."""
    if memory is None or needed <= memory:
        yield Room()
        return
    with tempfile.TemporaryDirectory(dir=scratch, prefix=SCRATCH) as name:
        yield Room(memory, Path(name))
