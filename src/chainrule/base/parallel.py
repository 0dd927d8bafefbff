"""Work on the pieces of a stream with several threads, the results in order and few of them waiting."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")
AHEAD = 2
"""Pieces a thread may be ahead of the one that takes the results."""


def ordered_map(function: Callable[[T], R], items: Iterable[T], threads: int) -> Iterator[R]:
    """`function` of each item, in the order of the items.

    It gains where `function` spends its time outside Python. The items are drawn by the caller's thread, at most
    `AHEAD` for each thread before their results are taken, so a stream of any length needs a bounded memory. With one
    thread nothing runs ahead, and all is done by the caller's.
    """
    if threads <= 1:
        yield from map(function, items)
        return
    pool = ThreadPoolExecutor(threads)
    try:
        waiting: deque[Future[R]] = deque()
        source = iter(items)
        while True:
            try:
                while len(waiting) < AHEAD * threads:
                    waiting.append(pool.submit(function, next(source)))
            except StopIteration:
                break
            yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
