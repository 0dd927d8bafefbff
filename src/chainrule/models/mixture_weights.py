"""EM for the weights of a mixture: those under which a held-out text is most probable.

Jelinek & Mercer, "Interpolated Estimation of Markov Source Parameters from Sparse Data", 1980. There is one set of
weights for all contexts, or one for each bucket of contexts with enough tokens. In suffixes K counts the components.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from chainrule.base.arrays import Array

MIN_BUCKET_TOKENS = 100
"""A bucket with fewer tokens has no weights of its own."""

MIN_GAIN = 1e-7
"""EM ends when a step improves log p by less, in nats per token."""


@dataclass(frozen=True)
class FittedWeights:
    """The weights that EM found."""

    weights_ZK: Array  # float64
    overall_K: Array  # without buckets
    iterations: int
    nats: float  # mean -log p of a token with `overall_K`, over tokens to which some component gives a probability


def fit_weights(log_probs_KN: Array, buckets_N: Array | None = None, buckets: int = 1) -> FittedWeights:
    """The weights under which the tokens are most probable, by EM; each bucket with enough tokens has its own."""
    top_N = log_probs_KN.max(0).astype(np.float64)
    possible_N = np.isfinite(top_N)  # tokens with p = 0 under all components do not depend on the weights
    probs_KN = np.exp(log_probs_KN[:, possible_N] - top_N[possible_N])
    overall_K, iterations, log_prob = _em(probs_KN, np.full(len(probs_KN), 1 / len(probs_KN)))
    weights_ZK = np.tile(overall_K, (buckets, 1))
    if buckets_N is not None and buckets > 1:
        for bucket in range(buckets):
            inside_KM = probs_KN[:, buckets_N[possible_N] == bucket]
            if inside_KM.shape[1] >= MIN_BUCKET_TOKENS:
                weights_ZK[bucket], more, _ = _em(inside_KM, overall_K)
                iterations += more
    nats = -float(log_prob + top_N[possible_N].mean()) if possible_N.any() else 0.0
    return FittedWeights(weights_ZK, overall_K, iterations, nats)


def _em(probs_KN: Array, weights_K: Array) -> tuple[Array, int, float]:
    """EM from initial weights -> the weights, the number of steps, and the mean log p of a token."""
    iterations, before = 0, -np.inf
    while probs_KN.shape[1]:
        better_K, now = em_step(probs_KN, weights_K)
        if now - before < MIN_GAIN:
            break
        weights_K, before, iterations = better_K, now, iterations + 1
    return weights_K, iterations, before


def em_step(probs_KN: Array, weights_K: Array) -> tuple[Array, float]:
    """One step of EM -> weights that are at least as good, and the mean log p of a token with the given weights.

    The new weight of a component is its mean share of the probability of a token.
    """
    mixed_N = weights_K @ probs_KN
    return weights_K * (probs_KN @ (1 / mixed_N)) / len(mixed_N), float(np.log(mixed_N).mean())
