"""Words found by screening against all scores, and parts of packed matrices against the whole."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from chainrule.engines.decode import screening
from chainrule.engines.decode.linear import FLOATS, Packer, aligned, apply_linear, rounded_up
from chainrule.engines.decode.panels import apply_linear_backwards, place_of, unpack_floats
from chainrule.engines.decode.stack_kernel import log_softmax
from chainrule.engines.decode.vectors import LANES

Array = np.ndarray[Any, Any]


class Layer:
    """An output layer with and without its screen."""

    def __init__(self, weight_XD: Array, bias_X: Array, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(screening, "SCREENED_WEIGHTS", 0)
        packer = Packer()
        self.words, self.D = weight_XD.shape
        self.number, self.weights = packer.linear(weight_XD, bias_X), packer.weights()
        self.screen = screening.make_screen(self.weights, self.number)
        self.logits = aligned(rounded_up(self.words))
        self.spare = aligned(self.D + 4, np.uint8), aligned(1)

    def log_probs(self, inputs_D: Array) -> Array:
        found = np.empty(self.words, np.float32)
        apply_linear(self.weights, self.number, inputs_D, 0, 0, self.logits, 0, 0, 1, self.spare)
        log_softmax(self.logits, 0, found)
        return found

    def find(self, inputs_D: Array, kernel: Any = screening.find_word) -> int:
        room = self.screen.room(self.words)
        arguments = self.weights, self.number, self.screen, inputs_D, 0, self.logits, self.spare, room
        return int(kernel(*arguments))


@pytest.mark.parametrize(("V", "D"), [(1, 3), (40, 16), (300, 24), (1000, 50)])
def test_the_word_is_the_first_of_the_largest(V: int, D: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(V)
    weight_XD = draw.standard_normal((V, D)).astype(np.float32)
    weight_XD[V // 2 :] *= 3  # words of different lengths
    layer = Layer(weight_XD, draw.standard_normal(V).astype(np.float32), monkeypatch)
    certain = 0
    for size in (1e-3, 0.1, 1.0, 30.0):
        for _ in range(20):
            inputs_D = (size * draw.standard_normal(D)).astype(np.float32)
            expected = int(layer.log_probs(inputs_D).argmax())
            assert layer.find(inputs_D) == expected
            by_bounds = layer.find(inputs_D, screening._screened_word)
            assert by_bounds in (-1, expected)
            certain += by_bounds == expected
    assert certain > 60


def test_the_first_of_equal_words_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(1)
    weight_XD = draw.standard_normal((200, 20)).astype(np.float32)
    weight_XD[150], weight_XD[170] = weight_XD[30], np.nextafter(weight_XD[30], 9)
    layer = Layer(weight_XD, np.zeros(200, np.float32), monkeypatch)
    for size in (1e-3, 0.1, 1.0, 30.0):
        inputs_D = size * weight_XD[30]
        assert layer.find(inputs_D, screening._screened_word) == -1  # not decided by the bounds
        assert layer.find(inputs_D) == int(layer.log_probs(inputs_D).argmax())


def test_numbers_that_are_not_finite_are_not_screened(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = Layer(np.ones((40, 4), np.float32), np.zeros(40, np.float32), monkeypatch)
    inputs_D = np.array([1, np.nan, 2, 3], np.float32)
    assert layer.find(inputs_D, screening._screened_word) == -1
    assert layer.find(inputs_D) == 0


@pytest.mark.parametrize("outputs", [16, 48, 112, 128, 128 + 64, 128 + 112, 3 * 128 + 80])
def test_panels_backwards_and_columns_are_those_of_the_whole(outputs: int) -> None:
    draw, D = np.random.default_rng(outputs), 23
    weight_XD = draw.standard_normal((outputs, D)).astype(np.float32)
    for int8 in (False, True):
        packer = Packer(int8=int8)
        number, weights = packer.linear(weight_XD, weight_XD[:, 0]), packer.weights()
        inputs_D, spare = draw.standard_normal(D).astype(np.float32), (aligned(D + 4, np.uint8), aligned(1))
        forwards, backwards = aligned(outputs), aligned(outputs)
        apply_linear(weights, number, inputs_D, 0, 0, forwards, 0, 0, 1, spare)
        apply_linear_backwards(weights, number, inputs_D, 0, backwards, 0, spare)
        assert np.array_equal(forwards, backwards)
        if not int8:
            floats = weights[FLOATS][weights[0][number, 1] :]
            assert np.array_equal(unpack_floats(floats, outputs, D), weight_XD)
            for vector in range(outputs // LANES):
                at, step = place_of(vector, outputs // LANES, D)
                lines = [floats[at + j * step :][:LANES] for j in range(D)]
                assert np.array_equal(np.stack(lines, 1), weight_XD[vector * LANES :][:LANES])
