"""Cores, devices and memory of the machine."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from chainrule.base.lazy import torch
from chainrule.errors import ConfigError

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""Options of glibc's mallopt: how much free memory the end of the heap keeps; the size from which on blocks are mapped
one by one."""


def physical_cores() -> int:
    """Number of cores to use: $OMP_NUM_THREADS if set, else the physical ones (half the logical ones under SMT)."""
    if (wanted := os.environ.get("OMP_NUM_THREADS", "")).isdecimal() and int(wanted):
        return int(wanted)
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    return max(1, usable // 2 if usable > 2 and _threaded() else usable)


@functools.cache
def _threaded() -> bool:
    """Whether a core runs two threads at once (SMT)."""
    twins = Path("/sys/devices/system/cpu/smt/active")
    return twins.exists() and twins.read_text().strip() == "1"


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    """Use `count` threads of torch inside the block. Single rows are fastest with one thread."""
    if "torch" not in sys.modules:  # what is computed does not use it
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def choose_device(name: str) -> torch.device:
    """Return the device of this name; auto: cuda if present, else mps, else cpu."""
    present = {
        "cpu": True,
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
    }
    if name == "auto":
        name = next(kind for kind in ("cuda", "mps", "cpu") if present[kind])
    kind = name.partition(":")[0]
    if kind not in present:
        raise ConfigError(f"training.device = '{name}' is not a device; use auto, cpu, cuda or mps")
    if not present[kind]:
        raise ConfigError(f"training.device = '{name}', but this machine has no {kind}; use --device auto")
    if name == "cuda" and (local := os.environ.get("LOCAL_RANK", "")).isdecimal():  # torchrun: one device per process
        name = f"cuda:{int(local) % torch.cuda.device_count()}"
        torch.cuda.set_device(name)
    return torch.device(name)


def device_of(model: object) -> torch.device:
    """The device of a model's parameters; the CPU if it has none."""
    parameters: Callable[[], Iterator[torch.nn.Parameter]] | None = getattr(model, "parameters", None)
    if parameters is not None:
        for tensor in parameters():
            return tensor.device
    return torch.device("cpu")


def release_memory() -> None:
    """Return freed memory that the allocator keeps to the system, where the C library supports it."""
    if sys.platform == "linux":
        with contextlib.suppress(AttributeError):  # not glibc
            ctypes.CDLL(None).malloc_trim(0)


def return_large_blocks() -> None:
    """Let this process return every large block to the system once it is freed, where the C library supports it.

    By default glibc keeps blocks of up to 32 MiB for later, in each thread: a text that is read in blocks then holds
    several times the memory that it uses.
    """
    _set_allocator(MMAP_THRESHOLD, 1 << 17)
    _set_allocator(TRIM_THRESHOLD, 1 << 17)


def keep_large_blocks() -> None:
    """Let this process, and those that it forks, keep freed blocks of up to 32 MiB, up to 1 GiB in total.

    The steps of a training free and need the same blocks. By default glibc returns most of them to the system, which
    fills them with zeros each time: 3% of a step of 6 layers × 384. `release_memory` returns them.
    """
    _set_allocator(MMAP_THRESHOLD, 1 << 25)
    _set_allocator(TRIM_THRESHOLD, 1 << 30)


def _set_allocator(option: int, value: int) -> None:
    if sys.platform == "linux":
        with contextlib.suppress(AttributeError):  # not glibc
            ctypes.CDLL(None).mallopt(option, value)


class PeakMemory:
    """Peak memory of this process in bytes since the object was created, as reported by the system."""

    def __init__(self) -> None:
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")  # Linux: reset the peak

    @property
    def bytes(self) -> int:
        status = Path("/proc/self/status")
        if status.exists():
            for line in status.read_text().splitlines():
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
        if sys.platform == "win32":
            return 0
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
