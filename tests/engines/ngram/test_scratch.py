"""Arrays in pieces: the same results as with whole arrays, without copies of them."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from chainrule.base.arrays import Array
from chainrule.engines.ngram.packing import places_below
from chainrule.engines.ngram.scratch import PIECE, ArrayPool

VALUES = 6 * PIECE


@pytest.mark.parametrize("size", [0, 1, PIECE, PIECE + 1, 3 * PIECE + 5])
def test_sums_are_those_of_one_pass(size: int) -> None:
    values = np.random.default_rng(size).normal(size=size).astype(np.float32)
    sums = ArrayPool().sums(values, np.float64)
    assert sums[0] == 0
    assert np.array_equal(sums[1:], np.cumsum(values, dtype=np.float64))


def test_places_are_those_of_the_exact_limits() -> None:
    """Limits between two neighbouring values of float32 would be rounded onto one of them."""
    rng = np.random.default_rng(1)
    ordered = np.sort(rng.normal(size=1000)).astype(np.float32)
    above = np.nextafter(ordered, np.float32(np.inf)).astype(np.float64)
    near = (ordered.astype(np.float64) + above) / 2
    limits = np.concatenate([ordered, near, ordered.astype(np.float64) * (1 - 1e-9), [-np.inf, 0.0, np.inf]])
    assert np.array_equal(places_below(ordered, limits), np.searchsorted(ordered.astype(np.float64), limits))


def copied(array: Array) -> float:
    """The memory that sums and places take, besides the sums, relative to the array."""
    tracemalloc.start()
    sums = ArrayPool().sums(array, np.float64)
    places_below(array, np.array([0.5, 0.25]))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return (peak - sums.nbytes) / array.nbytes


def test_no_copy_is_made_of_a_large_array() -> None:
    assert copied(np.zeros(VALUES, np.float32)) < 1
