"""Rows divided among threads: the same numbers as in one call, and shares that cover every row once."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch

from builders import small_model, small_translator, some_tokens
from chainrule.base.devices import threads
from chainrule.base.modes import evaluating
from chainrule.decoding import beam_search
from chainrule.engines.decode import search_kernel, shares, stack_kernel
from chainrule.engines.decode.shares import item_cuts, row_cuts, run_shares
from chainrule.types import Source


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any work is worth a thread."""
    monkeypatch.setattr(shares, "WORK_PER_THREAD", 1)


@pytest.fixture
def callers(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The names of the threads that call the kernels."""
    names: set[str] = set()
    for module, name in ((stack_kernel, "read_tokens"), (search_kernel, "read_and_choose")):
        kernel = getattr(module, name)

        def recorded(*arguments: Any, kernel: Any = kernel) -> None:
            names.add(threading.current_thread().name)
            kernel(*arguments)

        monkeypatch.setattr(module, name, recorded)
    return names


def test_cuts_keep_rows_together(eager: None) -> None:
    row_N = np.array([0] * 5 + [1] + [2] * 4 + [7] * 2)
    with threads(3):
        cuts = item_cuts(row_N, 1)
        assert cuts[0] == 0
        assert cuts[-1] == len(row_N)
        assert len(cuts) > 2
        assert all(row_N[cut - 1] != row_N[cut] for cut in cuts[1:-1])
        assert list(row_cuts(7, 1)) == [0, 2, 4, 7]
        assert list(item_cuts(np.zeros(5, np.int64), 1)) in ([0, 5], [0, 5, 5])
    with threads(1):
        assert list(row_cuts(7, 1)) == [0, 7]


def test_little_work_stays_in_one_thread() -> None:
    with threads(2):
        assert list(row_cuts(8, shares.WORK_PER_THREAD // 8 - 1)) == [0, 8]
        assert list(row_cuts(8, shares.WORK_PER_THREAD)) == [0, 4, 8]


def test_every_share_is_computed_once_and_errors_arrive() -> None:
    computed: list[tuple[int, int]] = []
    run_shares(lambda begin, end: computed.append((begin, end)), [0, 2, 2, 5, 6])
    assert sorted(computed) == [(0, 2), (2, 5), (5, 6)]

    def fails(begin: int, end: int) -> None:
        if begin:
            raise ValueError("the second share")

    with pytest.raises(ValueError, match="the second share"):
        run_shares(fails, [0, 1, 2])


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_reading_in_two_threads_gives_the_same_numbers(precision: str, eager: None, callers: set[str]) -> None:
    model: Any = small_model("transformer", context=24).eval()
    model.precision = precision
    found = []
    for count in (1, 2, 3):
        callers.clear()
        with threads(count), evaluating(model):
            _, state = model.prefill(model.start(5), some_tokens(5, 4))
            first_BTV, state = model.extend(state, some_tokens(5, 3, seed=1))
            slid_BTV, state = model.extend(state, some_tokens(5, 30, seed=2))  # beyond the window
            found.append((first_BTV, slid_BTV, model.step(state, torch.arange(5))[0]))
        assert (len(callers) > 1) == (count > 1)
    for other in found[1:]:
        assert all(torch.equal(one, two) for one, two in zip(found[0], other, strict=True))


@pytest.mark.parametrize("beams", [1, 4])
def test_beams_in_two_threads_are_the_same(beams: int, eager: None, callers: set[str]) -> None:
    model: Any = small_translator("seq2seq-transformer").eval()
    tokens_BS = some_tokens(5, 7)
    source = Source(tokens_BS, torch.arange(7) < torch.tensor([7, 3, 5, 1, 6])[:, None])
    found = []
    for count in (1, 2):
        callers.clear()
        with threads(count), evaluating(model):
            first_B1 = torch.zeros(5, 1, dtype=torch.int64)
            limits = [12, 3, 12, 9, 12]
            found.append(beam_search(model, model.start(source), first_B1, eos=0, beams=beams, max_new_tokens=limits))
        assert (len(callers) > 1) == (count > 1)
    assert found[0] == found[1]
