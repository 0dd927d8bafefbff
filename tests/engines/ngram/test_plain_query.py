"""Plain Python gives the bits of the compiled queries, for every form of a table."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chainrule.base.arrays import Array
from chainrule.base.lazy import LazyKernels
from chainrule.engines.ngram import line_kernels, query, query_kernels
from chainrule.engines.ngram.packing import MAX_CODES, pack
from chainrule.engines.ngram.table import NgramTable, TableArrays
from engines.ngram.naive import Stream
from engines.ngram.test_counts import streams, zipfian
from engines.ngram.test_table import made

SMOOTHINGS = (
    "mle",
    "additive",
    "katz",
    "witten-bell",
    "absolute",
    "kneser-ney",
    "modified-kneser-ney",
    "stupid-backoff",
)


def compiled(monkeypatch: pytest.MonkeyPatch, wanted: bool) -> None:
    """Let `query` use the kernels alone, or plain Python alone."""
    for name, module in (("_kernels", query_kernels), ("_line_kernels", line_kernels)):
        monkeypatch.setattr(query, name, LazyKernels(module.__name__, budget=-1 if wanted else 1 << 60))


def answers(table: NgramTable, tokens: Array, ending: int) -> list[Array]:
    """The walk over tokens, in two parts, the states after them, the row after some tokens, and the walk over lines."""
    state_O = np.empty(table.order, np.int64)
    query.begin(state_O, table.eos)
    found: list[Array] = []
    for part in (tokens[:7], tokens[7:], tokens[:0]):
        found += [*query.walk_matches(table.arrays, part, state_O, ending, table.absent), state_O.copy()]
    for token in tokens[:9]:
        row_V = np.empty(table.vocab_size, np.float32)
        query.walk(table.arrays, np.array([token]), state_O, ending, table.absent)
        query.distribution(table.arrays, state_O, table.absent, row_V)
        found.append(row_V)
    for size in (0, 1, 5, len(tokens)):
        found += query.walk_lines(table.arrays, tokens[:size], table.eos, table.absent)
    return found


def compare(table: NgramTable, tokens: Array, ending: int) -> None:
    found = []
    for wanted in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            compiled(patch, wanted)
            found.append(answers(table, np.asarray(tokens, np.int64), ending))
    for one, other in zip(*found, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("smoothing", SMOOTHINGS)
@pytest.mark.parametrize("order", [1, 2, 5])
@pytest.mark.parametrize("quantize", [False, True])
def test_every_smoothing(smoothing: str, order: int, quantize: bool) -> None:
    for across_lines in (False, True):
        stream = zipfian(40, 1200, across_lines)
        table = made(stream, order, smoothing, quantize=quantize)
        assert table.arrays.probs.dtype == (np.uint8 if quantize else np.float32)
        compare(table, np.array([*stream.text[:60], *range(40), 3, 3, 3]), -1 if across_lines else stream.eos)


@settings(max_examples=40, deadline=None)
@given(
    stream=streams(),
    order=st.integers(1, 5),
    probe=st.lists(st.integers(0, 2), min_size=1, max_size=12),
    quantize=st.booleans(),
)
def test_any_text(stream: Stream, order: int, probe: list[int], quantize: bool) -> None:
    table = made(stream, order, "witten-bell", quantize=quantize)
    compare(table, np.array(probe), -1 if stream.across_lines else stream.eos)


def wide(arrays: TableArrays, **changed: Any) -> TableArrays:
    return arrays._replace(**{name: np.asarray(array) for name, array in changed.items()})


def test_wide_numbers_and_back_off_weights_without_a_table() -> None:
    stream = zipfian(40, 1200)
    table = made(stream, 4)
    arrays = table.arrays
    assert (arrays.words.dtype, arrays.first_steps.dtype, arrays.backoffs.dtype) == (np.uint16,) * 3
    weights = arrays.backoff_table[arrays.backoffs]
    wider = wide(
        arrays,
        words=arrays.words.astype(np.uint32),
        first_steps=arrays.first_steps.astype(np.uint32),
        backoffs=weights,
        backoff_table=np.empty(0, np.float32),
    )
    for changed in (wider, wide(arrays, words=arrays.words.astype(np.uint32))):
        compare(NgramTable(changed, table.eos, False, True, table.absent), np.array(stream.text[:80]), table.eos)


def test_more_back_off_weights_than_codes_are_stored_as_numbers() -> None:
    """The last of the forms of `packing.py`."""
    size = MAX_CODES + 9
    generator = np.random.default_rng(0)
    first = np.minimum(np.arange(size + 1, dtype=np.uint32), 5) + size
    probs = -generator.exponential(size=size + 5).astype(np.float32)
    backoffs = -generator.permutation(size).astype(np.float32) / size
    words = np.concatenate([np.arange(size), [3, 1, 4, 1, 5]])
    arrays = pack(np.array([0, size, size + 5]), words, first, probs, backoffs)
    assert (arrays.words.dtype, arrays.backoffs.dtype) == (np.uint32, np.float32)
    compare(NgramTable(arrays, 1, False, True, 0.0), np.array([0, 3, 1, 1, 2, 4, 3, 1, size - 1, 4, 5]), 1)


def test_a_chosen_number_of_words_is_walked_before_the_kernels_are_loaded() -> None:
    lazy = LazyKernels(query_kernels.__name__, budget=10)
    assert [lazy.after(4), lazy.after(6)] == [None, None]
    assert lazy.after(1) is query_kernels
    assert lazy.after(0) is query_kernels
    loaded = LazyKernels(query_kernels.__name__, budget=10)
    loaded.load()
    assert loaded.after(1) is query_kernels


@pytest.mark.parametrize("order", [1, 2, 5])
@pytest.mark.parametrize("lines", [1, 3, 8, 50])
def test_lines_are_walked_one_by_one(order: int, lines: int) -> None:
    """However they are shared out among the tracks of the kernel, each line is that of a walk by itself."""
    stream = zipfian(40, 1200)
    table, generator = made(stream, order), np.random.default_rng(lines)
    given = [np.append(generator.integers(2, 40, size), table.eos) for size in generator.integers(0, 30, lines)]
    given[-1] = given[-1][:-1]  # the last line need not end
    with pytest.MonkeyPatch.context() as patch:
        compiled(patch, True)
        found_N, depths_N = query.walk_lines(table.arrays, np.concatenate(given), table.eos, table.absent)
        alone = []
        for line in given:
            state_O = np.empty(order, np.int64)
            query.begin(state_O, table.eos)
            alone.append(query.walk(table.arrays, line, state_O, table.eos, table.absent))
    np.testing.assert_array_equal(found_N, np.concatenate([probs_T for probs_T, _ in alone]))
    np.testing.assert_array_equal(depths_N, np.concatenate([depths_T for _, depths_T in alone]))
