"""Calibration: whether what is given probability p happens with frequency p.

Predictions are sorted into bins of equal width by their probability. Each bin has a mean probability (confidence) and
a frequency of correct predictions; the expected calibration error is the mean of |frequency - confidence| over
predictions (Naeini et al., "Obtaining Well Calibrated Probabilities Using Bayesian Binning", 2015).

Of a language model, the prediction is the most probable token before each token of a text. The same bins over the
probabilities of *all* tokens of the vocabulary judge the whole distribution; its error is Σ |hits - mass| / positions,
the probability mass per position that is in the wrong bins.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from chainrule.base.arrays import Array
from chainrule.base.modes import evaluating
from chainrule.base.over_arrays import over_arrays
from chainrule.evaluation.measurement import Measurement

BINS = 10
CELLS = 1 << 21
"""Probabilities held at once."""

MOST_CELLS = 1 << 27
"""Probabilities that are read in all: the beginning of a text is enough."""


@dataclass(frozen=True)
class ReliabilityBin:
    """The predictions whose probability lies between two bounds."""

    low: float
    high: float
    count: int
    confidence: float  # mean probability
    frequency: float  # share that is correct


@dataclass(frozen=True)
class Reliability(Measurement):
    """The bins that have predictions, and the expected calibration error."""

    positions: int
    error: float
    bins: list[ReliabilityBin]


class ReliabilityCounter:
    """Sums over predictions, bin by bin."""

    def __init__(self, bins: int = BINS) -> None:
        self._count_Z, self._mass_Z, self._hits_Z = np.zeros((3, bins))
        self._bins = bins

    def add(self, probabilities_N: Array, correct_N: Array) -> None:
        """Add predictions with their probabilities, and whether each is correct."""
        self._add_mass(probabilities_N)
        self._hits_Z += np.bincount(self._bin(probabilities_N[correct_N]), minlength=self._bins)

    def add_distributions(self, probabilities_MV: Array, tokens_M: Array) -> None:
        """Add every token of a vocabulary with its probability at each of M positions; one of them is correct."""
        self._add_mass(probabilities_MV.reshape(-1))
        own_M = probabilities_MV[np.arange(len(tokens_M)), tokens_M]
        self._hits_Z += np.bincount(self._bin(own_M), minlength=self._bins)

    def result(self, positions: int) -> Reliability:
        """The bins; the error is per position."""
        edges = np.linspace(0, 1, self._bins + 1).tolist()
        rows = zip(edges, edges[1:], self._count_Z.tolist(), self._mass_Z.tolist(), self._hits_Z.tolist(), strict=False)
        bins = [
            ReliabilityBin(low, high, int(count), mass / count, hits / count)
            for low, high, count, mass, hits in rows
            if count
        ]
        return Reliability(positions, float(np.abs(self._hits_Z - self._mass_Z).sum() / positions), bins)

    def _add_mass(self, probabilities_N: Array) -> None:
        bins_N = self._bin(probabilities_N)
        self._count_Z += np.bincount(bins_N, minlength=self._bins)
        self._mass_Z += np.bincount(bins_N, probabilities_N, self._bins)

    def _bin(self, probabilities_N: Array) -> Array:
        return np.minimum((probabilities_N * self._bins).astype(np.int64), self._bins - 1)


def reliability(probabilities_N: Array, correct_N: Array, bins: int = BINS) -> Reliability:
    """The calibration of predictions, for example of a classifier's labels."""
    counter = ReliabilityCounter(bins)
    counter.add(probabilities_N, correct_N)
    return counter.result(len(probabilities_N))


@dataclass(frozen=True)
class TokenCalibration(Measurement):
    """The calibration of a language model on the beginning of a text."""

    tokens: int
    best: Reliability  # of the most probable token
    every: Reliability  # of all tokens of the vocabulary
    accuracy: float  # share of tokens that are the most probable one


def calibrate_tokens(model: Any, tokens_N: Array, *, eos: int, bins: int = BINS) -> TokenCalibration:
    """Compare the distributions before the first tokens of a text with the tokens themselves.

    The text is read from its first token on, without a cut into tracks.
    """
    tokens_N = np.asarray(tokens_N[: most_tokens(model.vocab_size)], np.int64)
    return calibrate(_distributions(model, tokens_N, eos), bins)


def most_tokens(vocab_size: int) -> int:
    """The number of tokens that are read for a calibration."""
    return max(1, MOST_CELLS // vocab_size)


def calibrate(distributions: Iterable[tuple[Array, Array]], bins: int = BINS) -> TokenCalibration:
    """Compare probabilities of all tokens, MV at a time, with the tokens that follow, M."""
    best, every, hits, count = ReliabilityCounter(bins), ReliabilityCounter(bins), 0, 0
    for probabilities_MV, part_M in distributions:
        chosen_M = probabilities_MV.argmax(1)
        correct_M = chosen_M == part_M
        best.add(probabilities_MV[np.arange(len(part_M)), chosen_M], correct_M)
        every.add_distributions(probabilities_MV, part_M)
        hits, count = hits + int(correct_M.sum()), count + len(part_M)
    return TokenCalibration(count, best.result(count), every.result(count), hits / count)


def _distributions(model: Any, tokens_N: Array, eos: int) -> Iterator[tuple[Array, Array]]:
    """The probabilities before some tokens at a time, and the tokens -> MV, M."""
    arrays, columns = over_arrays(model), max(1, CELLS // model.vocab_size)
    inputs_N = np.concatenate([[eos], tokens_N[:-1]])
    with evaluating(model):
        state = arrays.start(1)
        for begin in range(0, len(tokens_N), columns):
            log_probs_1TV, state = arrays.extend(state, inputs_N[None, begin : begin + columns])
            yield np.exp(log_probs_1TV[0].astype(np.float64)), tokens_N[begin : begin + columns]
