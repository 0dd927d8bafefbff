"""The time that numba spends on compiling, which budgets of minutes leave out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from numba.core.event import TimingListener, install_listener


class CompileTime:
    """Seconds of compiling in this process inside a block of `measuring_compilation`; cached kernels take none."""

    def __init__(self) -> None:
        self._listener: Any = TimingListener()

    @property
    def seconds(self) -> float:
        return float(self._listener.duration) if self._listener.done else 0.0


@contextmanager
def measuring_compilation() -> Iterator[CompileTime]:
    """Measure the time of compiling inside the block."""
    measured = CompileTime()
    with install_listener("numba:compile", measured._listener):
        yield measured
