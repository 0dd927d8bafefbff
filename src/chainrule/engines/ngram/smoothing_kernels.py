"""The compiled loops of the smoothing methods. `smoothing.py` explains the formulas."""

from __future__ import annotations

import numpy as np
from numba import njit

from chainrule.base.arrays import Array
from chainrule.engines.ngram.interpolation import bucket_of

# Counts


@njit(cache=True, nogil=True)
def tally(counts_J: Array, largest: int) -> Array:
    """The number of nodes with count 0, 1, … `largest`."""
    numbers = np.zeros(largest + 1, np.int64)
    for count in counts_J:
        if count <= largest:
            numbers[count] += 1
    return numbers


@njit(cache=True, nogil=True)
def count_links(links: Array, counts_J: Array) -> None:
    """Add one to the count of each node for every link to it."""
    for link in links:
        counts_J[link] += 1


# Interpolation


@njit(cache=True, nogil=True)
def interpolate_words(counts_V: Array, discounts_4: Array, types: int, weights_Z: Array, probs_J: Array) -> None:
    """The unigrams, interpolated with the uniform distribution."""
    total, kept = 0.0, 0.0
    for count in counts_V:
        if count:
            total += count + types
            kept += count - discounts_4[min(count, 3)]
    weight = weights_Z[0]
    uniform = (1 - weight + weight * (total - kept) / total) / len(counts_V)
    for word in range(len(counts_V)):
        count = counts_V[word]
        probs_J[word] = uniform + (weight * (count - discounts_4[min(count, 3)]) / total if count else 0.0)


@njit(cache=True, nogil=True)
def interpolate_children(
    begin: int,
    end: int,
    first_Y: Array,
    links_J: Array,
    raw_J: Array,
    counts_J: Array,
    discounts_4: Array,
    types: int,
    weights_Z: Array,
    threshold: int,
    probs_J: Array,
    backoffs_Y: Array,
) -> None:
    """The children of the contexts `begin` to `end`, and the back-off weights of these contexts."""
    for parent in range(begin, end):
        low, high = first_Y[parent], first_Y[parent + 1]
        if low == high:
            backoffs_Y[parent] = 1.0
            continue
        total, freed, ones, twos, more = 0.0, 0.0, 0, 0, 0
        for child in range(low, high):
            count = counts_J[child]
            total += count + types
            freed += types
            if raw_J[child] <= threshold:
                freed += count
                continue
            ones += count == 1
            twos += count == 2
            more += count > 2
        # One sum of products, not a sum over the children, so that no rounding depends on their order.
        freed += ones * discounts_4[1] + twos * discounts_4[2] + more * discounts_4[3]
        weight = weights_Z[bucket_of(total, len(weights_Z))]
        backoff = 1 - weight + weight * freed / total
        backoffs_Y[parent] = backoff
        for child in range(low, high):
            count = counts_J[child]
            share = weight * (count - discounts_4[min(count, 3)]) / total
            probs_J[child] = share + backoff * probs_J[links_J[child]]


# Additive smoothing


@njit(cache=True, nogil=True)
def additive(
    starts: Array,
    counts_J: Array,
    first_Y: Array,
    eos: int,
    by_line: bool,
    delta: float,
    probs_J: Array,
    backoffs_Y: Array,
) -> None:
    """Add `delta` to the count of every word after every complete context.

    A context is complete if it has order - 1 words or begins its line; after any other context the distribution is
    uniform.
    """
    order, size = len(starts) - 1, starts[1]
    probs_J[:] = 1 / size
    backoffs_Y[:] = 1.0
    if order == 1:
        total = counts_J.sum()
        for word in range(size):
            probs_J[word] = (counts_J[word] + delta) / (total + delta * size)
        return
    low, high = np.int64(eos), np.int64(eos + 1)  # the contexts of a level that begin a line
    for k in range(1, order):
        complete = k == order - 1
        begin, end = (starts[k - 1], starts[k]) if complete else (low, high)
        if complete or by_line:
            for parent in range(begin, end):
                total = 0.0
                for child in range(first_Y[parent], first_Y[parent + 1]):
                    total += counts_J[child]
                for child in range(first_Y[parent], first_Y[parent + 1]):
                    probs_J[child] = (counts_J[child] + delta) / (total + delta * size)
                if total > 0:
                    backoffs_Y[parent] = delta * size / (total + delta * size)
        low, high = np.int64(first_Y[low]), np.int64(first_Y[high])


# Katz back-off


@njit(cache=True, nogil=True)
def katz(
    starts: Array,
    counts_J: Array,
    first_Y: Array,
    links_J: Array,
    ratios_O6: Array,
    probs_J: Array,
    backoffs_Y: Array,
) -> None:
    """Discount small counts by ratios; the probability that this frees goes to the unseen words."""
    size = starts[1]
    counts_V = counts_J[:size]
    total, kept, unseen = _sums(counts_V, ratios_O6[0])
    for word in range(size):
        probs_J[word] = counts_V[word] * _kept_ratio(ratios_O6[0], counts_V[word]) / (total if unseen else kept)
        if counts_V[word] == 0:
            probs_J[word] = (1 - kept / total) / unseen
    for k in range(1, len(starts) - 1):
        for parent in range(starts[k - 1], starts[k]):
            low, high = first_Y[parent], first_Y[parent + 1]
            backoffs_Y[parent] = 1.0
            if low < high:
                total, kept, _ = _sums(counts_J[low:high], ratios_O6[k])
                lower = 0.0
                for child in range(low, high):
                    lower += probs_J[links_J[child]]
                # If every word follows this context, no unseen word can take the freed probability.
                some_unseen = high - low < size and 1 - lower > 1e-6
                backoffs_Y[parent] = (1 - kept / total) / (1 - lower) if some_unseen else 0.0
                for child in range(low, high):
                    share = counts_J[child] * _kept_ratio(ratios_O6[k], counts_J[child])
                    probs_J[child] = share / (total if some_unseen else kept)


@njit(cache=True, nogil=True)
def _sums(counts: Array, ratios_6: Array) -> tuple[float, float, int]:
    """The sum of the counts, of the discounted counts, and the number of zeros.

    If nothing is discounted, the sum is one larger, which frees probability for the unseen words.
    """
    total, kept, unseen = 0.0, 0.0, 0
    for count in counts:
        total += count
        kept += count * _kept_ratio(ratios_6, count)
        unseen += count == 0
    return total + (kept > total - 1e-9), kept, unseen


@njit(cache=True, nogil=True)
def _kept_ratio(ratios_6: Array, count: int) -> float:
    return ratios_6[count] if count < len(ratios_6) else 1.0
