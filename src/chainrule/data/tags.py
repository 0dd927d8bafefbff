"""Tagged sentences as tokens: each word its pieces, one after the other, and `eos` at the end.

`parts_BS` says which word of the row each token is of, -1 for `eos` and padding. A sentence that is longer than an
encoder can read is read in several pieces, cut between words, so that every word gets its tag; how many sentences that
befalls is counted.

Legend: B batch, S tokens, T words of a row, N words of all rows, M tokens of all rows, W words, P pieces of sentences.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from chainrule.data.pairs import Rows
from chainrule.text.formats.labels import Labels
from chainrule.types import Batch, Source

Numbers = NDArray[np.integer[Any]]


@dataclass(frozen=True)
class TaggedWords:
    """The words of sentences with their tags; `most` tokens are read at once."""

    words: Rows  # a word a row
    labels: Labels
    filler: int  # stands for a word of which the tokeniser makes nothing
    most: int | None = None

    @cached_property
    def _pieces(self) -> tuple[Numbers, Numbers]:
        """The first word of each piece, and the one behind its last."""
        limit = None if self.most is None else max(1, self.most - 1)
        return cut_sentences(self.labels.ends_P, self._tokens, limit)

    @cached_property
    def _tokens(self) -> Numbers:
        """The tokens that are read of each word, W."""
        lengths_W = np.maximum(self.words.lengths_P, 1)
        return lengths_W if self.most is None else np.minimum(lengths_W, max(1, self.most - 1))

    def __len__(self) -> int:
        return len(self._pieces[0])

    def lengths(self) -> Numbers:
        sums = np.concatenate([[0], np.cumsum(self._tokens)])
        begins_P, ends_P = self._pieces
        lengths_P: Numbers = sums[ends_P] - sums[begins_P] + 1
        return lengths_P

    @property
    def cut(self) -> int:
        """How many sentences are read in several pieces."""
        begun_P = np.searchsorted(self.labels.ends_P, self._pieces[0], "right")  # the sentence each piece is of
        return int((np.bincount(begun_P) > 1).sum())

    def batch(self, numbers_B: Numbers) -> Batch:
        """Some pieces as one batch; its targets are the tags' numbers, BT, weighed 0 where there is no word."""
        begins_B, ends_B = (side[numbers_B] for side in self._pieces)
        counts_B = ends_B - begins_B
        row_N, word_N = _spread(counts_B)
        number_N = begins_B[row_N] + word_N
        targets_BT = np.zeros((len(numbers_B), int(counts_B.max())), np.int64)
        targets_BT[row_N, word_N] = self.labels.ids_N[number_N]
        weights_BT = np.arange(targets_BT.shape[1]) < counts_B[:, None]
        source, parts_BS = self._source(row_N, word_N, number_N, len(numbers_B))
        return Batch(
            source.tokens_BS,
            torch.from_numpy(targets_BT),
            torch.from_numpy(weights_BT.astype(np.float32)),
            source,
            parts_BS,
        )

    def targets(self) -> NDArray[np.int64]:
        return self.labels.ids_N.astype(np.int64)

    def put(self, told: NDArray[np.int64], numbers_B: Numbers, chosen: NDArray[np.int64]) -> None:
        begins_B, ends_B = (side[numbers_B] for side in self._pieces)
        row_N, word_N = _spread(ends_B - begins_B)
        told[begins_B[row_N] + word_N] = chosen[row_N, word_N]

    def _source(self, row_N: Numbers, word_N: Numbers, number_N: Numbers, rows: int) -> tuple[Source, torch.Tensor]:
        lengths_N = self._tokens[number_N]
        word_M, inside_M = _spread(lengths_N)
        row_M = row_N[word_M]
        lengths_B = np.bincount(row_M, minlength=rows)
        place_M = np.arange(len(row_M)) - np.concatenate([[0], np.cumsum(lengths_B)])[row_M]
        tokens_BS = np.full((rows, int(lengths_B.max()) + 1), self.words.eos, np.int64)
        parts_BS = np.full_like(tokens_BS, -1)
        tokens_BS[row_M, place_M] = self._read(number_N[word_M], inside_M)
        parts_BS[row_M, place_M] = word_N[word_M]
        mask_BS = np.arange(tokens_BS.shape[1]) <= lengths_B[:, None]
        return Source(torch.from_numpy(tokens_BS), torch.from_numpy(mask_BS)), torch.from_numpy(parts_BS)

    def _read(self, number_M: Numbers, inside_M: Numbers) -> Numbers:
        """Token number `inside` of each word."""
        empty_M = self.words.lengths_P[number_M] == 0
        index_M = np.where(empty_M, 0, self.words.begins_P[number_M] + inside_M)
        return np.where(empty_M, self.filler, self.words.tokens[index_M])


def _spread(counts: Numbers) -> tuple[Numbers, Numbers]:
    """[2, 3] -> [0, 0, 1, 1, 1] and [0, 1, 0, 1, 2]."""
    owner = np.repeat(np.arange(len(counts)), counts)
    return owner, np.arange(len(owner)) - np.concatenate([[0], np.cumsum(counts)])[owner]


def cut_sentences(ends_P: Numbers, tokens_W: Numbers, most: int | None) -> tuple[Numbers, Numbers]:
    """Where sentences, or their pieces of at most so many tokens, begin and end, counted in words."""
    begins_P = np.concatenate([[0], ends_P[:-1]])
    sums = np.concatenate([[0], np.cumsum(tokens_W)])
    if most is None or not (long_P := sums[ends_P] - sums[begins_P] > most).any():
        return begins_P, ends_P
    cuts = [int(end) for end in ends_P]
    for begin, end in zip(begins_P[long_P].tolist(), ends_P[long_P].tolist(), strict=True):
        while sums[end] - sums[begin] > most:
            begin = int(np.searchsorted(sums, sums[begin] + most, "right")) - 1
            cuts.append(begin)
    places = np.asarray(sorted(cuts))
    return np.concatenate([[0], places[:-1]]), places
