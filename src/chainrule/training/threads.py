"""How a training uses the cores: one thread, several worker processes, or several threads, chosen by measuring.

Threads that wait for one another spin. On an idle machine several threads are faster than one, and several processes
(`training/workers.py`) faster still; beside another busy process threads can be 25 times slower than one. So the first
steps of a training are timed in every way, and the others are tried again from time to time, more and more rarely while
the answer stays the same.

The choice changes the order of floating-point sums, and so the last digits of the weights. What is set
(`training.threads`, `training.workers`, or OMP_NUM_THREADS in the environment) is kept, and makes trainings repeatable
bit for bit.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence
from typing import NamedTuple

import torch

from chainrule.config import TrainingConfig
from chainrule.errors import ConfigError

WARM_UP, TIMED = 2, 3
"""Steps before the first measurement, and steps of each measurement."""

FIRST_REVIEW, LAST_REVIEW = 10.0, 160.0
"""Seconds of steps until the other ways are tried again: at first, and at most; doubled when nothing changes."""

TRIAL_SHARE = 0.1
"""Most of the time that trials may take, where steps are so long that they would take more."""

MARGIN = 1.05
"""How much faster the other choice must be to be taken."""

SLOW = 1.3
"""A trial is given up as soon as one of its steps takes this many times as long as a usual one."""


class Way(NamedTuple):
    """Processes that share a batch, and threads of each."""

    workers: int
    threads: int


class ThreadChooser:
    """Times the steps of a training and chooses among ways to take them; the number of threads is set here."""

    def __init__(self, ways: Sequence[Way]) -> None:
        self.ways = tuple(dict.fromkeys(ways))
        self.way = self.current = self.ways[0]  # of the next step, and the best so far
        self.review = FIRST_REVIEW
        self._rates: dict[Way, list[float]] = {}
        self._trial: list[float] = []
        self._waiting = list(self.ways[1:])  # to be tried before the next decision
        self._warm = WARM_UP
        self._since_decision = self._of_trials = 0.0  # seconds of steps
        torch.set_num_threads(self.way.threads)

    @classmethod
    def for_training(cls, config: TrainingConfig, cores: int, *, can_fork: bool) -> ThreadChooser:
        """For the options `threads` and `workers` (0: not set) on a machine with `cores` cores."""
        fixed = bool(config.threads) or os.environ.get("OMP_NUM_THREADS", "").isdecimal()
        if config.workers > 1 and not can_fork:
            raise ConfigError(
                f"training.workers = {config.workers}: worker processes need Linux on x86-64, the device cpu, float32, "
                "an objective that does not sample, and neither compile nor torchrun; leave training.workers out"
            )
        if config.workers > 1:
            return cls([Way(config.workers, config.threads or 1)])
        if fixed or cores == 1:
            return cls([Way(1, config.threads or cores)])
        workers = [Way(cores, 1)] if can_fork and config.workers == 0 else []
        return cls([Way(1, 1), *workers, Way(1, cores)])

    def after_step(self, seconds: float, work: int) -> None:
        """Report the time of a step and its tokens; the way of the next step is set here."""
        if len(self.ways) == 1:
            return
        self._since_decision += seconds
        if self.way != self.current:
            self._of_trials += seconds
        if self._warm:  # kernels are compiled, memory is allocated and workers start in the first steps
            self._warm -= 1
            return
        self._trial.append(work / seconds)
        usual = self._rates.get(self.current)
        hopeless = usual is not None and self.way != self.current and self._trial[-1] * SLOW < max(usual)
        if len(self._trial) < TIMED and not hopeless:
            return
        self._rates[self.way] = self._trial
        self._trial = []
        if self.way == self.current and not self._waiting and self._since_decision > self.review:
            self._waiting = [way for way in self.ways if way != self.current]
        if self._waiting:
            self._use(self._waiting.pop(0), warm=1)
        elif self.way != self.current:
            self._decide()

    def _use(self, way: Way, warm: int = 0) -> None:
        self.way, self._warm = way, warm
        torch.set_num_threads(way.threads)

    def _decide(self) -> None:
        """Compare the trials with the usual rate, and take the fastest way."""
        rate = {way: statistics.median(rates) for way, rates in self._rates.items()}
        best = max(rate, key=lambda way: rate[way])
        if rate[best] > rate[self.current] * MARGIN:
            self.current, self.review = best, FIRST_REVIEW
        else:
            self.review = min(LAST_REVIEW, 2 * self.review)
        self.review = max(self.review, self._of_trials / TRIAL_SHARE)
        self._since_decision = self._of_trials = 0.0
        self._use(self.current)
