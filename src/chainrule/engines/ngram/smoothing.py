"""From counts to probabilities: each smoothing gives every n-gram a probability and every context a back-off weight.

    p(w | h) = prob(hw)                      if the n-gram is there
             = backoff(h) · p(w | h')        otherwise; h' is h without its oldest word, backoff of an unseen h is 1

All smoothings are told in this one form, so one table, one query and one file format serve them all. The interpolated
ones share a kernel: with counts a, discounts D and the sum S over the words that follow a context,

    prob(hw) = λ (a(hw) - D(a(hw))) / S(h) + backoff(h) p(w | h'),   backoff(h) = 1 - λ Σ_w (a(hw) - D(a(hw))) / S(h)

    mle                    D = 0                                       no smoothing: what was not seen is impossible
    witten-bell            D = 0, S also counts the different words    Witten & Bell 1991
    absolute               one D an order                              Ney, Essen & Kneser 1994
    kneser-ney             the same on the number of left neighbours   Kneser & Ney 1995
    modified-kneser-ney    D for counts 1, 2, and 3 or more            Chen & Goodman 1998
    jelinek-mercer         D = 0, λ by order and S, fitted by EM       Jelinek & Mercer 1980

and three are their own: additive (Lidstone), katz (Good-Turing; Katz 1987), and stupid-backoff (Brants et al. 2007),
which is a score and no probability.

Legend: N order, X nodes, H contexts, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numba import njit

from chainrule.engines.ngram.interpolation import bucket_of, fit_weights
from chainrule.engines.ngram.scratch import Array, Room
from chainrule.engines.ngram.trie import Trie, share_out

BUCKETS = 16
"""Contexts are told apart by the logarithm of how often they were seen, when interpolation weights are fitted."""

KATZ = 5
"""Counts up to this are discounted by Good-Turing; larger ones are trusted."""

STUPID = 0.4
NEVER = -99.0
"""log10 of nothing, as ARPA files write it."""

Note = Callable[[str], None]


@dataclass
class Estimates:
    """Probabilities of all nodes and back-off weights of all contexts, as they are, not as logarithms."""

    probs_X: Array  # float32
    backoffs_H: Array  # float32
    absent: float = 1.0  # the back-off weight of a context that was never seen
    discounts: dict[int, list[float]] = field(default_factory=dict)  # by order


@dataclass
class Sample:
    """What a smoothing works on."""

    trie: Trie
    room: Room
    note: Note
    valid: Array  # tokens of another text, for what is fitted
    delta: float  # of additive smoothing
    thresholds: list[int]  # by order: n-grams seen so often or less are left out
    threads: int


def _estimate_mle(sample: Sample) -> Estimates:
    return _interpolate(sample, sample.trie.counts_X)


def _estimate_witten_bell(sample: Sample) -> Estimates:
    return _interpolate(sample, sample.trie.counts_X, types=1)


def _estimate_absolute(sample: Sample) -> Estimates:
    return _interpolate(sample, sample.trie.counts_X, discounts=_discounts(sample, sample.trie.counts_X, _one_discount))


def _estimate_kneser_ney(sample: Sample) -> Estimates:
    counts_X = left_neighbours(sample.trie, sample.room)
    return _interpolate(sample, counts_X, discounts=_discounts(sample, counts_X, _one_discount))


def _estimate_modified_kneser_ney(sample: Sample) -> Estimates:
    counts_X = left_neighbours(sample.trie, sample.room)
    return _interpolate(sample, counts_X, discounts=_discounts(sample, counts_X, _three_discounts))


def _estimate_jelinek_mercer(sample: Sample) -> Estimates:
    if not len(sample.valid):
        sample.note("jelinek-mercer: there is no validation text to fit its weights to; all are one half")
    weights_NB = fit_weights(sample.trie, sample.valid, BUCKETS)
    return _interpolate(sample, sample.trie.counts_X, weights=weights_NB)


def _estimate_additive(sample: Sample) -> Estimates:
    trie, (probs_X, backoffs_H) = sample.trie, _room_for(sample)
    _add(trie.starts, trie.counts_X, trie.first_X, trie.eos, not trie.across_lines, sample.delta, probs_X, backoffs_H)
    return Estimates(probs_X, backoffs_H)


def _estimate_katz(sample: Sample) -> Estimates:
    trie, (probs_X, backoffs_H) = sample.trie, _room_for(sample)
    ratios_NR = np.ones((trie.order, KATZ + 1))
    for k in range(1, trie.order + 1):
        ratios_NR[k - 1, 1:] = _good_turing(counts_of_counts(trie.counts(k), KATZ + 1), k, sample.note)
    _back_off(trie.starts, trie.counts_X, trie.first_X, trie.links_X, ratios_NR, probs_X, backoffs_H)
    return Estimates(probs_X, backoffs_H, discounts={k: list(ratios_NR[k - 1, 1:]) for k in range(1, trie.order + 1)})


def _estimate_stupid_backoff(sample: Sample) -> Estimates:
    plain = _interpolate(sample, sample.trie.counts_X)
    plain.backoffs_H[:] = STUPID
    plain.absent = STUPID
    return plain


SMOOTHINGS: dict[str, Callable[[Sample], Estimates]] = {
    "mle": _estimate_mle,
    "additive": _estimate_additive,
    "katz": _estimate_katz,
    "witten-bell": _estimate_witten_bell,
    "absolute": _estimate_absolute,
    "kneser-ney": _estimate_kneser_ney,
    "modified-kneser-ney": _estimate_modified_kneser_ney,
    "jelinek-mercer": _estimate_jelinek_mercer,
    "stupid-backoff": _estimate_stupid_backoff,
}


def _room_for(sample: Sample) -> tuple[Array, Array]:
    trie = sample.trie
    return sample.room.empty(len(trie.words_X), np.float32), sample.room.empty(trie.contexts, np.float32)


# Counts of counts, and discounts from them


def counts_of_counts(counts_X: Array, largest: int) -> list[int]:
    """How many n-grams have the count 0, 1, … `largest`."""
    return [int(number) for number in _tally(counts_X, largest)]


@njit(cache=True, nogil=True)
def _tally(counts_X: Array, largest: int) -> Array:
    tally = np.zeros(largest + 1, np.int64)
    for count in counts_X:
        if count <= largest:
            tally[count] += 1
    return tally


def _discounts(
    sample: Sample, counts_X: Array, rule: Callable[[list[int], int, Note], list[float]]
) -> list[list[float]]:
    """What is taken off counts of 1, 2, and 3 or more, for each order."""
    trie = sample.trie
    return [rule(counts_of_counts(counts_X[trie.level(k)], 4), k, sample.note) for k in range(1, trie.order + 1)]


def _one_discount(n: list[int], k: int, note: Note) -> list[float]:
    if not (n[1] and n[2]):
        note(f"order {k}: {n[1]} n-grams seen once and {n[2]} twice are too few to estimate a discount; 0.5 is taken")
        return [0.5] * 3
    return [n[1] / (n[1] + 2 * n[2])] * 3


def _three_discounts(n: list[int], k: int, note: Note) -> list[float]:
    usable = n[1] and n[2] and n[3]
    # D_r = r - (r + 1) Y n_{r+1} / n_r with Y = n_1 / (n_1 + 2 n_2), in one division: a D of nought must not be less.
    found = [r - (r + 1) * n[1] * n[r + 1] / ((n[1] + 2 * n[2]) * n[r]) for r in (1, 2, 3)] if usable else []
    if usable and all(0 <= discount <= r for r, discount in enumerate(found, 1)):
        return found
    seen = ", ".join(f"{n[r]} of {r}" for r in (1, 2, 3, 4))
    note(f"order {k}: counts ({seen}) from which no discounts can be estimated; 0.5, 1 and 1.5 are taken")
    return [0.5, 1.0, 1.5]


def _good_turing(n: list[int], k: int, note: Note) -> list[float]:
    """What share of a count of 1 to 5 is kept."""
    if all(n[1:]):
        tail = (KATZ + 1) * n[KATZ + 1] / n[1]
        kept = [((r + 1) * n[r + 1] / (r * n[r]) - tail) / (1 - tail) if tail != 1 else 0.0 for r in range(1, KATZ + 1)]
        if all(0 < share <= 1 for share in kept):
            return kept
    seen = ", ".join(f"{n[r]} of {r}" for r in range(1, KATZ + 2))
    note(f"order {k}: counts ({seen}) to which Good-Turing does not apply; 0.5 is taken off counts up to {KATZ}")
    return [1 - 0.5 / r for r in range(1, KATZ + 1)]


def left_neighbours(trie: Trie, room: Room) -> Array:
    """Kneser and Ney's counts: below the highest order, how many different words precede an n-gram.

    What begins a line has nothing before it, and keeps its count. Where lines are not told apart, only the n-grams that
    begin the text have nothing before them, and that counts as one more neighbour.
    """
    counts_X = room.empty(len(trie.words_X), np.uint32)
    top = trie.level(trie.order)
    counts_X[: top.start] = 0
    counts_X[top] = trie.counts(trie.order)
    for k in range(trie.order, 1, -1):
        room.rest()
        _count_links(trie.links_X[trie.level(k)], counts_X)
    if not trie.across_lines:
        nodes = slice(trie.eos, trie.eos + 1)
        for _ in range(2, trie.order):
            nodes = slice(int(trie.first_X[nodes.start]), int(trie.first_X[nodes.stop]))
            counts_X[nodes] = trie.counts_X[nodes]
    else:
        _count_beginnings(trie, counts_X)
    return counts_X


@njit(cache=True, nogil=True)
def _count_links(links: Array, counts_X: Array) -> None:
    for link in links:
        counts_X[link] += 1


def _count_beginnings(trie: Trie, counts_X: Array) -> None:
    """One more neighbour for what begins the text: eos and its first word, then its first two, and so on."""
    node = trie.eos
    for word in trie.opening[: max(0, trie.order - 2)]:
        children = trie.words_X[trie.first_X[node] : trie.first_X[node + 1]]
        node = int(trie.first_X[node] + np.searchsorted(children, word))
        counts_X[node] += 1


# Interpolation


def _interpolate(
    sample: Sample,
    counts_X: Array,
    *,
    discounts: list[list[float]] | None = None,
    types: int = 0,
    weights: Array | None = None,
) -> Estimates:
    """The interpolated smoothings. `types`: what a different word after a context adds to its sum."""
    trie, (probs_X, backoffs_H) = sample.trie, _room_for(sample)
    taken_NR = np.zeros((trie.order, 4))
    if discounts is not None:
        taken_NR[:, 1:] = discounts
    weights_NB = np.ones((trie.order, BUCKETS)) if weights is None else weights
    _interpolate_words(counts_X[trie.level(1)], taken_NR[0], types, weights_NB[0], probs_X)
    for k in range(2, trie.order + 1):
        sample.room.rest()
        share_out(
            trie.level(k - 1),
            sample.threads,
            _interpolate_children,
            trie.first_X,
            trie.links_X,
            trie.counts_X,
            counts_X,
            taken_NR[k - 1],
            types,
            weights_NB[k - 1],
            sample.thresholds[k - 1],
            probs_X,
            backoffs_H,
        )
    told = {k: list(map(float, taken_NR[k - 1, 1:])) for k in range(1, trie.order + 1)} if discounts else {}
    return Estimates(probs_X, backoffs_H, discounts=told)


@njit(cache=True, nogil=True)
def _interpolate_words(counts_V: Array, taken: Array, types: int, weights: Array, probs_X: Array) -> None:
    """The level of single words, below which all words are equal."""
    total, kept = 0.0, 0.0
    for count in counts_V:
        if count:
            total += count + types
            kept += count - taken[min(count, 3)]
    weight = weights[0]
    uniform = (1 - weight + weight * (total - kept) / total) / len(counts_V)
    for word in range(len(counts_V)):
        count = counts_V[word]
        probs_X[word] = uniform + (weight * (count - taken[min(count, 3)]) / total if count else 0.0)


@njit(cache=True, nogil=True)
def _interpolate_children(
    begin: int,
    end: int,
    first_X: Array,
    links_X: Array,
    raw_X: Array,
    counts_X: Array,
    taken: Array,
    types: int,
    weights: Array,
    threshold: int,
    probs_X: Array,
    backoffs_H: Array,
) -> None:
    """The children of some contexts, and the contexts' back-off weights."""
    for parent in range(begin, end):
        low, high = first_X[parent], first_X[parent + 1]
        if low == high:
            backoffs_H[parent] = 1.0
            continue
        total, kept = 0.0, 0.0
        for child in range(low, high):
            count = counts_X[child]
            total += count + types
            if raw_X[child] > threshold:
                kept += count - taken[min(count, 3)]
        weight = weights[bucket_of(total, len(weights))]
        backoff = 1 - weight + weight * (total - kept) / total
        backoffs_H[parent] = backoff
        for child in range(low, high):
            count = counts_X[child]
            share = weight * (count - taken[min(count, 3)]) / total
            probs_X[child] = share + backoff * probs_X[links_X[child]]


