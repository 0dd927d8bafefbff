"""Tagged sentences as tokens: the pieces of each word, one word after the other, and `eos` at the end.

`parts_BS` holds the position of the word that each token belongs to in its row, -1 for `eos` and padding. A sentence
longer than the encoder can read is read in several pieces, cut between words, so that every word gets its tag; `cut`
counts these sentences.

Here N are the words of all sentences, M those of a batch, R the tokens of these, and P the pieces of sentences.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from chainrule.data.rows import Indices, Rows
from chainrule.text.formats.labels import Labels
from chainrule.text.tokenizers.base import Ids
from chainrule.types import Batch, Source


@dataclass(frozen=True)
class TaggedWords:
    """The words of sentences with their tags; at most `max_tokens` are read at once."""

    words: Rows  # one word per row
    labels: Labels
    filler: int  # token of a word that the tokeniser encodes to nothing
    max_tokens: int | None = None

    @cached_property
    def _pieces(self) -> tuple[Indices, Indices]:
        """The first word of each piece, and the one after its last, P each."""
        limit = None if self.max_tokens is None else max(1, self.max_tokens - 1)
        return cut_sentences(self.labels.ends_P, self._lengths, limit)

    @cached_property
    def _lengths(self) -> Indices:
        """The number of tokens read of each word, N."""
        lengths_N = np.maximum(self.words.lengths_P, 1)
        return lengths_N if self.max_tokens is None else np.minimum(lengths_N, max(1, self.max_tokens - 1))

    def __len__(self) -> int:
        return len(self._pieces[0])

    def lengths(self) -> Indices:
        sums = np.concatenate([[0], np.cumsum(self._lengths)])
        begins_P, ends_P = self._pieces
        lengths_P: Indices = sums[ends_P] - sums[begins_P] + 1
        return lengths_P

    def texts(self) -> Indices:
        """The sentence of each piece, P."""
        return np.searchsorted(self.labels.ends_P, self._pieces[0], "right")

    def tokens_of(self, indices_P: Indices) -> Ids:
        begins_P, ends_P = (side_P[indices_P] for side_P in self._pieces)
        piece_M, place_M = _enumerate(ends_P - begins_P)
        return self.words.tokens_of(begins_P[piece_M] + place_M)

    @property
    def cut(self) -> int:
        """The number of sentences that are read in several pieces."""
        return int((np.bincount(self.texts()) > 1).sum())

    def batch(self, indices_B: Indices) -> Batch:
        """Pieces as one batch; its targets are the ids of the tags, BT, with weight 0 where a row has no word."""
        begins_B, ends_B = (side_P[indices_B] for side_P in self._pieces)
        counts_B = ends_B - begins_B
        row_M, place_M = _enumerate(counts_B)
        word_M = begins_B[row_M] + place_M
        targets_BT = np.zeros((len(indices_B), int(counts_B.max())), np.int64)
        targets_BT[row_M, place_M] = self.labels.ids_N[word_M]
        weights_BT = np.arange(targets_BT.shape[1]) < counts_B[:, None]
        source, parts_BS = self._source(row_M, place_M, word_M, len(indices_B))
        return Batch(
            source.tokens_BS,
            torch.from_numpy(targets_BT),
            torch.from_numpy(weights_BT.astype(np.float32)),
            source,
            parts_BS,
        )

    def targets(self) -> NDArray[np.int64]:
        return self.labels.ids_N.astype(np.int64)

    def scatter(self, predicted: NDArray[Any], indices_B: Indices, chosen: NDArray[Any]) -> None:
        begins_B, ends_B = (side_P[indices_B] for side_P in self._pieces)
        row_M, place_M = _enumerate(ends_B - begins_B)
        predicted[begins_B[row_M] + place_M] = chosen[row_M, place_M]

    def _source(self, row_M: Indices, place_M: Indices, word_M: Indices, rows: int) -> tuple[Source, torch.Tensor]:
        """The tokens of the words `word_M`, which are word `place_M` of row `row_M`, and the word of each token."""
        owner_R, inside_R = _enumerate(self._lengths[word_M])
        row_R = row_M[owner_R]
        lengths_B = np.bincount(row_R, minlength=rows)
        position_R = np.arange(len(row_R)) - np.concatenate([[0], np.cumsum(lengths_B)])[row_R]
        tokens_BS = np.full((rows, int(lengths_B.max()) + 1), self.words.eos, np.int64)
        parts_BS = np.full_like(tokens_BS, -1)
        tokens_BS[row_R, position_R] = self._tokens(word_M[owner_R], inside_R)
        parts_BS[row_R, position_R] = place_M[owner_R]
        mask_BS = np.arange(tokens_BS.shape[1]) <= lengths_B[:, None]
        return Source(torch.from_numpy(tokens_BS), torch.from_numpy(mask_BS)), torch.from_numpy(parts_BS)

    def _tokens(self, word_R: Indices, inside_R: Indices) -> Indices:
        """Token number `inside_R` of each word, R."""
        empty_R = self.words.lengths_P[word_R] == 0
        index_R = np.where(empty_R, 0, self.words.begins_P[word_R] + inside_R)
        return np.where(empty_R, self.filler, self.words.tokens[index_R])


def _enumerate(counts: Indices) -> tuple[Indices, Indices]:
    """[2, 3] -> [0, 0, 1, 1, 1] and [0, 1, 0, 1, 2]."""
    owner = np.repeat(np.arange(len(counts)), counts)
    return owner, np.arange(len(owner)) - np.concatenate([[0], np.cumsum(counts)])[owner]


def cut_sentences(ends_P: Indices, tokens_N: Indices, max_tokens: int | None) -> tuple[Indices, Indices]:
    """The first word and the end, counted in words, of each sentence, or of its pieces of at most `max_tokens`."""
    begins_P = np.concatenate([[0], ends_P[:-1]])
    sums = np.concatenate([[0], np.cumsum(tokens_N)])
    if max_tokens is None or not (long_P := sums[ends_P] - sums[begins_P] > max_tokens).any():
        return begins_P, ends_P
    cuts = [int(end) for end in ends_P]
    for begin, end in zip(begins_P[long_P].tolist(), ends_P[long_P].tolist(), strict=True):
        while sums[end] - sums[begin] > max_tokens:
            begin = int(np.searchsorted(sums, sums[begin] + max_tokens, "right")) - 1
            cuts.append(begin)
    places = np.asarray(sorted(cuts))
    return np.concatenate([[0], places[:-1]]), places
