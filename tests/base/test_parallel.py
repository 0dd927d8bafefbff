"""Streams with threads: ordered results, bounded look-ahead, parallel work."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from chainrule.base.parallel import AHEAD, compute_ahead, ordered_map


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_results_come_in_order(threads: int) -> None:
    def slow_at_first(number: int) -> int:
        time.sleep(0.002 * (number % 3 == 0))
        return number * number

    assert list(ordered_map(slow_at_first, range(50), threads)) == [number * number for number in range(50)]
    assert list(ordered_map(slow_at_first, [], threads)) == []


@pytest.mark.parametrize(("threads", "ahead"), [(1, 1), (2, 2 * AHEAD)])
def test_few_items_are_drawn_ahead(threads: int, ahead: int) -> None:
    drawn: list[int] = []

    def items() -> Iterator[int]:
        for number in range(100):
            drawn.append(number)
            yield number

    for taken, _ in enumerate(ordered_map(abs, items(), threads)):
        assert len(drawn) <= taken + ahead
    assert len(drawn) == 100


def test_threads_work_in_parallel() -> None:
    meeting = threading.Barrier(2, timeout=20)  # a single thread would time out here
    assert sorted(ordered_map(lambda _: meeting.wait(), range(2), threads=2)) == [0, 1]


def test_one_thread_is_the_callers() -> None:
    assert list(ordered_map(lambda _: threading.current_thread(), [0], threads=1)) == [threading.current_thread()]


@pytest.mark.parametrize("threads", [1, 3])
def test_errors_reach_the_caller(threads: int) -> None:
    results = ordered_map(lambda number: 12 // number, [4, 3, 0, 1], threads)
    assert [next(results), next(results)] == [3, 4]
    with pytest.raises(ZeroDivisionError):
        next(results)

    def broken() -> Iterator[int]:
        yield 1
        raise OSError("unreadable")

    with pytest.raises(OSError, match="unreadable"):
        list(ordered_map(abs, broken(), threads))


def test_items_that_are_not_taken_are_not_computed() -> None:
    started: list[int] = []

    def work(number: int) -> int:
        started.append(number)
        return number

    results = ordered_map(work, range(1000), threads=2)
    assert next(results) == 0
    results.close()  # type: ignore[attr-defined]
    assert len(started) <= 1 + 2 * AHEAD


def test_one_item_is_computed_ahead_and_errors_come_through() -> None:
    drawn: list[int] = []

    def items() -> Iterator[int]:
        for number in range(20):
            drawn.append(number)
            yield number
        raise OSError("the disk is gone")

    stream = compute_ahead(items())
    for number in range(20):
        assert next(stream) == number
        assert len(drawn) <= number + 2
    with pytest.raises(OSError, match="the disk is gone"):
        next(stream)
    assert list(compute_ahead(())) == []
