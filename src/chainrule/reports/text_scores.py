"""The tokens of a text with their bits under one run, and the same by lines and by words.

All parts add up to what `eval` charges:

    bits of the text = Σ bits of its tokens, spellings of unknown words included + formatting

A token belongs to the line and to the word in which it begins. Formatting (white space and what a tokeniser does not
restore) belongs to the text as a whole; lines share it in proportion to their bytes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from chainrule.base.arrays import Array
from chainrule.data.store import TokenStore, open_store
from chainrule.evaluation.perplexity import ScoredTokens, stream_order
from chainrule.evaluation.text import Evaluation, evaluate
from chainrule.inference.alignment import WORD
from chainrule.inference.unknown_words import SPELLED
from chainrule.runs.language_model import LanguageModelRun
from chainrule.text.readers import Texts
from chainrule.text.tokenizers import Tokenizer
from chainrule.text.tokenizers.vocabulary import VocabularyTokenizer

DETAILED = 2_000_000
"""Characters at the beginning of a text whose words are looked at one by one."""


class TestText:
    """A text that runs are measured on: its lines, and the words of its beginning."""

    def __init__(self, texts: Texts, *, any_bytes: bool = False) -> None:
        self.texts = texts
        self.whole = "".join(texts.strings(any_bytes=any_bytes))

    @property
    def name(self) -> str:
        """The name in messages."""
        return self.texts.name

    @cached_property
    def lines(self) -> list[str]:
        """The lines; what follows the last newline is one if there is anything."""
        lines = self.whole.split("\n")
        return lines if lines[-1] else lines[:-1]

    @cached_property
    def line_bytes(self) -> Array:
        """Bytes of each line, its newline included -> P."""
        sizes = [len(line.encode(errors="surrogateescape")) + 1 for line in self.lines]
        if not self.whole.endswith("\n"):
            sizes[-1] -= 1
        return np.array(sizes, np.float64)

    @cached_property
    def line_begins(self) -> Array:
        """The character at which each line begins -> P."""
        return np.cumsum([0, *(len(line) + 1 for line in self.lines[:-1])])

    @cached_property
    def detailed(self) -> int:
        """Characters of the part whose words are looked at: whole lines where there are several."""
        if len(self.whole) <= DETAILED:
            return len(self.whole)
        return self.whole.rfind("\n", 0, DETAILED) + 1 or DETAILED

    @cached_property
    def words(self) -> list[str]:
        """The words of the detailed part; a newline is one."""
        return [found[0].strip() or found[0] for found in WORD.finditer(self.whole, 0, self.detailed)]

    @cached_property
    def word_begins(self) -> Array:
        """The character at which each word begins, the white space before it included -> N."""
        return np.array([found.start() for found in WORD.finditer(self.whole, 0, self.detailed)], np.int64)

    @cached_property
    def word_positions(self) -> Array:
        """The place of each word in its line, from 1 -> N."""
        lines_N = np.searchsorted(self.line_begins, self.word_begins, "right") - 1
        places_N = np.arange(len(lines_N))
        first_N = np.searchsorted(lines_N, lines_N, "left")
        return places_N - first_N + 1


@dataclass(frozen=True)
class TextScores:
    """The tokens of a text under one run: their bits, and where they begin."""

    run: LanguageModelRun
    name: str
    evaluation: Evaluation
    text: TestText
    tokens_N: Array
    begins_N: Array  # in characters
    bits_N: Array  # spellings of unknown words included
    formatting_bits: float

    @property
    def bits(self) -> float:
        """All bits of the text, as `eval` charges them."""
        return float(self.bits_N.sum()) + self.formatting_bits

    @cached_property
    def line_table(self) -> Array:
        """Bits and bytes of each line -> PF; their sums are those of the text."""
        bytes_P = self.text.line_bytes
        lines_N = np.searchsorted(self.text.line_begins, self.begins_N, "right") - 1
        bits_P = np.bincount(lines_N, self.bits_N, len(bytes_P))
        return np.stack([bits_P + self.formatting_bits * bytes_P / bytes_P.sum(), bytes_P], axis=1)

    @cached_property
    def word_bits(self) -> Array:
        """The bits of each word of the detailed part of the text -> N."""
        inside_N = self.begins_N < self.text.detailed
        words_N = np.searchsorted(self.text.word_begins, self.begins_N[inside_N], "right") - 1
        return np.bincount(np.maximum(words_N, 0), self.bits_N[inside_N], len(self.text.word_begins))


def score_text(run: LanguageModelRun, name: str, text: TestText) -> TextScores:
    """Measure a run on a text as `eval` does, and keep the bits of every token."""
    store = open_store(text.texts, run.tokenizer)
    pieces: list[ScoredTokens] = []
    evaluation = evaluate(run.model, store, run.tokenizer, watch=pieces.append)
    log_probs_N = np.empty(len(store))
    log_probs_N[stream_order(run.model, len(store))] = np.concatenate([piece.log_probs_N for piece in pieces])
    begins_N, spelling_N = _places(run.tokenizer, store, text)
    return TextScores(
        run=run,
        name=name,
        evaluation=evaluation,
        text=text,
        tokens_N=np.asarray(store.tokens),
        begins_N=begins_N,
        bits_N=-log_probs_N / math.log(2) + spelling_N,
        formatting_bits=max(0.0, store.residue_bits - float(spelling_N.sum())),
    )


def _places(tokenizer: Tokenizer, store: TokenStore, text: TestText) -> tuple[Array, Array]:
    """The character at which each token begins, and the bits that spell it if it is an unknown word -> N, N."""
    begins, spellings, offset = [], [], 0
    for block in tokenizer.blocks(text.texts):
        begins.append(offset + np.array([begin for begin, _ in tokenizer.spans(block)], np.int64))
        offset += len(block)
        if store.oov and isinstance(tokenizer, VocabularyTokenizer):
            charges_N = SPELLED.charges(tokenizer, block, tokenizer.encode_block(block))
        else:
            charges_N = np.zeros(len(begins[-1]))
        spellings.append(-charges_N / math.log(2))
    return np.concatenate(begins), np.concatenate(spellings)


def count_words(texts: Texts, most: int) -> dict[str, int]:
    """How often each word occurs in the first `most` characters of a text, as `TestText.words` splits it."""
    counts: dict[str, int] = {}
    read = 0
    for block in texts.strings(any_bytes=True):
        for found in WORD.finditer(block):
            word = found[0].strip() or found[0]
            counts[word] = counts.get(word, 0) + 1
        read += len(block)
        if read >= most:
            break
    return counts


def same_text(texts: Sequence[TestText]) -> bool:
    """Whether all are the same text."""
    return len({one.texts.fingerprint() for one in texts}) <= 1
