"""A table from the n-grams of an ARPA file: sorted, completed, numbered.

A query walks along the prefixes and suffixes of n-grams, so all of them must be in the table, but pruning tools drop
some. Missing ones are added with the probability that backing off gives and the back-off weight 0, a factor of one;
this changes no probability:

    log p(a b c) = back-off(a b) + log p(b c)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
from numba import njit

from chainrule.base.arrays import Array
from chainrule.engines.ngram.packing import pack
from chainrule.engines.ngram.table import NgramTable
from chainrule.engines.ngram.trie import find
from chainrule.errors import DataError
from chainrule.interop.arpa.reader import EOS, ArpaContent, NgramSection


@dataclass
class TrieLevel:
    """N distinct n-grams of O words, sorted. The probability of an added n-gram is NaN until it is computed."""

    ids_NO: Array  # int32
    probs_N: Array  # float32
    backoffs_N: Array  # float32

    def __len__(self) -> int:
        return len(self.ids_NO)

    def with_rows(self, ids_NO: Array) -> Self:
        """The level with more n-grams; existing ones are unchanged."""
        new = np.full(len(ids_NO), np.nan, np.float32)
        ids_NO = np.concatenate([self.ids_NO, ids_NO])
        order_N, first_N = _sort(ids_NO)
        kept_M = order_N[first_N]
        probs_N, backoffs_N = np.append(self.probs_N, new), np.append(self.backoffs_N, np.zeros_like(new))
        return type(self)(ids_NO[kept_M], probs_N[kept_M], backoffs_N[kept_M])


def build_table(content: ArpaContent, name: str) -> NgramTable:
    """The table of the contents of a file; `name` is the name of the file, for messages."""
    levels = [_sorted_level(section, content, name) for section in content.sections]
    added, parents = _add_missing(levels)
    if added:
        content.notes.append(
            f"{added:,} n-grams are missing that longer ones contain; added with their back-off probability"
        )
    nodes = _number(levels, parents)
    _fill_probabilities(levels, parents, nodes.links)
    probs_J = np.concatenate([level.probs_N for level in levels])
    backoffs_Y = np.concatenate([np.empty(0, np.float32), *(level.backoffs_N for level in levels[:-1])])
    arrays = pack(nodes.starts, nodes.words_J, nodes.first_Y, probs_J, backoffs_Y)
    return NgramTable(arrays, EOS, across_lines=False, normalised=True, absent=0.0)


# Sorting


def _sorted_level(section: NgramSection, content: ArpaContent, name: str) -> TrieLevel:
    """A section in sorted order; duplicates are refused."""
    order_N, first_N = _sort(section.ids_NO)
    if not first_N.all():
        second = order_N[np.flatnonzero(~first_N)[0]]  # the sort is stable: of two equal rows, the later in the file
        tokens = ["<unk>", "</s>", *content.words]
        words = [tokens[token] for token in section.ids_NO[second]]
        words[0] = "<s>" if section.ids_NO[second, 0] == EOS else words[0]
        raise DataError(f"{name}, line {int(section.lines_N[second])}: '{' '.join(words)}' is a duplicate; remove one")
    return TrieLevel(section.ids_NO[order_N], section.probs_N[order_N], section.backoffs_N[order_N])


def _sort(ids_NO: Array) -> tuple[Array, Array]:
    """The lexicographic order of the rows, and whether each row in that order differs from the previous one."""
    order_N = np.lexsort(_sort_keys(ids_NO)[::-1])
    first_N = np.ones(len(ids_NO), bool)
    ordered_NO = ids_NO[order_N]
    first_N[1:] = (ordered_NO[1:] != ordered_NO[:-1]).any(1)
    return order_N, first_N


def _sort_keys(ids_NO: Array) -> list[Array]:
    """Integers that sort like the rows, with as many words packed into each as fit into 63 bits."""
    bits = max(1, int(ids_NO.max(initial=1)).bit_length())
    words_per_key, keys = 63 // bits, []
    for begin in range(0, ids_NO.shape[1], words_per_key):
        key_N = np.zeros(len(ids_NO), np.int64)
        for column in range(begin, min(begin + words_per_key, ids_NO.shape[1])):
            key_N = key_N << bits | ids_NO[:, column]
        keys.append(key_N)
    return keys


# Missing n-grams


def _add_missing(levels: list[TrieLevel]) -> tuple[int, list[Array]]:
    """Add all missing prefixes and suffixes to the levels -> their number, and the parents of the nodes by level.

    If a suffix of an n-gram is missing, all its suffixes are added and then their prefixes, so all its parts are
    present and one round is enough.
    """
    before = sum(map(len, levels))
    parents = _add_prefixes(levels)
    needed = _missing_suffixes(levels, parents)
    for k, suffixes in enumerate(needed, 1):
        if suffixes:
            levels[k - 1] = levels[k - 1].with_rows(np.concatenate(suffixes))
    if any(needed):
        parents = _add_prefixes(levels)
    return sum(map(len, levels)) - before, parents


def _add_prefixes(levels: list[TrieLevel]) -> list[Array]:
    """Add the missing prefixes of all n-grams, from the longest down -> parents, by level from the second on."""
    parents: list[Array] = []
    for k in range(len(levels), 2, -1):
        ids_NO = levels[k - 1].ids_NO
        parents_N = _find_parents(ids_NO, levels[k - 2].ids_NO)
        if (parents_N < 0).any():
            levels[k - 2] = levels[k - 2].with_rows(ids_NO[parents_N < 0, :-1])
            parents_N = _find_parents(ids_NO, levels[k - 2].ids_NO)
        parents.insert(0, parents_N)
    return [*(level.ids_NO[:, 0].astype(np.int64) for level in levels[1:2]), *parents]


@njit(cache=True, nogil=True)
def _find_parents(ids_NO: Array, shorter: Array) -> Array:
    """The position of each row without its last word among shorter rows, -1 if missing -> N. Both are sorted."""
    parents_N, at = np.full(len(ids_NO), -1), 0
    for row in range(len(ids_NO)):
        while at < len(shorter):
            order = 0
            for column in range(shorter.shape[1]):
                if shorter[at, column] != ids_NO[row, column]:
                    order = -1 if shorter[at, column] < ids_NO[row, column] else 1
                    break
            if order >= 0:
                if order == 0:
                    parents_N[row] = at
                break
            at += 1
    return parents_N


def _missing_suffixes(levels: list[TrieLevel], parents: list[Array]) -> list[list[Array]]:
    """By level: all suffixes of the n-grams that lack a suffix."""
    needed: list[list[Array]] = [[] for _ in levels]
    for level, links_N in zip(levels[1:], _number(levels, parents).links, strict=True):
        lacking_MO = level.ids_NO[links_N < 0]
        for begin in range(1, lacking_MO.shape[1] - 1 if len(lacking_MO) else 1):
            suffixes = lacking_MO[:, begin:]
            needed[suffixes.shape[1] - 1].append(suffixes)
    return needed


# Numbering


class TrieNodes(NamedTuple):
    """The levels as a trie: see `engines/ngram/trie.py`."""

    starts: Array
    words_J: Array
    first_Y: Array
    links: list[Array]  # by level from the second on: each n-gram without its first word, -1 if missing


def _number(levels: list[TrieLevel], parents: list[Array]) -> TrieNodes:
    starts = np.concatenate([[0], np.cumsum([len(level) for level in levels])])
    words_J = np.concatenate([level.ids_NO[:, -1] for level in levels]).astype(np.uint32)
    first_Y = _first_children(parents, starts)
    links = [level.ids_NO[:, 1].astype(np.int64) for level in levels[1:2]]
    for level, parents_N in zip(levels[2:], parents[1:], strict=True):
        links.append(_link(links[-1], parents_N, level.ids_NO[:, -1], words_J, first_Y))
    return TrieNodes(starts, words_J, first_Y, links)


def _first_children(parents: list[Array], starts: Array) -> Array:
    """The first child of every context, and the end of the last one's children."""
    first = [np.empty(0, np.int64)]
    for k, parents_N in enumerate(parents, 1):
        children = np.bincount(parents_N, minlength=int(starts[k] - starts[k - 1]))
        first.append(starts[k] + np.cumsum(children) - children)
    return np.append(np.concatenate(first), starts[-1]).astype(np.uint32)


@njit(cache=True, nogil=True)
def _link(above: Array, parents_N: Array, last_N: Array, words_J: Array, first_Y: Array) -> Array:
    """The links of a level from those of the level above: the child, by the same word, of the parent's link."""
    links_N = np.full(len(parents_N), -1)
    for row in range(len(parents_N)):
        link = above[parents_N[row]]
        if link >= 0:
            low: Any = np.int64(first_Y[link])
            high: Any = np.int64(first_Y[link + 1])
            links_N[row] = find(words_J, last_N[row], low, high)
    return links_N


def _fill_probabilities(levels: list[TrieLevel], parents: list[Array], links: list[Array]) -> None:
    """Compute the probabilities of the added n-grams by backing off."""
    above, start = levels[0], 0
    for level, parents_N, links_N in zip(levels[1:], parents, links, strict=True):
        new_N = np.isnan(level.probs_N)
        level.probs_N[new_N] = above.backoffs_N[parents_N[new_N]] + above.probs_N[links_N[new_N] - start]
        above, start = level, start + len(above)
