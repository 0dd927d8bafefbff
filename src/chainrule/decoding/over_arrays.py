"""Greedy search, sampling and beam search over numpy arrays, for models that compute without torch.

The definitions are those of `generate.py`, `sample.py` and `beam.py`, for one prompt; the tests hold greedy and beam
search to identical results, and the filters of sampling to identical distributions. Draws come from a numpy generator,
so a seed gives other samples than with torch. Where the tensors of such a model are decoded, to check drafts,
`ArrayChoices` makes the choices that are made here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from chainrule.base.arrays import Array
from chainrule.base.lazy import torch
from chainrule.decoding.beam import LENGTH_PENALTY, Hypothesis, check_beam
from chainrule.decoding.generate import check_generation
from chainrule.decoding.limits import check_limit
from chainrule.decoding.sample import MIN_TEMPERATURE, SMALLEST_P, Sample
from chainrule.types import State

if TYPE_CHECKING:
    from torch import Tensor

ArrayChooser = Callable[[Array], Array]
"""log p(. | prefix) of each row, BV -> the chosen tokens, B."""


class SteppingArrays(Protocol):
    """What decoding needs of an `ArrayModel`."""

    def start(self, batch: int) -> State: ...

    def prefill(self, state: State, tokens_BT: Array) -> tuple[Array, State]: ...

    def select(self, state: State, rows_K: Array) -> State: ...


def greedy(log_probs_BV: Array) -> Array:
    """The most probable token of each row."""
    return np.asarray(log_probs_BV.argmax(1))


@dataclass(frozen=True)
class ArraySample:
    """`Sample` over arrays."""

    options: Sample  # its generator is not used
    random: np.random.Generator

    def __call__(self, log_probs_BV: Array) -> Array:
        if self.options.temperature < MIN_TEMPERATURE:
            return greedy(log_probs_BV)
        kept_BV = keep(log_probs_BV, self.options)
        weights_BV = np.exp(kept_BV - kept_BV.max(1, keepdims=True)).astype(np.float64)
        below_BV = weights_BV.cumsum(1)
        level_B = (1 - self.random.random(len(below_BV))) * below_BV[:, -1]
        return np.array([np.searchsorted(below_V, level) for below_V, level in zip(below_BV, level_B, strict=True)])


@dataclass(frozen=True)
class ArrayChoices:
    """A `Chooser` of tensors that makes the choices of an `ArrayChooser`, with the same random numbers."""

    choose: ArrayChooser

    def __call__(self, log_probs_BV: Tensor) -> Tensor:
        """log_probs_BV -> the chosen tokens, B."""
        return torch.from_numpy(self.choose(log_probs_BV.cpu().numpy())).to(log_probs_BV.device)


def keep(log_probs_BV: Array, options: Sample) -> Array:
    """Log-probabilities after temperature, top-k, top-p and min-p; -inf where a token is removed."""
    scores_BV = log_probs_BV if options.temperature == 1 else log_probs_BV / np.float32(options.temperature)
    if options.top_k is not None or options.top_p < 1:
        scores_BV = _keep_top(scores_BV, options)
    if options.min_p > 0:
        least_B1 = scores_BV.max(1, keepdims=True) + np.float32(math.log(options.min_p))
        scores_BV = np.where(scores_BV < least_B1, np.float32(-np.inf), scores_BV)
    return scores_BV


def _keep_top(scores_BV: Array, options: Sample) -> Array:
    """Top-k, then top-p."""
    ordered_BV = -np.sort(-scores_BV, axis=1)
    if options.top_k is not None and options.top_k < scores_BV.shape[1]:
        least_B1 = ordered_BV[:, options.top_k - 1 : options.top_k]
        scores_BV = np.where(scores_BV < least_B1, np.float32(-np.inf), scores_BV)
        ordered_BV = np.where(ordered_BV < least_B1, np.float32(-np.inf), ordered_BV)
    if options.top_p < 1:
        mass_BV = np.exp(ordered_BV - ordered_BV[:, :1])
        mass_BV /= mass_BV.sum(1, keepdims=True)
        before_BV = mass_BV.cumsum(1) - mass_BV  # 0 for the first, which is kept
        least_B1 = np.where(before_BV >= max(options.top_p, SMALLEST_P), np.inf, ordered_BV).min(1, keepdims=True)
        scores_BV = np.where(scores_BV < least_B1, np.float32(-np.inf), scores_BV)
    return scores_BV


def stream_arrays(
    model: SteppingArrays,
    prompt: Sequence[int],
    *,
    eos: int | None,
    bos: int,
    max_new_tokens: int,
    choose: ArrayChooser,
    num_return_sequences: int = 1,
) -> Iterator[list[int]]:
    """Yield the tokens of all rows at each step, as `stream` does."""
    check_generation(max_new_tokens, num_return_sequences)
    return _stream(model, prompt, eos, bos, max_new_tokens, choose, num_return_sequences)


def _stream(
    model: SteppingArrays, prompt: Sequence[int], eos: int | None, bos: int, limit: int, choose: ArrayChooser, rows: int
) -> Iterator[list[int]]:
    log_probs_BV, state = model.prefill(model.start(1), np.array([[bos, *prompt]]))
    copies_B = np.zeros(rows, np.int64)
    log_probs_BV, state = log_probs_BV[copies_B], model.select(state, copies_B)
    ended_B = np.zeros(rows, bool)
    for remaining in range(limit - 1, -1, -1):
        token_B = choose(log_probs_BV)
        if eos is not None:
            token_B = np.where(ended_B, eos, token_B)
            ended_B = token_B == eos
        yield token_B.tolist()
        if not remaining or ended_B.all():
            return
        log_probs_BV, state = model.prefill(state, token_B[:, None])


def beam_search_arrays(
    model: SteppingArrays,
    prompt: Sequence[int],
    *,
    eos: int | None,
    beams: int,
    max_new_tokens: int,
    length_penalty: float = LENGTH_PENALTY,
    num_return_sequences: int = 1,
) -> list[Hypothesis]:
    """Continue one prompt, whose first token is usually `eos`, as `beam_search` does."""
    check_limit(max_new_tokens)
    check_beam(beams, length_penalty, num_return_sequences)
    log_probs_RV, state = model.prefill(model.start(1), np.array([prompt]))
    beam = _ArrayBeam(log_probs_RV.shape[1], -1 if eos is None else eos, beams, max_new_tokens, float(length_penalty))
    for length in range(1, max_new_tokens + 1):
        row_R = beam.advance(log_probs_RV, length, num_return_sequences)
        if not len(row_R):
            break
        token_R = np.array([tokens[-1] for tokens in beam.open])
        log_probs_RV, state = model.prefill(model.select(state, row_R), token_R[:, None])
    return sorted(beam.finished, key=lambda one: -one.score)[:num_return_sequences]


class _ArrayBeam:
    """The open and the finished hypotheses of one prompt."""

    def __init__(self, V: int, eos: int, beams: int, limit: int, penalty: float) -> None:
        self.V, self.eos, self.beams, self.limit, self.penalty = V, eos, beams, limit, penalty
        self.open: list[list[int]] = [[]]
        self.log_prob_R = np.zeros(1, np.float32)
        self.finished: list[Hypothesis] = []
        self.best_K = [-math.inf] * beams  # scores of the best finished hypotheses

    def advance(self, log_probs_RV: Array, length: int, returned: int) -> Array:
        """Take one step given log p(. | prefix) of the rows -> the rows to continue, none at the end."""
        total_N = (self.log_prob_R[:, None] + log_probs_RV).reshape(-1)
        cell_M = _best(total_N, 2 * self.beams if self.beams > 1 else 1)
        ended_M = (cell_M % self.V == self.eos) | (length == self.limit)
        for cell, ended in zip(cell_M[: self.beams].tolist(), ended_M.tolist(), strict=False):
            if ended and total_N[cell] > -np.inf:
                self._finish(cell, total_N[cell], length)
        cell_R = cell_M[~ended_M & (total_N[cell_M] > -np.inf)][: self.beams]
        if not len(cell_R) or not self._unsettled(total_N[cell_R[0]], length, returned):
            return np.empty(0, np.int64)
        self.open = [[*self.open[cell // self.V], cell % self.V] for cell in cell_R.tolist()]
        self.log_prob_R = total_N[cell_R]
        return np.asarray(cell_R // self.V)

    def _finish(self, cell: int, log_prob: np.float32, length: int) -> None:
        score = float(log_prob / np.float32(length**self.penalty))
        self.finished.append(Hypothesis([*self.open[cell // self.V], cell % self.V], float(log_prob), score))
        self.best_K = sorted([*self.best_K, score], reverse=True)[: self.beams]

    def _unsettled(self, log_prob: np.float32, length: int, returned: int) -> bool:
        """Whether the best open hypothesis can still be among the results."""
        divisor = self.limit**self.penalty if self.penalty > 0 else (length + 1) ** self.penalty
        better = log_prob / np.float32(length**self.penalty) > self.best_K[-1]
        return bool(log_prob / np.float32(divisor) > self.best_K[returned - 1] and better)


def _best(values_N: Array, count: int) -> Array:
    """The indices of the largest values, largest first."""
    count = min(count, len(values_N))
    found = np.argpartition(-values_N, count - 1)[:count]
    return found[np.lexsort((found, -values_N[found]))]
