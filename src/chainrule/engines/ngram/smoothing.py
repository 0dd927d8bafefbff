"""Smoothing: from counts to a probability for every n-gram and a back-off weight for every context.

    p(w | h) = prob(hw)                      if the n-gram is in the table
             = backoff(h) · p(w | h')        otherwise; h' is h without its oldest word, backoff of an unseen h is 1

All methods produce this form, so they share one table, one query and one file format. The interpolated methods also
share a kernel: with counts a, discounts D and the sum S over the words that follow a context,

    prob(hw) = λ (a(hw) - D(a(hw))) / S(h) + backoff(h) p(w | h'),   backoff(h) = 1 - λ Σ_w (a(hw) - D(a(hw))) / S(h)

    mle                    D = 0                                       no smoothing: unseen n-grams are impossible
    witten-bell            D = 0, S also counts the distinct words     Witten & Bell 1991
    absolute               one D per order                             Ney, Essen & Kneser 1994
    kneser-ney             one D per order, a counts left neighbours   Kneser & Ney 1995
    modified-kneser-ney    D for counts 1, 2, and 3 or more            Chen & Goodman 1998
    jelinek-mercer         D = 0, λ by order and S, fitted by EM       Jelinek & Mercer 1980

Three methods have kernels of other forms: additive (Lidstone), katz (Good-Turing; Katz 1987), and stupid-backoff
(Brants et al. 2007), which gives scores that are not probabilities.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from chainrule.base.arrays import Array
from chainrule.engines.ngram import smoothing_kernels as kernels
from chainrule.engines.ngram.interpolation import fit_weights
from chainrule.engines.ngram.scratch import ArrayPool
from chainrule.engines.ngram.trie import Trie, run_in_parts

BUCKETS = 16
"""Interpolation weights are shared by the contexts of a bucket: the same order, and the same ⌊log2⌋ of their count."""

KATZ_CUTOFF = 5
"""Counts up to this are discounted by Good-Turing; larger ones are kept as they are."""

STUPID_BACKOFF = 0.4

Note = Callable[[str], None]


@dataclass
class Estimates:
    """Probabilities of all nodes and back-off weights of all contexts, not as logarithms."""

    probs_J: Array  # float32
    backoffs_Y: Array  # float32
    absent: float = 1.0  # the back-off weight of unseen contexts
    discounts: dict[int, list[float]] = field(default_factory=dict)  # by order


@dataclass
class SmoothingInput:
    """The counts and settings that a smoothing method works on."""

    trie: Trie
    pool: ArrayPool
    note: Note
    valid: Array  # tokens of a validation text, for weights that are fitted
    delta: float  # of additive smoothing
    thresholds: list[int]  # by order: n-grams with at most this count are pruned
    threads: int

    def empty_estimates(self) -> tuple[Array, Array]:
        """Uninitialised probabilities J and back-off weights Y."""
        return self.pool.empty(len(self.trie.words_J), np.float32), self.pool.empty(self.trie.contexts, np.float32)


def _estimate_mle(given: SmoothingInput) -> Estimates:
    return _interpolate(given, given.trie.counts_J)


def _estimate_witten_bell(given: SmoothingInput) -> Estimates:
    return _interpolate(given, given.trie.counts_J, types=1)


def _estimate_absolute(given: SmoothingInput) -> Estimates:
    counts_J = given.trie.counts_J
    return _interpolate(given, counts_J, discounts=_discounts(given, counts_J, _one_discount))


def _estimate_kneser_ney(given: SmoothingInput) -> Estimates:
    counts_J = left_neighbours(given.trie, given.pool)
    return _interpolate(given, counts_J, discounts=_discounts(given, counts_J, DISCOUNT_RULES["kneser-ney"]))


def _estimate_modified_kneser_ney(given: SmoothingInput) -> Estimates:
    counts_J = left_neighbours(given.trie, given.pool)
    return _interpolate(given, counts_J, discounts=_discounts(given, counts_J, DISCOUNT_RULES["modified-kneser-ney"]))


def _estimate_jelinek_mercer(given: SmoothingInput) -> Estimates:
    if not len(given.valid):
        given.note("jelinek-mercer: there is no validation text to fit the weights on; every weight is 0.5")
    weights_OZ = fit_weights(given.trie, given.valid, BUCKETS, given.pool)
    return _interpolate(given, given.trie.counts_J, weights=weights_OZ)


def _estimate_additive(given: SmoothingInput) -> Estimates:
    trie, (probs_J, backoffs_Y) = given.trie, given.empty_estimates()
    by_line = not trie.across_lines
    kernels.additive(trie.starts, trie.counts_J, trie.first_Y, trie.eos, by_line, given.delta, probs_J, backoffs_Y)
    return Estimates(probs_J, backoffs_Y)


def _estimate_katz(given: SmoothingInput) -> Estimates:
    trie, (probs_J, backoffs_Y) = given.trie, given.empty_estimates()
    ratios_O6 = np.ones((trie.order, KATZ_CUTOFF + 1))
    for k in range(1, trie.order + 1):
        ratios_O6[k - 1, 1:] = _good_turing(counts_of_counts(trie.counts(k), KATZ_CUTOFF + 1), k, given.note)
    kernels.katz(trie.starts, trie.counts_J, trie.first_Y, trie.links_J, ratios_O6, probs_J, backoffs_Y)
    return Estimates(probs_J, backoffs_Y, discounts={k: list(ratios_O6[k - 1, 1:]) for k in range(1, trie.order + 1)})


def _estimate_stupid_backoff(given: SmoothingInput) -> Estimates:
    estimates = _interpolate(given, given.trie.counts_J)
    estimates.backoffs_Y[:] = STUPID_BACKOFF
    estimates.absent = STUPID_BACKOFF
    return estimates


SMOOTHINGS: dict[str, Callable[[SmoothingInput], Estimates]] = {
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


def fits_on_validation(smoothing: str) -> bool:
    """Whether a smoothing method fits weights on a validation text, which must then not be counted."""
    return smoothing == "jelinek-mercer"


# Counts of counts, and discounts estimated from them


def counts_of_counts(counts_J: Array, largest: int) -> list[int]:
    """The number of n-grams with count 0, 1, … `largest`."""
    return [int(number) for number in kernels.tally(counts_J, largest)]


def _discounts(
    given: SmoothingInput, counts_J: Array, rule: Callable[[list[int], int, Note], list[float]]
) -> list[list[float]]:
    """The discounts of counts 1, 2, and 3 or more, for each order."""
    trie = given.trie
    return [rule(counts_of_counts(counts_J[trie.level(k)], 4), k, given.note) for k in range(1, trie.order + 1)]


def _one_discount(n: list[int], k: int, note: Note) -> list[float]:
    if not (n[1] and n[2]):
        note(
            f"order {k}: {n[1]} n-grams occur once and {n[2]} twice, too few to estimate a discount; using a discount "
            "of 0.5"
        )
        return [0.5] * 3
    return [n[1] / (n[1] + 2 * n[2])] * 3


def _three_discounts(n: list[int], k: int, note: Note) -> list[float]:
    usable = n[1] and n[2] and n[3]
    # D_r = r - (r + 1) Y n_{r+1} / n_r with Y = n_1 / (n_1 + 2 n_2), with a single division: rounding must not make a
    # discount of 0 negative.
    found = [r - (r + 1) * n[1] * n[r + 1] / ((n[1] + 2 * n[2]) * n[r]) for r in (1, 2, 3)] if usable else []
    if usable and all(0 <= discount <= r for r, discount in enumerate(found, 1)):
        return found
    seen = ", ".join(f"{n[r]} of {r}" for r in (1, 2, 3, 4))
    note(f"order {k}: the counts ({seen}) do not allow an estimate of the discounts; using 0.5, 1 and 1.5")
    return [0.5, 1.0, 1.5]


DISCOUNT_RULES: dict[str, Callable[[list[int], int, Note], list[float]]] = {
    "modified-kneser-ney": _three_discounts,
    "kneser-ney": _one_discount,
}
"""By smoothing: from the number of n-grams with count 0 to 4 to the discounts of counts 1, 2, and 3 or more."""


def _good_turing(n: list[int], k: int, note: Note) -> list[float]:
    """The share of a count of 1 to 5 that is kept."""
    if all(n[1:]):
        cutoff = KATZ_CUTOFF
        tail = (cutoff + 1) * n[cutoff + 1] / n[1]
        kept = [
            ((r + 1) * n[r + 1] / (r * n[r]) - tail) / (1 - tail) if tail != 1 else 0.0 for r in range(1, cutoff + 1)
        ]
        if all(0 < share <= 1 for share in kept):
            return kept
    seen = ", ".join(f"{n[r]} of {r}" for r in range(1, KATZ_CUTOFF + 2))
    note(
        f"order {k}: Good-Turing does not apply to the counts ({seen}); using a discount of 0.5 for counts up to "
        f"{KATZ_CUTOFF}"
    )
    return [1 - 0.5 / r for r in range(1, KATZ_CUTOFF + 1)]


def left_neighbours(trie: Trie, pool: ArrayPool) -> Array:
    """The counts of Kneser and Ney -> J: below the highest order, the number of distinct words that precede an n-gram.

    An n-gram that begins a line has no left neighbour and keeps its count. If lines are not separate, only the n-grams
    that begin the text have no left neighbour there, and the beginning of the text counts as one.
    """
    counts_J = pool.empty(len(trie.words_J), trie.counts_J.dtype)
    top = trie.level(trie.order)
    counts_J[: top.start] = 0
    counts_J[top] = trie.counts(trie.order)
    for k in range(trie.order, 1, -1):
        pool.release()
        kernels.count_links(trie.links_J[trie.level(k)], counts_J)
    if not trie.across_lines:
        nodes = slice(trie.eos, trie.eos + 1)
        for _ in range(2, trie.order):
            nodes = slice(int(trie.first_Y[nodes.start]), int(trie.first_Y[nodes.stop]))
            counts_J[nodes] = trie.counts_J[nodes]
    else:
        _count_beginnings(trie, counts_J)
    return counts_J


def _count_beginnings(trie: Trie, counts_J: Array) -> None:
    """Add one neighbour to the n-grams that begin the text: eos and its first word, its first two words, and so on."""
    node = trie.eos
    for word in trie.opening[: max(0, trie.order - 2)]:
        children = trie.words_J[trie.first_Y[node] : trie.first_Y[node + 1]]
        node = int(trie.first_Y[node] + np.searchsorted(children, word))
        counts_J[node] += 1


def _interpolate(
    given: SmoothingInput,
    counts_J: Array,
    *,
    discounts: list[list[float]] | None = None,
    types: int = 0,
    weights: Array | None = None,
) -> Estimates:
    """The interpolated methods. `types` is added to the sum of a context for each distinct word that follows it."""
    trie, (probs_J, backoffs_Y) = given.trie, given.empty_estimates()
    discounts_O4 = np.zeros((trie.order, 4))
    if discounts is not None:
        discounts_O4[:, 1:] = discounts
    weights_OZ = np.ones((trie.order, BUCKETS)) if weights is None else weights
    kernels.interpolate_words(counts_J[trie.level(1)], discounts_O4[0], types, weights_OZ[0], probs_J)
    for k in range(2, trie.order + 1):
        given.pool.release()
        run_in_parts(
            trie.level(k - 1),
            given.threads,
            kernels.interpolate_children,
            trie.first_Y,
            trie.links_J,
            trie.counts_J,
            counts_J,
            discounts_O4[k - 1],
            types,
            weights_OZ[k - 1],
            given.thresholds[k - 1],
            probs_J,
            backoffs_Y,
        )
    used = {k: list(map(float, discounts_O4[k - 1, 1:])) for k in range(1, trie.order + 1)} if discounts else {}
    return Estimates(probs_J, backoffs_Y, discounts=used)
