"""Masked text: some tokens are masked or replaced, to be predicted from all the others.

    the cat sat on the mat    →    the [MASK] sat on a mat        `cat` and the second `the` are to be predicted

Devlin et al., "BERT", 2019: 15% of the tokens are chosen; of those 80% become [MASK], 10% another token, and 10% stay,
so that a model cannot rely on any word it reads. They are drawn anew for every batch of every epoch (Liu et al.,
"RoBERTa", 2019). With whole words, all pieces of a word are chosen or none (Cui et al., "Whole Word Masking", 2019).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from chainrule.base.arrays import Array
from chainrule.base.grammar import plural
from chainrule.data.batches import BlockBatches, Tokens
from chainrule.errors import ConfigError, DataError
from chainrule.text.tokenizers import Tokenizer
from chainrule.types import Batch

RATE = 0.15
"""Share of the tokens that are chosen."""

MASK_SHARE, RANDOM_SHARE = 0.8, 0.1
"""Of the chosen tokens, the share that becomes [MASK] and the share that becomes a random token; the others stay."""

SPACES = ("▁", "Ġ", " ")
"""Beginnings of a piece that follows a space: of sentencepiece, of byte-level tokenisers, of all others."""

INSIDE = "##"
"""The beginning of a WordPiece piece inside a word."""

LEAD_BYTE = 0xE0
"""Bytes from here on begin a character that most likely belongs to a script without spaces."""

UNSPACED = ((0x2E80, 0x31FF), (0x3400, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x3FFFF))
"""Code points of Chinese characters and Japanese syllables; without spaces between words, each counts as a word."""


class WordBoundaries(NamedTuple):
    """Which tokens begin a word, and which end one."""

    begins_V: NDArray[np.bool_]
    ends_V: NDArray[np.bool_]


def word_boundaries(tokenizer: Tokenizer) -> WordBoundaries:
    """The word boundaries of a tokeniser; a word is a run of characters without spaces, or one Chinese character."""
    pieces = [tokenizer.piece(token) for token in range(tokenizer.vocab_size)]
    if tokenizer.word_tokens:
        all_V = np.ones(len(pieces), bool)
        return WordBoundaries(all_V, all_V)
    if tokenizer.kind == "huggingface" and any(piece.startswith(INSIDE) for piece in pieces):
        begins = [not piece.startswith(INSIDE) for piece in pieces]
    elif tokenizer.kind == "byte":
        begins = [piece == " " or token >= LEAD_BYTE for token, piece in enumerate(pieces)]
    else:
        begins = [piece.startswith(SPACES) or _unspaced(piece[:1]) for piece in pieces]
    ends = [piece == " " or _unspaced(piece[-1:]) for piece in pieces]
    boundaries = WordBoundaries(np.array(begins), np.array(ends))
    for boundary_V in boundaries:
        boundary_V[tokenizer.eos] = True
    return boundaries


def _unspaced(letter: str) -> bool:
    return bool(letter) and any(first <= ord(letter) <= last for first, last in UNSPACED)


@dataclass(frozen=True)
class Masking:
    """How tokens are masked: how many, in which ways, and with which tokens."""

    mask: int  # the id of [MASK]
    vocab_size: int
    special: tuple[int, ...]  # tokens that are neither chosen nor drawn at random: eos and others
    rate: float = RATE
    mask_share: float = MASK_SHARE
    random_share: float = RANDOM_SHARE
    boundaries: WordBoundaries | None = None  # choose whole words; None: choose single tokens

    def __post_init__(self) -> None:
        if not len(self._words):
            raise ConfigError(
                f"the tokeniser has {self.vocab_size} tokens and none of them is a word to mask; train on a text with "
                "words, or choose another tokenizer"
            )

    @cached_property
    def _words(self) -> NDArray[np.int64]:
        """The tokens that may replace another at random."""
        return np.setdiff1d(np.arange(self.vocab_size), [*self.special, self.mask])

    def apply(self, tokens_BT: Array, draws: Draws) -> tuple[Array, NDArray[np.bool_]]:
        """Tokens -> the tokens to read instead, and whether each was chosen, BT each."""
        chosen_BT = self.choose(tokens_BT, draws.choice_BT)
        masked_BT = chosen_BT & (draws.action_BT < self.mask_share)
        replaced_BT = chosen_BT & ~masked_BT & (draws.action_BT < self.mask_share + self.random_share)
        words = self._words
        others_BT = words[(draws.word_BT * len(words)).astype(np.int64)]
        read_BT = np.where(masked_BT, self.mask, np.where(replaced_BT, others_BT, tokens_BT))
        return read_BT, chosen_BT

    def choose(self, tokens_BT: Array, choice_BT: Array) -> NDArray[np.bool_]:
        """Which positions are chosen, BT: each word with probability `rate`, at least one in every row with words."""
        maskable_BT = ~np.isin(tokens_BT, [*self.special, self.mask])
        if self.boundaries is not None:
            choice_BT = np.take_along_axis(choice_BT, word_starts(tokens_BT, self.boundaries), 1)
        least_B1 = np.where(maskable_BT, choice_BT, 1.0).min(1, keepdims=True)
        chosen_BT: NDArray[np.bool_] = maskable_BT & (choice_BT <= np.maximum(least_B1, self.rate))
        return chosen_BT


class Draws(NamedTuple):
    """Uniform random numbers for every position, BT each."""

    choice_BT: Array  # whether it is chosen
    action_BT: Array  # whether it then becomes [MASK], becomes another token or stays
    word_BT: Array  # which other token

    @classmethod
    def of(cls, rng: np.random.Generator, rows: int, length: int) -> Draws:
        return cls(*rng.random((3, rows, length)))

    def part(self, rows: slice) -> Draws:
        return Draws(*(drawn_BT[rows] for drawn_BT in self))


def word_starts(tokens_BT: Array, boundaries: WordBoundaries) -> NDArray[np.int64]:
    """The position of the first token of the word that each token belongs to, BT."""
    begins_BT = boundaries.begins_V[tokens_BT]
    begins_BT[:, 1:] |= boundaries.ends_V[tokens_BT[:, :-1]]
    starts_BT: NDArray[np.int64] = np.maximum.accumulate(np.where(begins_BT, np.arange(tokens_BT.shape[1]), 0), axis=1)
    return starts_BT


class MaskedBatches:
    """Blocks of T tokens in random order, each once per epoch, masked differently each time.

    Batch `index` is a function of `index`, and over all processes together the same for any number of them. With
    `first`, each row begins with this token.
    """

    def __init__(
        self,
        tokens: Tokens,
        batch_size: int,
        length: int,
        *,
        masking: Masking,
        eos: int,
        seed: int,
        first: int | None = None,
    ) -> None:
        if len(tokens) < 2:
            raise DataError(
                f"a text of {plural(len(tokens), 'token')} is too short to mask a token and predict it from others; "
                "give more text, also for validation"
            )
        self.blocks = BlockBatches(tokens, batch_size, length, eos=eos, seed=seed)
        self.per_epoch, self.masking, self.seed, self.first = self.blocks.per_epoch, masking, seed, first

    def batch(self, index: int) -> tuple[Batch, bool]:
        tokens_BT = self.blocks.batch(index)[0].inputs_BT.numpy()
        # A separate stream: the seeds of blocks have two numbers, and those of spans end in 1.
        rng = np.random.default_rng([self.seed, index, 2])
        draws = Draws.of(rng, self.blocks.rows, self.blocks.length)
        return masked_batch(tokens_BT, self.masking, draws, self.first), True


def masked_batch(tokens_BT: Array, masking: Masking, draws: Draws, first: int | None = None) -> Batch:
    """Rows of a text with some tokens masked."""
    return batch_of(tokens_BT, *masking.apply(tokens_BT, draws), first)


def batch_of(tokens_BT: Array, read_BT: Array, chosen_BT: NDArray[np.bool_], first: int | None) -> Batch:
    """`inputs` to read, `targets` as they were, `weights` 1 where chosen; every row begins with `first`, if given."""
    if first is not None:
        before_B1 = np.full((len(tokens_BT), 1), first)
        read_BT, tokens_BT = (np.concatenate([before_B1, part_BT], 1) for part_BT in (read_BT, tokens_BT))
        chosen_BT = np.concatenate([np.zeros_like(before_B1, dtype=bool), chosen_BT], 1)
    inputs_BT, targets_BT = (torch.from_numpy(part_BT.astype(np.int64)) for part_BT in (read_BT, tokens_BT))
    return Batch(inputs_BT, targets_BT, torch.from_numpy(chosen_BT.astype(np.float32)))
