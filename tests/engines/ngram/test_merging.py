"""The merge of sorted runs equals a sorted dictionary, for any number of runs, blocks and buffers."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chainrule.engines.ngram import merging
from chainrule.engines.ngram.merging import merge_into, merge_rows
from chainrule.engines.ngram.sorted_runs import RunWriter, SortedRun
from chainrule.engines.ngram.windows import NOTHING

LARGEST = (1 << 32) - 3
Row = tuple[int, ...]

ids = st.one_of(st.integers(0, 3), st.sampled_from([127, 128, 1 << 20, LARGEST]))


@st.composite
def some_runs(draw: st.DrawFn) -> tuple[int, list[Counter[Row]]]:
    """An order, and runs of windows of at most so many ids, with counts; few ids, so that windows recur."""
    order = draw(st.integers(1, 8))
    window = st.lists(ids, min_size=1, max_size=order).map(tuple)
    run = st.dictionaries(window, st.integers(1, 300), min_size=0, max_size=30).map(Counter)
    return order, draw(st.lists(run, min_size=1, max_size=9))


def write(path: Path, order: int, run: Counter[Row]) -> SortedRun:
    writer = RunWriter(path, order)
    if run:
        rows = [[*window, *[int(NOTHING)] * (order - len(window))] for window in sorted(run)]
        writer.add_rows(np.array(rows, np.uint32), np.array([run[window] for window in sorted(run)]))
    return writer.close()


def shared_with(window: Row, before: Row) -> int:
    """The number of leading ids that two windows have in common."""
    ends = (place for place, pair in enumerate(zip(window, before, strict=False)) if pair[0] != pair[1])
    return next(ends, min(len(window), len(before)))


def check(runs: list[SortedRun], order: int, expected: Counter[Row]) -> None:
    found = list[tuple[Row, int, int]]()
    for rows, counts, shared in merge_rows(runs, order, LARGEST + 1):
        windows = (tuple(word for word in row if word != NOTHING) for row in rows.tolist())
        found += zip(windows, counts.tolist(), shared.tolist(), strict=True)
    assert [(window, count) for window, count, _ in found] == sorted(expected.items())
    before: Row = ()
    for window, _, shared_ids in found:
        assert shared_ids == shared_with(window, before)
        before = window


@settings(max_examples=60, deadline=None)
@given(some_runs(), st.integers(1, 7), st.booleans())
def test_merging_equals_a_sorted_dictionary(
    tmp_path_factory: pytest.TempPathFactory, given_runs: tuple[int, list[Counter[Row]]], block: int, small: bool
) -> None:
    order, contents = given_runs
    folder = tmp_path_factory.mktemp("runs")
    runs = [write(folder / str(number), order, content) for number, content in enumerate(contents)]
    expected: Counter[Row] = sum(contents, Counter())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merging, "BLOCK", block)
        if small:  # one row fits, so that buffers are filled again all the time
            patch.setattr(merging, "BUFFER", 64)
        check(runs, order, expected)
    if any(contents):
        check([merge_into(folder / "merged", runs, order, LARGEST + 1, at_once=2)], order, expected)
