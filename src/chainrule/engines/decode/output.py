"""The words of an output layer for some features: all log p, or only the most probable word of each."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from chainrule.engines.decode.compiling import compiled
from chainrule.engines.decode.linear import INPUTS, LINEARS, OUTPUTS, aligned, apply_linear
from chainrule.engines.decode.room import Room
from chainrule.engines.decode.screening import Screen, find_words, make_screen
from chainrule.engines.decode.stack_kernel import first_largest, log_softmax, log_total

Array = np.ndarray[Any, Any]

ROWS_PER_CALL = 128
"""Features whose scores a call holds at once."""

LOWEST = np.float32(-np.inf)


class CompiledOutput:
    """An output layer of packed weights, whose words have the scores w·h + b."""

    def __init__(self, weights: tuple[Array, ...], number: int, vocabulary: int) -> None:
        self.weights, self.number, self.vocabulary, self._room = weights, number, vocabulary, Room()
        self.inputs, self.outputs = (int(weights[LINEARS][number, field]) for field in (INPUTS, OUTPUTS))

    @cached_property
    def screen(self) -> Screen:
        """What finds the most probable word without computing all scores."""
        return make_screen(self.weights, self.number)

    def log_probs(self, features_ND: Array) -> Array:
        """log p of all words -> NV."""
        results_NV = np.empty((len(features_ND), self.vocabulary), np.float32)
        for part, (logits, _, spare) in self._parts(features_ND):
            _write_log_probs(self.weights, self.number, features_ND[part].reshape(-1), results_NV[part], logits, spare)
        return results_NV

    def best(self, features_ND: Array) -> Array:
        """The most probable word of each -> N."""
        word_N = np.empty(len(features_ND), np.int64)
        for part, (logits, screen_room, spare) in self._parts(features_ND):
            rows = features_ND[part].reshape(-1)
            find_words(self.weights, self.number, self.screen, rows, logits, spare, screen_room, word_N[part])
        return word_N

    def second_best(self, features_ND: Array) -> tuple[Array, Array]:
        """The second most probable word of each, N, and how much less probable it is than the first, in nats, N."""
        return self._choose(_choose_second, features_ND)

    def best_with_log_probs(self, features_ND: Array) -> tuple[Array, Array]:
        """The most probable word of each, N, and its log p, N."""
        return self._choose(_choose_best, features_ND)

    def _choose(self, kernel: Any, features_ND: Array) -> tuple[Array, Array]:
        """A word and a number for each, from the scores of all words -> N, N."""
        word_N, value_N = np.empty(len(features_ND), np.int64), np.empty(len(features_ND), np.float32)
        for part, (logits, _, spare) in self._parts(features_ND):
            rows, found = features_ND[part].reshape(-1), (word_N[part], value_N[part])
            kernel(self.weights, self.number, rows, self.vocabulary, found, logits, spare)
        return word_N, value_N

    def _parts(self, features_ND: Array) -> Any:
        """Slices of the features, and the arrays of a call for each."""
        for first in range(0, len(features_ND), ROWS_PER_CALL):
            part = slice(first, min(first + ROWS_PER_CALL, len(features_ND)))
            yield part, self._room.arrays(_make_room, self, part.stop - first)


def _make_room(output: CompiledOutput, rows: int) -> tuple[Any, ...]:
    spare = aligned(rows * (output.inputs + 4), np.uint8), aligned(rows)
    return aligned(rows * output.outputs), output.screen.room(output.vocabulary), spare


@compiled
def _score(weights, number, features, rows, logits, spare):  # type: ignore[no-untyped-def]
    """Write the scores of all words for some rows of features -> the numbers per row."""
    count, width = weights[LINEARS][number, INPUTS], weights[LINEARS][number, OUTPUTS]
    apply_linear(weights, number, features, 0, count, logits, 0, width, rows, spare)
    return width


@compiled
def _write_log_probs(weights, number, features, results, logits, spare):  # type: ignore[no-untyped-def]
    width = _score(weights, number, features, len(results), logits, spare)
    for row in range(len(results)):
        log_softmax(logits, row * width, results[row])


@compiled
def _choose_best(weights, number, features, vocabulary, found, logits, spare):  # type: ignore[no-untyped-def]
    words, log_probs = found
    width = _score(weights, number, features, len(words), logits, spare)
    for row in range(len(words)):
        at = row * width
        total, best = log_total(logits, at, vocabulary), first_largest(logits, at, vocabulary)
        words[row], log_probs[row] = best, logits[at + best] - total


@compiled
def _choose_second(weights, number, features, vocabulary, found, logits, spare):  # type: ignore[no-untyped-def]
    words, gaps = found
    width = _score(weights, number, features, len(words), logits, spare)
    for row in range(len(words)):
        scores = logits[row * width : row * width + vocabulary]
        top, second, best, chosen = LOWEST, LOWEST, -1, -1
        for word in range(len(scores)):
            if scores[word] > second:
                if scores[word] > top:
                    top, second, best, chosen = scores[word], top, word, best
                else:
                    second, chosen = scores[word], word
        words[row], gaps[row] = chosen, top - second
