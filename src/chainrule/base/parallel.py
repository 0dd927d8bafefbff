"""Streams with several threads: a function mapped over one, or one computed ahead. Ordered results, bounded memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")
AHEAD = 2
"""Results per thread that may wait to be taken."""


def ordered_map(function: Callable[[T], R], items: Iterable[T], threads: int) -> Iterator[R]:
    """Yield `function` of each item, in the order of the items.

    This is faster than `map` if `function` releases the GIL. The caller's thread draws the items, at most `AHEAD` per
    thread before their results are taken, so memory is bounded for a stream of any length. With one thread it is `map`.
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


def compute_ahead(items: Iterable[T]) -> Iterator[T]:
    """Yield the items; another thread computes the next one while the caller works on this one."""
    source, end = iter(items), object()
    with ThreadPoolExecutor(1) as pool:
        waiting: Future[T | object] = pool.submit(next, source, end)
        while (item := waiting.result()) is not end:
            waiting = pool.submit(next, source, end)
            yield item  # type: ignore[misc]  # all but `end` are items
