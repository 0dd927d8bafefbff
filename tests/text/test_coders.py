"""Coders: what is written is read back, and costs what was counted."""

from __future__ import annotations

from math import log2

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chainrule.errors import DataError
from chainrule.text.coding.adaptive import AdaptiveChoice, AdaptiveFlag
from chainrule.text.coding.coders import Coder, CostCoder, RangeDecoder, RangeEncoder


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_range_code_is_read_back_and_as_long_as_counted(dtype: type) -> None:
    generator = np.random.default_rng(0)
    weights_NV = generator.dirichlet(np.full(300, 0.05), size=400).astype(dtype)
    weights_NV[:, 5] = 0  # of weight 0, but coded
    symbols_N = np.array([generator.choice(300, p=row / row.sum()) for row in weights_NV.astype(float)], np.int32)
    symbols_N[::50] = 5
    cost, encoder = CostCoder(), RangeEncoder()
    for coder in (cost, encoder):
        np.testing.assert_array_equal(coder.code_rows(weights_NV, symbols_N), symbols_N)
    data = encoder.finish()
    assert abs(8 * len(data) - cost.bits) < 64
    np.testing.assert_array_equal(RangeDecoder(data).code_rows(weights_NV), symbols_N)


def test_one_by_one_equals_rows() -> None:
    generator = np.random.default_rng(1)
    weights_NV, symbols_N = generator.random((50, 9)), generator.integers(0, 9, 50)
    one, rows = RangeEncoder(), RangeEncoder()
    for weights_V, symbol in zip(weights_NV, symbols_N, strict=True):
        one.code(weights_V, int(symbol))
    rows.code_rows(weights_NV, symbols_N)
    assert one.finish() == rows.finish()
    decoder = RangeDecoder(rows.finish())
    assert [decoder.code(weights_V) for weights_V in weights_NV] == symbols_N.tolist()


def test_cost_is_minus_log2_of_the_share() -> None:
    cost = CostCoder()
    cost.code(np.array([1.0, 3.0]), 1)
    cost.code_uniform(8, 3)
    assert cost.bits == pytest.approx(-log2(0.75) + 3, abs=1e-5)


def test_nothing_and_certainty_cost_nothing() -> None:
    encoder, cost = RangeEncoder(), CostCoder()
    for coder in (encoder, cost):
        assert coder.code(np.ones(1), 0) == 0
    assert encoder.finish() == b""
    assert cost.bits == 0
    assert RangeDecoder(b"").code(np.ones(1)) == 0


def test_damaged_code() -> None:
    with pytest.raises(DataError) as caught:
        RangeDecoder(b"abc")
    assert str(caught.value) == "got 3 coded bytes: expected a multiple of 4; the file is truncated."
    decoder = RangeDecoder(b"\xff" * 8)
    with pytest.raises(DataError) as caught:
        decoder.code_rows(np.tile(np.arange(1.0, 51.0), (100, 1)))
    assert str(caught.value) == "the coded bytes are damaged: expected what the encoder wrote; copy the file again."


def _spell(coder: Coder, value: int | None) -> int:
    return coder.code_uniform(64, value)


@given(st.lists(st.integers(0, 9), max_size=60), st.integers(1, 12))
def test_choice_closed_form_equals_coding(values: list[int], max_values: int) -> None:
    coded, counted = AdaptiveChoice([0], max_values), AdaptiveChoice([0], max_values)
    cost, encoder = CostCoder(), RangeEncoder()
    spelled = 0
    for value in values:
        assert coded.code(cost, value, _spell) == value
        spelled += counted.add(value)
    assert counted.bits + 6 * spelled == pytest.approx(cost.bits, abs=1e-3)
    writing = AdaptiveChoice([0], max_values)
    for value in values:
        writing.code(encoder, value, _spell)
    reading, decoder = AdaptiveChoice([0], max_values), RangeDecoder(encoder.finish())
    assert [reading.code(decoder, None, _spell) for _ in values] == values


def test_choice_by_hand() -> None:
    choice: AdaptiveChoice[str] = AdaptiveChoice(["a"])
    assert [choice.add(value) for value in "abba"] == [0, 1, 0, 0]
    expected = [1 / 2, 1 / 3, 1 / 4, 2 / 5]  # a of {a:1, new:1}; new of {a:2, new:1}; b of {a:2, b:1, new:1}; a again
    assert choice.bits == pytest.approx(-sum(map(log2, expected)))


def test_adding_many_equals_adding_one_by_one() -> None:
    many, single = AdaptiveChoice(["a"], max_values=2), AdaptiveChoice(["a"], max_values=2)
    for value, times in [("a", 3), ("b", 4), ("c", 5), ("b", 2), ("c", 1), ("a", 0)]:
        assert many.add(value, times) == sum(single.add(value) for _ in range(times))
    assert many.bits == pytest.approx(single.bits)


@given(st.lists(st.booleans(), max_size=60))
def test_flag_closed_form_equals_coding(values: list[bool]) -> None:
    coded, counted, cost, encoder = AdaptiveFlag(), AdaptiveFlag(), CostCoder(), RangeEncoder()
    for value in values:
        coded.code(cost, value)
        counted.add(value)
    assert counted.bits == pytest.approx(cost.bits, abs=1e-3)
    writing = AdaptiveFlag()
    for value in values:
        writing.code(encoder, value)
    reading, decoder = AdaptiveFlag(), RangeDecoder(encoder.finish())
    assert [reading.code(decoder, None) for _ in values] == values
