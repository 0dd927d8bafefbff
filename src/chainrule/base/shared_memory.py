"""Memory that a process shares with the processes that it forks, of fixed and of any size, and a barrier."""

from __future__ import annotations

import math
import mmap
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from chainrule.base.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

SPIN_SECONDS = 3e-3
"""How long a process that waits stays awake, though it offers its core to others: longer than processes of equal work
usually wait for one another."""

PAUSES = (2e-5, 1e-3)
"""Seconds of sleep between two looks after that: at first, and at most."""

LINE = 8
"""Integers per cache line, so that processes do not write to one line."""


def shared_zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Zeros in anonymous shared memory; it has no name and is freed with the last process that has it."""
    size = math.prod(shape)
    memory = mmap.mmap(-1, max(1, size) * torch.empty((), dtype=dtype).element_size())
    return torch.frombuffer(memory, dtype=dtype)[:size].view(shape)


def shared_copy(tensor: Tensor) -> Tensor:
    """A copy of a tensor in shared memory."""
    copy = shared_zeros(tuple(tensor.shape), tensor.dtype)
    return copy.copy_(tensor.detach())


class SharedBytes:
    """Bytes of any number in a file without a name, which forked processes that keep `number` can read and replace."""

    def __init__(self) -> None:
        self.number = os.memfd_create("chainrule")

    def write(self, data: bytes) -> None:
        """Replace the bytes."""
        os.ftruncate(self.number, 0)
        done = 0
        while done < len(data):
            done += os.pwrite(self.number, memoryview(data)[done:], done)

    def read(self) -> bytes:
        """All bytes."""
        size, parts = os.fstat(self.number).st_size, list[bytes]()
        while (done := sum(map(len, parts))) < size:
            parts.append(os.pread(self.number, size - done, done))
        return b"".join(parts)

    def close(self) -> None:
        """Close the file; the memory is freed with the last process that has it."""
        os.close(self.number)


class Barrier:
    """A meeting point of processes that were forked after it was made.

    Each process writes only its own number of visits, so no atomic operation is needed where the processor keeps the
    order of writes (x86-64).
    """

    def __init__(self, members: int) -> None:
        visits = shared_zeros((members, LINE), torch.int64).numpy()
        self.visits_M: np.ndarray[tuple[int], np.dtype[np.int64]] = visits[:, 0]
        self.number = 0

    def wait(self, member: int, check: Callable[[], None]) -> None:
        """Arrive, and wait for the others; `check` is called from time to time and may raise."""
        self.number += 1
        self.visits_M[member] = self.number
        began, pause, checked = time.perf_counter(), PAUSES[0], 0.0
        while self.visits_M.min() < self.number:
            waited = time.perf_counter() - began
            if waited < SPIN_SECONDS:
                os.sched_yield()
                continue
            time.sleep(pause)
            pause = min(PAUSES[1], pause * 1.5)
            if waited - checked > 0.02:
                check()
                checked = waited
