"""A text with some of its words hidden, to be told from all the others.

    the cat sat on the mat    →    the [MASK] sat on a mat        cat and the second `the` are to be told

Devlin et al., "BERT", 2019: 15% of the tokens are chosen; of those 80% become [MASK], 10% another token, and 10% stay,
so that a model can trust no word it reads. Which ones is drawn anew for every batch of every epoch (Liu et al.,
"RoBERTa", 2019). Of whole words all pieces are chosen, or none (Cui et al., "Whole Word Masking", 2019).
Legend: B batch, T time, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from chainrule.data.batches import BlockBatches, Tokens
from chainrule.errors import ConfigError, DataError
from chainrule.text.tokenizers import Tokenizer
from chainrule.types import Batch

Array = np.ndarray[Any, Any]

SPACES = ("▁", "Ġ", " ")
"""What a piece that follows a space begins with, for sentencepiece, for byte-level pieces, and for anybody else."""

INSIDE = "##"
"""What a piece within a word begins with, for WordPiece."""

LEAD_BYTE = 0xE0
"""From here on a byte begins a character that most likely belongs to a script without spaces."""

UNSPACED = ((0x2E80, 0x31FF), (0x3400, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x3FFFF))
"""Code points of Chinese characters and Japanese syllables, which stand for themselves: their words have no spaces."""


class WordEdges(NamedTuple):
    """Where words begin and end, told from single tokens: `opens_V` begins one, after `closes_V` the next begins."""

    opens_V: NDArray[np.bool_]
    closes_V: NDArray[np.bool_]


def word_edges(tokenizer: Tokenizer) -> WordEdges:
    """The edges of words as a tokeniser marks them; a word is what stands between spaces, or one Chinese character."""
    pieces = [tokenizer.piece(token) for token in range(tokenizer.vocab_size)]
    if tokenizer.kind in ("word", "jieba"):
        opens_V = np.ones(len(pieces), bool)
        return WordEdges(opens_V, opens_V)
    if tokenizer.kind == "huggingface" and any(piece.startswith(INSIDE) for piece in pieces):
        opens = [not piece.startswith(INSIDE) for piece in pieces]
    elif tokenizer.kind == "byte":
        opens = [piece == " " or token >= LEAD_BYTE for token, piece in enumerate(pieces)]
    else:
        opens = [piece.startswith(SPACES) or _unspaced(piece[:1]) for piece in pieces]
    closes = [piece == " " or _unspaced(piece[-1:]) for piece in pieces]
    edges = WordEdges(np.array(opens), np.array(closes))
    for edge_V in edges:
        edge_V[tokenizer.eos] = True
    return edges


def _unspaced(letter: str) -> bool:
    return bool(letter) and any(first <= ord(letter) <= last for first, last in UNSPACED)


@dataclass(frozen=True)
class Masking:
    """How words are hidden: how many, in which ways, and with which tokens."""

    mask: int  # the token that hides
    vocab_size: int
    special: tuple[int, ...]  # tokens that are neither chosen nor drawn: eos and the like
    rate: float = 0.15
    mask_share: float = 0.8
    random_share: float = 0.1
    edges: WordEdges | None = None  # of whole words; None: tokens are chosen one by one

    def __post_init__(self) -> None:
        if not len(self._words):
            raise ConfigError(
                f"the tokeniser has {self.vocab_size} tokens and none of them is a word to hide; train on a text with "
                "words, or choose another tokenizer"
            )

    @cached_property
    def _words(self) -> NDArray[np.int64]:
        """Every token that may be drawn in the place of another."""
        return np.setdiff1d(np.arange(self.vocab_size), [*self.special, self.mask])

    def hide(self, tokens_BT: Array, draws: Draws) -> tuple[Array, NDArray[np.bool_]]:
        """A text -> the text with some words hidden, and the places that were chosen, BT each."""
        chosen_BT = self.choose(tokens_BT, draws.choice_BT)
        hidden_BT = chosen_BT & (draws.fate_BT < self.mask_share)
        replaced_BT = chosen_BT & ~hidden_BT & (draws.fate_BT < self.mask_share + self.random_share)
        words = self._words
        others_BT = words[(draws.word_BT * len(words)).astype(np.int64)]
        read_BT = np.where(hidden_BT, self.mask, np.where(replaced_BT, others_BT, tokens_BT))
        return read_BT, chosen_BT

    def choose(self, tokens_BT: Array, choice_BT: Array) -> NDArray[np.bool_]:
        """Which places are chosen, BT: each word with the chance `rate`, and at least one in every row that has any."""
        open_BT = ~np.isin(tokens_BT, [*self.special, self.mask])
        if self.edges is not None:
            choice_BT = np.take_along_axis(choice_BT, first_places(tokens_BT, self.edges), 1)
        least_B1 = np.where(open_BT, choice_BT, 1.0).min(1, keepdims=True)
        chosen_BT: NDArray[np.bool_] = open_BT & (choice_BT <= np.maximum(least_B1, self.rate))
        return chosen_BT


class Draws(NamedTuple):
    """Random numbers from 0 to 1 for every place, BT each: whether it is chosen, what then becomes of it, by what."""

    choice_BT: Array
    fate_BT: Array
    word_BT: Array

    @classmethod
    def of(cls, rng: np.random.Generator, rows: int, length: int) -> Draws:
        return cls(*rng.random((3, rows, length)))

    def part(self, rows: slice) -> Draws:
        return Draws(*(drawn_BT[rows] for drawn_BT in self))


def first_places(tokens_BT: Array, edges: WordEdges) -> NDArray[np.int64]:
    """The place of the first token of the word that each token belongs to, BT."""
    begins_BT = edges.opens_V[tokens_BT]
    begins_BT[:, 1:] |= edges.closes_V[tokens_BT[:, :-1]]
    places_BT: NDArray[np.int64] = np.maximum.accumulate(np.where(begins_BT, np.arange(tokens_BT.shape[1]), 0), axis=1)
    return places_BT


class MaskedBatches:
    """Blocks of T tokens in random order, each seen once an epoch with other words hidden.

    Batch `index` is a function of `index`, and over all processes together the same for any number of them. Where a
    model has a token before every text, each row begins with it.
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
        rank: int = 0,
        world: int = 1,
        first: int | None = None,
    ) -> None:
        if len(tokens) < 2:
            raise DataError(
                f"a text of {len(tokens)} token(s) has nothing to hide and to tell it from; give more text, also to "
                "validate with"
            )
        self.blocks = BlockBatches(tokens, batch_size, length, eos=eos, seed=seed, rank=rank, world=world)
        self.per_epoch, self.masking, self.seed, self.first = self.blocks.per_epoch, masking, seed, first

    def batch(self, index: int) -> tuple[Batch, bool]:
        tokens_BT = self.blocks.batch(index)[0].inputs_BT.numpy()
        # The blocks' own streams have two numbers, and those of spans a 1.
        rng = np.random.default_rng([self.seed, index, 2])
        draws = Draws.of(rng, self.blocks.rows, self.blocks.length).part(self.blocks.mine)
        return masked_batch(tokens_BT, self.masking, draws, self.first), True


def masked_batch(tokens_BT: Array, masking: Masking, draws: Draws, first: int | None = None) -> Batch:
    """Rows of a text with some words hidden."""
    return batch_of(tokens_BT, *masking.hide(tokens_BT, draws), first)


def batch_of(tokens_BT: Array, read_BT: Array, chosen_BT: NDArray[np.bool_], first: int | None) -> Batch:
    """`inputs` to read, `targets` as they were, `weights` 1 where chosen; `first` stands before every row."""
    if first is not None:
        before_B1 = np.full((len(tokens_BT), 1), first)
        read_BT, tokens_BT = (np.concatenate([before_B1, part_BT], 1) for part_BT in (read_BT, tokens_BT))
        chosen_BT = np.concatenate([np.zeros_like(before_B1, dtype=bool), chosen_BT], 1)
    inputs_BT, targets_BT = (torch.from_numpy(part_BT.astype(np.int64)) for part_BT in (read_BT, tokens_BT))
    return Batch(inputs_BT, targets_BT, torch.from_numpy(chosen_BT.astype(np.float32)))