# The others


@njit(cache=True, nogil=True)
def _add(
    starts: Array,
    counts_X: Array,
    first_X: Array,
    eos: int,
    by_line: bool,
    delta: float,
    probs_X: Array,
    backoffs_H: Array,
) -> None:
    """Additive smoothing: every word is taken as seen `delta` times more, after every whole context.

    A context is whole if it has N - 1 words or begins its line; after any other the words are equally probable.
    """
    order, size = len(starts) - 1, starts[1]
    probs_X[:] = 1 / size
    backoffs_H[:] = 1.0
    if order == 1:
        total = counts_X.sum()
        for word in range(size):
            probs_X[word] = (counts_X[word] + delta) / (total + delta * size)
        return
    low, high = np.int64(eos), np.int64(eos + 1)  # the contexts of a level that begin a line
    for k in range(1, order):
        whole = k == order - 1
        begin, end = (starts[k - 1], starts[k]) if whole else (low, high)
        if whole or by_line:
            for parent in range(begin, end):
                total = 0.0
                for child in range(first_X[parent], first_X[parent + 1]):
                    total += counts_X[child]
                for child in range(first_X[parent], first_X[parent + 1]):
                    probs_X[child] = (counts_X[child] + delta) / (total + delta * size)
                if total > 0:
                    backoffs_H[parent] = delta * size / (total + delta * size)
        low, high = np.int64(first_X[low]), np.int64(first_X[high])


