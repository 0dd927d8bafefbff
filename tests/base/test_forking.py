"""Processes that share work: the same results, in order; errors and deaths are reported, and no process is left."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from chainrule.base import forking
from chainrule.base.forking import can_fork, map_shared, side_by_side, workers_for
from chainrule.errors import DataError, RunError

MODEL = torch.nn.Linear(1, 1)

pytestmark = pytest.mark.skipif(not can_fork(), reason="needs fork")


@pytest.fixture
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two cores, and every job is worth sharing."""
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.setattr(forking, "WORTH", -1.0)


def children() -> list[str]:
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()


@pytest.mark.usefixtures("two_cores")
@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 9])
def test_results_come_in_order_from_other_processes(count: int) -> None:
    before = children()
    results = list(map_shared(MODEL, range(count), lambda item: (item * item, os.getpid(), torch.get_num_threads())))
    assert [square for square, _, _ in results] == [item * item for item in range(count)]
    here = [process == os.getpid() for _, process, _ in results]
    assert here == [item == 0 or count == 2 for item in range(count)]  # one item left is not shared
    assert len({process for _, process, _ in results}) == (3 if count > 3 else min(count, 3) if count != 2 else 1)
    assert all(threads == 1 for _, process, threads in results if process != os.getpid())
    assert children() == before


def test_little_work_stays_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert set(map_shared(MODEL, range(9), lambda item: os.getpid())) == {os.getpid()}
    monkeypatch.setattr(forking, "WORTH", -1.0)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert set(map_shared(MODEL, range(9), lambda item: os.getpid())) == {os.getpid()}


@pytest.mark.usefixtures("two_cores")
def test_only_the_main_thread_forks() -> None:
    assert workers_for(MODEL) == 2
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.extend(map_shared(MODEL, range(4), lambda item: os.getpid())))
    thread.start()
    thread.join()
    assert set(found) == {os.getpid()}


@pytest.mark.usefixtures("two_cores")
def test_an_error_is_that_of_the_work() -> None:
    before = children()

    def fail(item: int) -> int:
        if item == 3:
            raise DataError("line 3 is damaged")
        return item

    results = map_shared(MODEL, range(8), fail)
    with pytest.raises(DataError, match=r"^line 3 is damaged$"):
        list(results)
    assert children() == before


@pytest.mark.usefixtures("two_cores")
def test_an_error_that_cannot_be_sent_is_described() -> None:
    class LocalError(Exception):
        pass

    def fail(item: int) -> int:
        if item:
            raise LocalError("lost")
        return item

    with pytest.raises(RuntimeError, match=r"^LocalError: lost$"):
        list(map_shared(MODEL, range(4), fail))


@pytest.mark.usefixtures("two_cores")
def test_a_killed_process_is_reported() -> None:
    before = children()
    main = os.getpid()

    def end(item: int) -> int:
        if os.getpid() != main:
            os.kill(os.getpid(), signal.SIGKILL)
        return item

    with pytest.raises(RunError, match=r"a worker process ended before its work was done \(signal 9\)"):
        list(map_shared(MODEL, range(4), end))
    assert children() == before


def test_streams_may_end_early_and_be_left_early() -> None:
    before = children()

    def count(until: int) -> Iterator[int]:
        yield from range(until)

    assert list(side_by_side([lambda: count(3), lambda: count(1)])) == [[0, 0], [1], [2]]
    endless = side_by_side([lambda: count(1 << 30), lambda: count(1 << 30)])
    assert [next(endless), next(endless)] == [[0, 0], [1, 1]]
    endless.close()
    assert children() == before


def test_open_files_are_closed_in_the_child(tmp_path: Path) -> None:
    with (tmp_path / "lock").open("w") as lock:
        number = lock.fileno()

        def is_open() -> Iterator[bool]:
            try:
                os.fstat(number)
            except OSError:
                yield False
            else:
                yield True

        assert list(side_by_side([is_open])) == [[False]]


def test_large_results_pass_the_pipe() -> None:
    [[big]] = list(side_by_side([lambda: iter([np.arange(1 << 20)])]))
    assert (big == np.arange(1 << 20)).all()
