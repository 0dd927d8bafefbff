"""Counting with a memory bound: private memory stays near it, and the model is the same."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest

from chainrule.base.arrays import Array
from chainrule.base.devices import keep_large_blocks, release_memory, return_large_blocks
from chainrule.engines.ngram.estimate import EstimationPlan, estimate

BOUND = 4 << 20
ROOM = 10 << 20
"""Buffers of a fixed size: those of a block of rows, of a piece of an array, and the stacks of threads."""

TOKENS = 2_000_000


def private() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:"))


def growth(work: Callable[[], object]) -> int:
    """The largest growth of private memory while `work` runs."""
    release_memory()
    before, peak, ended = private(), 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not ended.wait(0.002):
            peak = max(peak, private())

    watcher = threading.Thread(target=watch)
    watcher.start()
    work()
    ended.set()
    watcher.join()
    return peak - before


def measure(tokens: Path, folder: Path, memory: int | None, prune: tuple[int, ...], quantize: bool) -> None:
    """In a process of its own: estimate a model, and write its arrays and how much memory it took."""
    keep_large_blocks()  # as after a training in the same process
    return_large_blocks()
    plan = EstimationPlan(3, "modified-kneser-ney", 1.0, prune, across_lines=True, quantize=quantize)

    def work(tokens_N: Array, name: str, memory: int | None) -> None:
        table = estimate(plan, tokens_N, np.empty(0, np.uint32), eos=0, vocab_size=300, memory=memory, scratch=folder)
        table.save(folder / name, {})

    tokens_N = np.memmap(tokens, np.uint32, "r")
    work(tokens_N[:300], "warm", memory and 1 << 12)  # compiles or loads the kernels of the same stages
    taken = growth(lambda: work(tokens_N, "model", memory))
    (folder / "taken").write_text(json.dumps(taken))


@pytest.mark.parametrize(("prune", "quantize"), [((), False), ((), True), ((0, 0, 1), True)])
def test_private_memory_stays_near_the_bound(prune: tuple[int, ...], quantize: bool, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    np.random.default_rng(1).integers(1, 300, TOKENS, np.uint32).tofile(tokens)
    for name, memory in (("bounded", BOUND), ("unbounded", None)):
        (tmp_path / name).mkdir()
        # A new interpreter: in a fork, the holes in the heap of this process would be counted as they are filled.
        child = get_context("spawn").Process(target=measure, args=(tokens, tmp_path / name, memory, prune, quantize))
        child.start()
        child.join()
        assert child.exitcode == 0
    taken = {name: json.loads((tmp_path / name / "taken").read_text()) for name in ("bounded", "unbounded")}
    assert taken["bounded"] < BOUND + ROOM
    assert taken["unbounded"] > 2 * (BOUND + ROOM)  # so the bound is one
    assert (tmp_path / "bounded" / "model").read_bytes() == (tmp_path / "unbounded" / "model").read_bytes()
