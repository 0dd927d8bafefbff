"""The Python interface of KenLM over an ARPA file or an n-gram run of words. Scores are log10."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from chainrule.base.arrays import Array
from chainrule.checkpoint.build import load_model
from chainrule.checkpoint.folder import RunFolder
from chainrule.engines.ngram import query
from chainrule.engines.ngram.table import NgramTable
from chainrule.errors import ConfigError
from chainrule.interop.arpa.runs import read_arpa
from chainrule.text.tokenizers.word import WordTokenizer

ENDS = ("<s>", "</s>")


class FullScoreReturn(NamedTuple):
    """log10 p of a word, the words of the n-gram that was found, and whether the word is unknown."""

    log_prob: float
    ngram_length: int
    oov: bool


class State:
    """The context of a word; a model fills it."""

    __slots__ = ("row",)

    def __init__(self) -> None:
        self.row: Array = np.empty(0, np.int64)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, State) and np.array_equal(self._nodes, other._nodes)

    def __hash__(self) -> int:
        return hash(self._nodes.tobytes())

    def __copy__(self) -> State:
        copied = State()
        copied.row = self.row.copy()
        return copied

    @property
    def _nodes(self) -> Array:
        return self.row[1:]


class Config:
    """Accepted for compatibility: a model is always loaded in one way, without messages."""

    load_method: int = 0
    show_progress: bool = False
    arpa_complain: int = 0


class Model:
    """An n-gram model of words."""

    def __init__(self, path: str | bytes | Path, config: Config | None = None) -> None:
        self.path = os.fsencode(os.path.abspath(os.fsdecode(path)))
        self._table, self._tokenizer = _load(Path(os.fsdecode(path)))
        self._begin, self._null = self._context(self._table.eos), self._context(None)

    @property
    def order(self) -> int:
        return self._table.order

    def score(self, sentence: str | bytes, bos: bool = True, eos: bool = True) -> float:
        """log10 p of a sentence, by default with its end and after its beginning."""
        probs_T, _, _ = self._walk(sentence, bos, eos)
        return float(probs_T.sum())

    def full_scores(
        self, sentence: str | bytes, bos: bool = True, eos: bool = True
    ) -> Iterator[tuple[float, int, bool]]:
        """log10 p, length of the n-gram found, and whether it is unknown, of each word."""
        probs_T, matched_T, oov_T = self._walk(sentence, bos, eos)
        yield from zip(probs_T.tolist(), matched_T.tolist(), oov_T.tolist(), strict=True)

    def perplexity(self, sentence: str | bytes) -> float:
        """10 ^ (-log10 p / words), the end of the sentence counted as a word."""
        words = len(_text(sentence).split()) + 1
        return float(10.0 ** (-self.score(sentence) / words))

    # Step by step, under the names that KenLM gives these methods

    def BeginSentenceWrite(self, state: State) -> None:  # noqa: N802
        """Set a state to the beginning of a sentence."""
        state.row = self._begin.copy()

    def NullContextWrite(self, state: State) -> None:  # noqa: N802
        """Set a state to the empty context."""
        state.row = self._null.copy()

    def BaseScore(self, in_state: State, word: str, out_state: State) -> float:  # noqa: N802
        """log10 p of a word after a state; `out_state` becomes the state after it."""
        return self.BaseFullScore(in_state, word, out_state).log_prob

    def BaseFullScore(self, in_state: State, word: str, out_state: State) -> FullScoreReturn:  # noqa: N802
        """The same with the length of the n-gram found, and whether the word is unknown."""
        token, row = self._index(word), in_state.row.copy()
        probs_T, _, matched_T = query.walk_matches(self._table.arrays, np.array([token]), row, -1, self._table.absent)
        out_state.row = self._null.copy() if token == self._table.eos else row
        return FullScoreReturn(float(probs_T[0]), int(matched_T[0]), token == self._tokenizer.unk)

    def __contains__(self, word: str) -> bool:
        return self._index(word) != self._tokenizer.unk

    def __repr__(self) -> str:
        return f"<Model from {os.path.basename(os.fsdecode(self.path))}>"

    def _index(self, word: str) -> int:
        token = self._table.eos if word in ENDS else self._tokenizer.to_id(word)
        return int(self._tokenizer.unk if token is None else token)

    def _walk(self, sentence: str | bytes, bos: bool, eos: bool) -> tuple[Array, Array, Array]:
        """log10 p, length of the n-gram found, and whether it is unknown, of each word, T each."""
        words = _text(sentence).split()
        tokens = [self._index(word) for word in words] + [self._table.eos] * eos
        row = (self._begin if bos else self._null).copy()
        tokens_T = np.array(tokens, np.int64)
        probs_T, _, matched_T = query.walk_matches(self._table.arrays, tokens_T, row, -1, self._table.absent)
        return probs_T, matched_T, tokens_T == self._tokenizer.unk

    def _context(self, word: int | None) -> Array:
        row = np.full(self._table.order, -1, np.int64)
        row[0] = 0
        if word is not None:
            query.begin(row, word)
        return row


class LanguageModel(Model):
    """The former name of `Model`."""


def _load(path: Path) -> tuple[NgramTable, WordTokenizer]:
    if not path.is_dir():
        content = read_arpa(path)
        return content.table, WordTokenizer(content.words)
    folder = RunFolder(path)
    tokenizer = folder.read_tokenizer()
    if folder.read_config().model.name != "ngram" or not isinstance(tokenizer, WordTokenizer):
        raise ConfigError(f"{path} is not an n-gram model of words; give an ARPA file or a run of --model ngram")
    return load_model(folder, tokenizer).table, tokenizer


def _text(sentence: str | bytes) -> str:
    return sentence if isinstance(sentence, str) else sentence.decode()
