"""The number of threads of a training, with times that the test makes up."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from chainrule.config import TrainingConfig
from chainrule.training.threads import FIRST_REVIEW, TIMED, WARM_UP, ThreadChooser, Way


@pytest.fixture(autouse=True)
def _threads_of_torch() -> Iterator[None]:
    """The number of threads of torch is restored."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def run(chooser: ThreadChooser, seconds: dict[int, float], steps: int) -> list[int]:
    """Take steps whose time depends on the number of threads -> that number at each step."""
    used = []
    for _ in range(steps):
        count = torch.get_num_threads()
        used.append(count)
        chooser.after_step(seconds[count], 1000)
    return used


def test_several_threads_are_taken_where_they_are_faster() -> None:
    chooser = ThreadChooser([Way(1, 1), Way(1, 2)])
    used = run(chooser, {1: 1.0, 2: 0.6}, 30)
    assert used[: WARM_UP + TIMED] == [1] * (WARM_UP + TIMED)
    assert used[WARM_UP + TIMED : WARM_UP + 2 * TIMED] == [2] * TIMED
    assert chooser.current == Way(1, 2)
    assert set(used[WARM_UP + 2 * TIMED :][: int(FIRST_REVIEW / 0.6)]) == {2}


def test_one_thread_stays_where_several_wait_for_one_another() -> None:
    chooser = ThreadChooser([Way(1, 1), Way(1, 2)])
    used = run(chooser, {1: 0.1, 2: 2.5}, 400)
    assert chooser.current == Way(1, 1)
    # A hopeless trial ends after one step, and trials become rarer: few slow steps in all.
    assert used.count(2) <= 5
    assert chooser.review > FIRST_REVIEW


def test_trials_take_a_tenth_of_the_time_where_steps_are_long() -> None:
    chooser = ThreadChooser([Way(1, 1), Way(1, 2)])
    used = run(chooser, {1: 18.0, 2: 10.0}, 400)
    assert used.count(1) * 18.0 < 0.12 * (used.count(1) * 18.0 + used.count(2) * 10.0)


def test_the_choice_follows_the_load_of_the_machine() -> None:
    chooser = ThreadChooser([Way(1, 1), Way(1, 2)])
    run(chooser, {1: 0.1, 2: 0.06}, 60)
    assert chooser.current == Way(1, 2)
    run(chooser, {1: 0.1, 2: 3.0}, 60)  # another process has started
    assert chooser.current == Way(1, 1)
    run(chooser, {1: 0.1, 2: 0.06}, 1000)  # and has ended
    assert chooser.current == Way(1, 2)


def test_a_given_number_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    given = ThreadChooser.for_training(TrainingConfig(threads=2), 4, can_fork=True)
    assert run(given, {2: 1.0}, 50) == [2] * 50
    assert chosen_ways(cores=1) == (Way(1, 1),)
    assert chosen_ways(cores=4) == (Way(1, 1), Way(4, 1), Way(1, 4))
    assert chosen_ways(cores=4, can_fork=False) == chosen_ways(cores=4, workers=1) == (Way(1, 1), Way(1, 4))
    assert chosen_ways(cores=4, workers=3) == (Way(3, 1),)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert chosen_ways(cores=3) == (Way(1, 3),)


def chosen_ways(cores: int, workers: int = 0, *, can_fork: bool = True) -> tuple[Way, ...]:
    return ThreadChooser.for_training(TrainingConfig(workers=workers), cores, can_fork=can_fork).ways


def test_the_fastest_of_three_ways_is_taken_and_left_when_it_is_slow() -> None:
    one, workers, threads_ = Way(1, 1), Way(2, 1), Way(1, 2)
    chooser = ThreadChooser([one, workers, threads_])

    def steps(seconds: dict[Way, float], count: int) -> None:
        for _ in range(count):
            taken = seconds[chooser.way]
            chooser.after_step(taken, 1000)

    steps({one: 0.1, workers: 0.055, threads_: 0.07}, 60)
    assert chooser.current == workers
    steps({one: 0.1, workers: 0.19, threads_: 3.0}, 120)  # another process has started
    assert chooser.current == one
