"""The Python interface of KenLM over an ARPA file or an n-gram run of words. Scores are log10."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from functools import total_ordering
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from chainrule.checkpoint.build import load_model
from chainrule.checkpoint.folder import RunFolder
from chainrule.engines.ngram import query
from chainrule.engines.ngram.sentences import BLOCK, ENDS, SentenceScorer
from chainrule.engines.ngram.table import NgramTable, value
from chainrule.errors import ConfigError
from chainrule.interop.arpa.runs import MAX_ORDER, read_arpa
from chainrule.text.tokenizers.word import WordTokenizer

END, BEGIN = ENDS
_EMPTY = np.array([0] + [-1] * (MAX_ORDER - 1), np.int64).tobytes()


class FullScoreReturn(NamedTuple):
    """log10 p of a word, the words of the n-gram that was found, and whether the word is unknown."""

    log_prob: float
    ngram_length: int
    oov: bool


@total_ordering
class State:
    """The context of a word; a model fills it. Equal states give equal scores to whatever follows."""

    __slots__ = ("row",)

    def __init__(self) -> None:
        self.row = bytearray(_EMPTY)  # the row of a state in `engines.ngram.query`, as bytes

    def __eq__(self, other: object) -> bool:
        return isinstance(other, State) and self._contexts == other._contexts

    def __lt__(self, other: State) -> bool:
        return self._contexts < other._contexts

    def __hash__(self) -> int:
        return hash(self._contexts)

    def __copy__(self) -> State:
        copied = State()
        copied.row[:] = self.row
        return copied

    def __deepcopy__(self, memory: Any) -> State:
        return self.__copy__()

    @property
    def _contexts(self) -> tuple[int, tuple[int, ...]]:
        """How many contexts there are, and their nodes from the shortest on."""
        nodes = tuple(node for node in self.numbers[1:] if node >= 0)
        return len(nodes), nodes

    @property
    def numbers(self) -> list[int]:
        """The numbers of the row."""
        return memoryview(self.row).cast("q").tolist()


class LoadMethod:
    """How KenLM reads a binary file. Here every file is read in one way."""

    LAZY, POPULATE_OR_LAZY, POPULATE_OR_READ, READ, PARALLEL_READ = range(5)


class ARPALoadComplain:
    """When KenLM warns that it reads an ARPA file. There is no such warning here."""

    ALL, EXPENSIVE, NONE = range(3)


class Config:
    """Accepted for compatibility: a model is always loaded in one way, without messages."""

    def __init__(self) -> None:
        self.load_method = LoadMethod.POPULATE_OR_READ
        self.show_progress = True
        self.arpa_complain = ARPALoadComplain.ALL


class Model:
    """An n-gram model of words.

    Args:
        path: An ARPA file, plain or compressed, or the folder of an n-gram run of words.
        config: Accepted for compatibility.
    """

    def __init__(self, path: str | bytes | Path, config: Config | None = None) -> None:
        self.path = os.fsencode(os.path.abspath(os.fsdecode(path)))
        table, tokenizer = _load(Path(os.fsdecode(path)))
        words = [tokenizer.piece(token) for token in range(tokenizer.vocab_size)]
        self._table, self._unk = table, int(tokenizer.unk or 0)
        self._scorer = SentenceScorer(table, words, self._unk)
        self._compiled, self._step, self._address = self._scorer.score, self._scorer.step, self._scorer.address
        self._ids = {word: token for token, word in enumerate(words) if token not in (self._unk, table.eos)}
        self._ids |= {END: table.eos, BEGIN: table.eos}
        self._eos, self._begin = table.eos, _context(table.order, table.eos)

    @property
    def order(self) -> int:
        return self._table.order

    def score(self, sentence: str | bytes, bos: bool = True, eos: bool = True) -> float:
        """log10 p of a sentence, by default with its end and after its beginning.

        Args:
            sentence: Words separated by white space.
            bos: Whether the sentence follows `<s>`.
            eos: Whether `</s>` is scored too.
        """
        data = sentence.encode() if type(sentence) is str else _bytes_of(sentence)
        total = self._compiled(data, self._address, bos, eos)
        return total if total == total else sum(one[0] for one in self._by_word(data, bos, eos))

    def score_lines(self, sentences: Iterable[str | bytes], bos: bool = True, eos: bool = True) -> list[float]:
        """`score` of each of several sentences, faster than one by one. KenLM has no such method.

        Args:
            sentences: The sentences, as in `score`.
            bos: Whether each follows `<s>`.
            eos: Whether `</s>` is scored too.
        """
        lines = list(sentences)
        if not (bos and eos):
            return [self.score(line, bos, eos) for line in lines]
        scores: list[float] = []
        for first in range(0, len(lines), BLOCK):
            scores += self._scorer.score_block(_block_of(lines[first : first + BLOCK]))
        if math.isnan(sum(scores)):
            return [one if one == one else self.score(line) for one, line in zip(scores, lines, strict=True)]
        return scores

    def full_scores(
        self, sentence: str | bytes, bos: bool = True, eos: bool = True
    ) -> Iterator[tuple[float, int, bool]]:
        """log10 p, length of the n-gram found, and whether it is unknown, of each word.

        Args:
            sentence: Words separated by white space.
            bos: Whether the sentence follows `<s>`.
            eos: Whether `</s>` is scored too.
        """
        data = _bytes_of(sentence)
        scores = self._scorer.full_scores(data, bos, eos)
        return iter(self._by_word(data, bos, eos)) if scores is None else scores

    def perplexity(self, sentence: str | bytes) -> float:
        """10 ^ (-log10 p / words), the end of the sentence counted as a word.

        Args:
            sentence: Words separated by white space.
        """
        data = _bytes_of(sentence)
        return float(10.0 ** (-self.score(data) / (len(data.split()) + 1)))

    # Step by step, under the names that KenLM gives these methods

    def BeginSentenceWrite(self, state: State) -> None:  # noqa: N802
        """Set a state to the beginning of a sentence.

        Args:
            state: The state that is changed.
        """
        state.row[:] = self._begin

    def NullContextWrite(self, state: State) -> None:  # noqa: N802
        """Set a state to the empty context.

        Args:
            state: The state that is changed.
        """
        state.row[:] = _EMPTY

    def BaseScore(self, in_state: State, word: str, out_state: State) -> float:  # noqa: N802
        """log10 p of a word after a state.

        Args:
            in_state: The state before the word.
            word: The word.
            out_state: Becomes the state after the word.
        """
        token = self._ids.get(word, self._unk)
        if token == self._eos:
            return self._end(in_state, word, out_state).log_prob
        return self._step(self._address, in_state.row, token, out_state.row)

    def BaseFullScore(self, in_state: State, word: str, out_state: State) -> FullScoreReturn:  # noqa: N802
        """The same with the length of the n-gram found, and whether the word is unknown.

        Args:
            in_state: The state before the word.
            word: The word.
            out_state: Becomes the state after the word.
        """
        if word in ENDS:
            return self._end(in_state, word, out_state)
        log_prob = self.BaseScore(in_state, word, out_state)
        return FullScoreReturn(log_prob, self._scorer.matched, word not in self._ids)

    def _end(self, in_state: State, word: str, out_state: State) -> FullScoreReturn:
        """`</s>`, after which there is no context, or `<s>`, which never follows a word but begins a context."""
        if word == BEGIN:
            log_prob, matched = self._backed_off(in_state.numbers), 1
            self.BeginSentenceWrite(out_state)
        else:
            log_prob = self._step(self._address, in_state.row, self._eos, out_state.row)
            matched = self._scorer.matched
            self.NullContextWrite(out_state)
        return FullScoreReturn(log_prob, matched, False)

    def _backed_off(self, row: list[int]) -> float:
        """The back-off weights of all contexts of a state: log10 p of `<s>`, whose own is 0."""
        arrays = self._table.arrays
        contexts = list(enumerate(row[1 : self.order]))
        return sum(value(arrays.backoffs, arrays.backoff_table, k, node) for k, node in contexts if node >= 0)

    def __contains__(self, word: str) -> bool:
        return word in self._ids

    def __repr__(self) -> str:
        return f"<Model from {os.path.basename(os.fsdecode(self.path))}>"

    def _by_word(self, data: bytes, bos: bool, eos: bool) -> list[tuple[float, int, bool]]:
        """`full_scores` of a sentence with `<s>` or `</s>`."""
        state, scores = State(), list[tuple[float, int, bool]]()
        (self.BeginSentenceWrite if bos else self.NullContextWrite)(state)
        for word in [*data.split(), *[END.encode()] * eos]:
            one = self.BaseFullScore(state, word.decode(errors="replace"), state)
            scores.append((one.log_prob, one.ngram_length, one.oov))
        return scores


class LanguageModel(Model):
    """The former name of `Model`."""


def _load(path: Path) -> tuple[NgramTable, WordTokenizer]:
    folder = RunFolder.open(path)
    if not folder.path.is_dir():
        content = read_arpa(path)
        if content.table.order > MAX_ORDER:
            raise ConfigError(f"{path} has order {content.table.order}; expected at most {MAX_ORDER}; prune it")
        return content.table, WordTokenizer(content.words)
    tokenizer = folder.read_tokenizer()
    if folder.read_config().model.name != "ngram" or not isinstance(tokenizer, WordTokenizer):
        raise ConfigError(f"{path} is not an n-gram model of words; give an ARPA file or a run of --model ngram")
    return load_model(folder, tokenizer).table, tokenizer


def _context(order: int, word: int) -> bytes:
    """The row of the state after one word."""
    row_O = np.frombuffer(_EMPTY, np.int64).copy()
    query.begin(row_O[:order], word)
    return row_O.tobytes()


def _block_of(lines: Sequence[str | bytes]) -> bytes:
    """Sentences as lines of one text."""
    if set(map(type, lines)) == {str}:
        data = "\n".join([*lines, ""]).encode()  # type: ignore[list-item]
        if data.count(b"\n") == len(lines):
            return data
    return b"".join([_bytes_of(line).replace(b"\n", b" ") + b"\n" for line in lines])


def _bytes_of(sentence: str | bytes) -> bytes:
    return sentence.encode() if isinstance(sentence, str) else sentence
