"""The number of CPU threads of a training, chosen by measuring one thread against several.

Threads that wait for one another spin. On an idle machine several threads are faster than one; beside another busy
process they can be 25 times slower. So the first steps of a training are timed with one thread and with several, and
the other choice is tried again from time to time, more and more rarely while the answer stays the same.

The number of threads changes the order of floating-point sums, and so the last digits of the weights. A number that is
set (`training.threads`, or OMP_NUM_THREADS in the environment) is kept, and makes trainings repeatable bit for bit.
"""

from __future__ import annotations

import os
import statistics
import time

import torch

WARM_UP, TIMED = 2, 3
"""Steps before the first measurement, and steps of each measurement."""

FIRST_REVIEW, LAST_REVIEW = 10.0, 160.0
"""Seconds until the other choice is tried again: at first, and at most; doubled each time that nothing changes."""

MARGIN = 1.05
"""How much faster the other choice must be to be taken."""

SLOW = 2.0
"""A trial is given up as soon as one of its steps takes this many times as long as a usual one."""


class ThreadChooser:
    """Times the steps of a training and sets the number of threads. `fixed`: the number is given, nothing is tried."""

    def __init__(self, most: int, *, fixed: bool = False) -> None:
        self.choices = (most,) if fixed or most == 1 else (1, most)
        self.current = self.choices[0]
        self.review = FIRST_REVIEW
        self._rates: dict[int, list[float]] = {}
        self._trial: list[float] = []
        self._trying = self.current
        self._warm = WARM_UP
        self._since = time.monotonic()
        torch.set_num_threads(self.current)

    @classmethod
    def for_training(cls, threads: int, cores: int) -> ThreadChooser:
        """For the option `training.threads` (0: not set) on a machine with `cores` cores."""
        fixed = bool(threads) or os.environ.get("OMP_NUM_THREADS", "").isdecimal()
        return cls(threads or cores, fixed=fixed)

    def after_step(self, seconds: float, work: int) -> None:
        """Report the time of a step and its tokens; the number of threads of the next step is set here."""
        if len(self.choices) == 1:
            return
        if self._warm:  # kernels are compiled and memory is allocated in the first steps
            self._warm -= 1
            return
        self._trial.append(work / seconds)
        usual = self._rates.get(self.current)
        hopeless = usual is not None and self._trying != self.current and self._trial[-1] * SLOW < max(usual)
        if len(self._trial) < TIMED and not hopeless:
            return
        self._rates[self._trying] = self._trial
        self._trial = []
        if self._trying == self.current and len(self._rates) < len(self.choices):
            self._try(self._other())
        elif self._trying != self.current:
            self._decide()
        elif time.monotonic() - self._since > self.review:
            self._try(self._other())

    def _other(self) -> int:
        return next(choice for choice in self.choices if choice != self.current)

    def _try(self, choice: int) -> None:
        self._trying = choice
        torch.set_num_threads(choice)

    def _decide(self) -> None:
        """Compare the trial with the usual rate, and return to the faster choice."""
        other, usual = (statistics.median(self._rates[choice]) for choice in (self._trying, self.current))
        if other > usual * MARGIN:
            self.current, self.review = self._trying, FIRST_REVIEW
        else:
            self.review = min(LAST_REVIEW, 2 * self.review)
        self._since = time.monotonic()
        self._try(self.current)