@njit(cache=True, nogil=True)
def _back_off(
    starts: Array,
    counts_X: Array,
    first_X: Array,
    links_X: Array,
    ratios_NR: Array,
    probs_X: Array,
    backoffs_H: Array,
) -> None:
    """Katz: a share of small counts is kept, and what is left goes to the words that were not seen."""
    size = starts[1]
    counts_V = counts_X[:size]
    total, kept, unseen = _sums(counts_V, ratios_NR[0])
    for word in range(size):
        probs_X[word] = counts_V[word] * _kept(ratios_NR[0], counts_V[word]) / (total if unseen else kept)
        if counts_V[word] == 0:
            probs_X[word] = (1 - kept / total) / unseen
    for k in range(1, len(starts) - 1):
        for parent in range(starts[k - 1], starts[k]):
            low, high = first_X[parent], first_X[parent + 1]
            backoffs_H[parent] = 1.0
            if low < high:
                total, kept, _ = _sums(counts_X[low:high], ratios_NR[k])
                lower = 0.0
                for child in range(low, high):
                    lower += probs_X[links_X[child]]
                # Where every word follows this context, nobody is left to give the rest to.
                some_left = high - low < size and 1 - lower > 1e-6
                backoffs_H[parent] = (1 - kept / total) / (1 - lower) if some_left else 0.0
                for child in range(low, high):
                    share = counts_X[child] * _kept(ratios_NR[k], counts_X[child])
                    probs_X[child] = share / (total if some_left else kept)


@njit(cache=True, nogil=True)
def _sums(counts: Array, ratios_R: Array) -> tuple[float, float, int]:
    """All counts, what is kept of them, and how many are 0. If all is kept, one more count stands for the unseen."""
    total, kept, unseen = 0.0, 0.0, 0
    for count in counts:
        total += count
        kept += count * _kept(ratios_R, count)
        unseen += count == 0
    return total + (kept > total - 1e-9), kept, unseen


@njit(cache=True, nogil=True)
def _kept(ratios_R: Array, count: int) -> float:
    return ratios_R[count] if count < len(ratios_R) else 1.0
