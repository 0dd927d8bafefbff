"""Ctrl-C, SIGTERM and SIGHUP, which a closed terminal sends: save and stop."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def stop_signals() -> Iterator[Callable[[], bool]]:
    """Yield a function that is True once a signal asked to stop; a second signal interrupts at once."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked.is_set
        return

    def ask(number: int, frame: object) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()

    before = {number: signal.signal(number, ask) for number in _stopping()}
    try:
        yield asked.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _stopping() -> list[signal.Signals]:
    """The signals that stop a training; not those that the user chose to ignore, as `nohup` does with SIGHUP."""
    by_name = signal.Signals.__members__  # Windows has no SIGHUP
    known = [by_name[name] for name in ("SIGINT", "SIGTERM", "SIGHUP") if name in by_name]
    return [number for number in known if signal.getsignal(number) is not signal.SIG_IGN]
