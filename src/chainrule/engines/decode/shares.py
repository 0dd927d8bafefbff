"""The rows of a call, divided among threads.

A kernel releases the lock of Python, and the numbers of a row never depend on the other rows. So the rows of one call
can be computed by several threads at once, each with arrays of its own to work in, and the results are the same.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np

from chainrule.base.lazy import torch

Array = np.ndarray[Any, Any]

WORK_PER_THREAD = 8_000_000
"""Multiplications that are worth another thread: about ten times what it takes to hand them over."""

_helpers: dict[int, ThreadPoolExecutor] = {}


def thread_count(rows: int, work: int) -> int:
    """The threads for some rows, each of `work` multiplications: at most those of torch."""
    return max(1, min(torch.get_num_threads(), rows, rows * work // WORK_PER_THREAD))


def row_cuts(rows: int, work: int) -> Sequence[int]:
    """Where equal shares of some rows begin and end."""
    threads = thread_count(rows, work)
    return [rows * part // threads for part in range(threads + 1)]


def item_cuts(row_N: Array, work: int) -> Sequence[int]:
    """Where about equal shares of items begin and end; the items of a row are side by side and stay together."""
    N = len(row_N)
    if thread_count(N, work) == 1:
        return 0, N
    starts_R = np.flatnonzero(np.diff(row_N, prepend=-1))
    wanted = row_cuts(N, work)
    places = np.searchsorted(starts_R, wanted[1:-1])
    return [0, *np.unique(np.append(starts_R, N)[places]).tolist(), N]


def run_shares(compute: Callable[[int, int], None], cuts: Sequence[int]) -> None:
    """Compute each share, from one cut to the next: the first in this thread, the others in helpers."""
    shares = [(begin, end) for begin, end in pairwise(cuts) if begin < end]
    if len(shares) <= 1:
        compute(cuts[0], cuts[-1])
        return
    waiting = [_helper(len(shares)).submit(compute, *share) for share in shares[1:]]
    try:
        compute(*shares[0])
    finally:
        for share in waiting:
            share.result()


def _helper(shares: int) -> ThreadPoolExecutor:
    """The threads that compute all shares but the first; a forked process does not have the threads of its parent."""
    if shares not in _helpers:
        _helpers[shares] = ThreadPoolExecutor(shares - 1, "decoding")
    return _helpers[shares]


os.register_at_fork(after_in_child=_helpers.clear)
