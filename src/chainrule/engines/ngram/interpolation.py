"""Fitting interpolation weights by expectation and maximisation, on a text that the counts are not from.

Jelinek & Mercer, "Interpolated estimation of Markov source parameters from sparse data", 1980. A word is thought to
come from the longest context with probability λ, else from the next shorter one, and so on down to all words alike; λ
depends on the length of the context and on how often it was seen.

Legend: N order, B buckets, T tokens, X nodes, H contexts.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from chainrule.engines.ngram.scratch import Array
from chainrule.engines.ngram.trie import Trie, find

ROUNDS = 1000
ENOUGH = 1e-8  # nats a token: a round that gains less is the last
MOST_TOKENS = 1_000_000
LARGEST = 1 - 1e-5
"""A weight of 1 would make words impossible that the fitting text happened not to have."""


def fit_weights(trie: Trie, tokens: Array, buckets: int) -> Array:
    """λ by context length and bucket -> (N, B); one half where the text says nothing."""
    weights_NB = np.full((trie.order, buckets), 0.5)
    tokens = np.asarray(tokens[:MOST_TOKENS], np.int64)
    if not len(tokens):
        return weights_NB
    shares_TN, buckets_TN = (
        np.empty((len(tokens), trie.order), np.float32),
        np.empty((len(tokens), trie.order), np.int8),
    )
    _look_up(
        trie.starts,
        trie.words_X,
        trie.first_X,
        trie.counts_X,
        _totals(trie.first_X, trie.counts_X),
        tokens,
        trie.eos,
        -1 if trie.across_lines else trie.eos,
        buckets,
        shares_TN,
        buckets_TN,
    )
    last = -np.inf
    for _ in range(ROUNDS):
        taken_NB, reached_NB = np.zeros_like(weights_NB), np.zeros_like(weights_NB)
        nats = _expect(shares_TN, buckets_TN, trie.vocab_size, weights_NB, taken_NB, reached_NB)
        weights_NB = _maximise(taken_NB, reached_NB)
        if nats - last < ENOUGH * len(tokens):
            break
        last = nats
    return weights_NB


def _maximise(taken_NB: Array, reached_NB: Array) -> Array:
    """The share that each context length and bucket took of what reached it; rare buckets do as the one below them."""
    weights_NB = np.full_like(taken_NB, 0.5)
    for k in range(len(weights_NB)):
        known = 0.5
        for bucket in range(weights_NB.shape[1]):
            if reached_NB[k, bucket] > 0:
                known = min(LARGEST, taken_NB[k, bucket] / reached_NB[k, bucket])
            weights_NB[k, bucket] = known
    return weights_NB


@njit(cache=True, nogil=True)
def bucket_of(total: float, buckets: int) -> int:
    """The bucket of a context seen so often: the whole part of the binary logarithm."""
    bucket = 0
    while total >= 2 and bucket + 1 < buckets:
        total /= 2
        bucket += 1
    return bucket


@njit(cache=True, nogil=True)
def _totals(first_X: Array, counts_X: Array) -> Array:
    """How often each context was followed by anything."""
    totals_H = np.zeros(len(first_X) - 1)
    for parent in range(len(totals_H)):
        for child in range(first_X[parent], first_X[parent + 1]):
            totals_H[parent] += counts_X[child]
    return totals_H


@njit(cache=True, nogil=True)
def _look_up(
    starts: Array,
    words_X: Array,
    first_X: Array,
    counts_X: Array,
    totals_H: Array,
    tokens_T: Array,
    eos: int,
    ending: int,
    buckets: int,
    shares_TN: Array,
    buckets_TN: Array,
) -> None:
    """What share of its occurrences each context of a token was followed by it, and its bucket; -1: it is unseen."""
    order = len(starts) - 1
    all_words = counts_X[: starts[1]].sum()
    chain, found = np.full(order, -1), np.full(order, -1)  # the context of k + 1 words; the n-gram of k and the token
    chain[0] = eos
    for t in range(len(tokens_T)):
        word = tokens_T[t]
        found[0] = word
        shares_TN[t, 0], buckets_TN[t, 0] = counts_X[word] / all_words, 0
        for k in range(1, order):
            node, found[k] = chain[k - 1], -1
            shares_TN[t, k], buckets_TN[t, k] = 0.0, -1
            if node >= 0 and totals_H[node] > 0:
                found[k] = find(words_X, word, np.int64(first_X[node]), np.int64(first_X[node + 1]))
                buckets_TN[t, k] = bucket_of(totals_H[node], buckets)
                if found[k] >= 0:
                    shares_TN[t, k] = counts_X[found[k]] / totals_H[node]
        chain[1:] = found[1:]
        chain[0], chain[order - 1] = word, word if order == 1 else -1
        if word == ending:
            chain[1:] = -1


@njit(cache=True, nogil=True)
def _expect(
    shares_TN: Array, buckets_TN: Array, vocab_size: int, weights_NB: Array, taken_NB: Array, reached_NB: Array
) -> float:
    """Add up how much of each token every context length took, and how much reached it -> log p of the text."""
    order, nats = shares_TN.shape[1], 0.0
    parts = np.zeros(order)
    for t in range(len(shares_TN)):
        remaining = 1.0
        for k in range(order - 1, -1, -1):
            parts[k] = 0.0
            if buckets_TN[t, k] >= 0:
                weight = weights_NB[k, buckets_TN[t, k]]
                parts[k] = remaining * weight * shares_TN[t, k]
                remaining *= 1 - weight
        below = remaining / vocab_size
        whole = below + parts.sum()
        nats += np.log(whole)
        for k in range(order):
            below += parts[k]
            if buckets_TN[t, k] >= 0:
                taken_NB[k, buckets_TN[t, k]] += parts[k] / whole
                reached_NB[k, buckets_TN[t, k]] += below / whole
    return nats
