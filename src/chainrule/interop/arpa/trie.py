"""N-grams of an ARPA file as a table: sorted, made whole, numbered.

A table is searched through the beginnings and the ends of n-grams, so all of them must be in it. Tools that prune leave
some out. They are put back with the probability that backing off gives, and the back-off weight 0, a factor of one, so
no probability changes:

    log p(a b c) = back-off(a b) + log p(b c)

Legend: R n-grams of a level, K words of an n-gram, X nodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
from numba import njit

from chainrule.base.arrays import Array
from chainrule.engines.ngram.table import NgramTable, pack
from chainrule.engines.ngram.trie import find
from chainrule.errors import DataError
from chainrule.interop.arpa.reader import EOS, Content, Section


@dataclass
class Level:
    """N-grams of K words, sorted, each once. The probability of one that was put in is NaN until it is known."""

    ids_RK: Array  # int32
    probs_R: Array  # float32
    backoffs_R: Array  # float32

    def __len__(self) -> int:
        return len(self.ids_RK)

    def with_rows(self, ids_RK: Array) -> Self:
        """With more n-grams; those that are here already stay as they are."""
        new = np.full(len(ids_RK), np.nan, np.float32)
        ids_RK = np.concatenate([self.ids_RK, ids_RK])
        order_R, first_R = _sort(ids_RK)
        kept_R = order_R[first_R]
        probs_R, backoffs_R = np.append(self.probs_R, new), np.append(self.backoffs_R, np.zeros_like(new))
        return type(self)(ids_RK[kept_R], probs_R[kept_R], backoffs_R[kept_R])


def build_table(content: Content, name: str) -> NgramTable:
    """The table of what a file says; `name` is what to call the file in a message."""
    levels = [_level(section, content, name) for section in content.sections]
    added, parents = _close(levels)
    if added:
        content.notes.append(f"{added:,} n-grams that others build on are not in the file; put in by backing off")
    nodes = _number(levels, parents)
    _fill(levels, parents, nodes.links)
    probs_X = np.concatenate([level.probs_R for level in levels])
    backoffs_X = np.concatenate([np.empty(0, np.float32), *(level.backoffs_R for level in levels[:-1])])
    arrays = pack(nodes.starts, nodes.words_X, nodes.first_X, probs_X, backoffs_X)
    return NgramTable(arrays, EOS, across_lines=False, normalised=True, absent=0.0)


def _level(section: Section, content: Content, name: str) -> Level:
    """A section in sorted order."""
    order_R, first_R = _sort(section.ids_RK)
    if not first_R.all():
        second = order_R[np.flatnonzero(~first_R)[0]]  # the sort is stable: of two equals it comes later in the file
        tokens = ["<unk>", "</s>", *content.words]
        words = [tokens[token] for token in section.ids_RK[second]]
        words[0] = "<s>" if section.ids_RK[second, 0] == EOS else words[0]
        raise DataError(
            f"{name}, line {int(section.lines_R[second])}: '{' '.join(words)}' comes a second time; leave one out"
        )
    return Level(section.ids_RK[order_R], section.probs_R[order_R], section.backoffs_R[order_R])


def _sort(ids_RK: Array) -> tuple[Array, Array]:
    """The order of rows word by word, and whether each in that order differs from the one before."""
    order_R = np.lexsort(_keys(ids_RK)[::-1])
    first_R = np.ones(len(ids_RK), bool)
    ordered = ids_RK[order_R]
    first_R[1:] = (ordered[1:] != ordered[:-1]).any(1)
    return order_R, first_R


def _keys(ids_RK: Array) -> list[Array]:
    """Rows as few integers that sort as the rows do: as many words in each as 63 bits hold."""
    bits = max(1, int(ids_RK.max(initial=1)).bit_length())
    each, keys = 63 // bits, []
    for begin in range(0, ids_RK.shape[1], each):
        key_R = np.zeros(len(ids_RK), np.int64)
        for column in range(begin, min(begin + each, ids_RK.shape[1])):
            key_R = key_R << bits | ids_RK[:, column]
        keys.append(key_R)
    return keys


# What is missing


def _close(levels: list[Level]) -> tuple[int, list[Array]]:
    """Put every beginning and every end of an n-gram into the levels -> how many, and each node's parent in its level.

    Where an end is missing, all ends of that n-gram are put in and then their beginnings, so all that stands inside it
    is there: a second round finds nothing.
    """
    before = sum(map(len, levels))
    parents = _close_beginnings(levels)
    needed = _missing_ends(levels, parents)
    for k, ends in enumerate(needed, 1):
        if ends:
            levels[k - 1] = levels[k - 1].with_rows(np.concatenate(ends))
    if any(needed):
        parents = _close_beginnings(levels)
    return sum(map(len, levels)) - before, parents


def _close_beginnings(levels: list[Level]) -> list[Array]:
    """Put in every n-gram that another begins with, from the longest down -> parents, by level from the second on."""
    parents: list[Array] = []
    for k in range(len(levels), 2, -1):
        ids_RK = levels[k - 1].ids_RK
        parents_R = _find_parents(ids_RK, levels[k - 2].ids_RK)
        if (parents_R < 0).any():
            levels[k - 2] = levels[k - 2].with_rows(ids_RK[parents_R < 0, :-1])
            parents_R = _find_parents(ids_RK, levels[k - 2].ids_RK)
        parents.insert(0, parents_R)
    return [*(level.ids_RK[:, 0].astype(np.int64) for level in levels[1:2]), *parents]


@njit(cache=True, nogil=True)
def _find_parents(ids_RK: Array, shorter: Array) -> Array:
    """The place of each row without its last word among shorter rows, -1 if it is not there; both are sorted."""
    parents_R, at = np.full(len(ids_RK), -1), 0
    for row in range(len(ids_RK)):
        while at < len(shorter):
            order = 0
            for column in range(shorter.shape[1]):
                if shorter[at, column] != ids_RK[row, column]:
                    order = -1 if shorter[at, column] < ids_RK[row, column] else 1
                    break
            if order >= 0:
                if order == 0:
                    parents_R[row] = at
                break
            at += 1
    return parents_R


def _missing_ends(levels: list[Level], parents: list[Array]) -> list[list[Array]]:
    """By level, the ends of n-grams that have an end that is not there."""
    needed: list[list[Array]] = [[] for _ in levels]
    for level, links_R in zip(levels[1:], _number(levels, parents).links, strict=True):
        lacking_RK = level.ids_RK[links_R < 0]
        for begin in range(1, lacking_RK.shape[1] - 1 if len(lacking_RK) else 1):
            ends = lacking_RK[:, begin:]
            needed[ends.shape[1] - 1].append(ends)
    return needed


# Numbering


class Nodes(NamedTuple):
    """The levels as a trie: see `counting/trie.py`."""

    starts: Array
    words_X: Array
    first_X: Array
    links: list[Array]  # by level from the second on: each n-gram without its first word, -1 if it is not there


def _number(levels: list[Level], parents: list[Array]) -> Nodes:
    starts = np.concatenate([[0], np.cumsum([len(level) for level in levels])])
    words_X = np.concatenate([level.ids_RK[:, -1] for level in levels]).astype(np.uint32)
    first_X = _first(parents, starts)
    links = [level.ids_RK[:, 1].astype(np.int64) for level in levels[1:2]]
    for level, parents_R in zip(levels[2:], parents[1:], strict=True):
        links.append(_link(links[-1], parents_R, level.ids_RK[:, -1], words_X, first_X))
    return Nodes(starts, words_X, first_X, links)


def _first(parents: list[Array], starts: Array) -> Array:
    """The first child of every context, and the end of the last one's."""
    first = [np.empty(0, np.int64)]
    for k, parents_R in enumerate(parents, 1):
        children = np.bincount(parents_R, minlength=int(starts[k] - starts[k - 1]))
        first.append(starts[k] + np.cumsum(children) - children)
    return np.append(np.concatenate(first), starts[-1]).astype(np.uint32)


@njit(cache=True, nogil=True)
def _link(above: Array, parents_R: Array, last_R: Array, words_X: Array, first_X: Array) -> Array:
    """The links of a level from those of the level above: the child, by the same word, of the parent's link."""
    links_R = np.full(len(parents_R), -1)
    for row in range(len(parents_R)):
        link = above[parents_R[row]]
        if link >= 0:
            low: Any = np.int64(first_X[link])
            high: Any = np.int64(first_X[link + 1])
            links_R[row] = find(words_X, last_R[row], low, high)
    return links_R


def _fill(levels: list[Level], parents: list[Array], links: list[Array]) -> None:
    """Give the n-grams that were put in the probability that backing off gives."""
    above, start = levels[0], 0
    for level, parents_R, links_R in zip(levels[1:], parents, links, strict=True):
        new_R = np.isnan(level.probs_R)
        level.probs_R[new_R] = above.backoffs_R[parents_R[new_R]] + above.probs_R[links_R[new_R] - start]
        above, start = level, start + len(above)
