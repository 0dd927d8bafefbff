"""Vectors of words and of lines: what a run has learned, to look at and to use elsewhere.

A word's vector is its row in a table: that of word2vec, or the embedding of any other model. A line's vectors are the
states of the model after each of its tokens (`encode`), or the vectors of its words, pooled into one.

Legend: V words, D width, B batch, S tokens of a line, N lines or tokens, Q queries, K the nearest.
"""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from chainrule.base.files import file_atomically
from chainrule.base.modes import evaluating
from chainrule.errors import ConfigError, DataError, RunError
from chainrule.evaluation.vectors import Array, analogy_queries, nearest, norms_of, units
from chainrule.models.seq2seq_transformer import EncoderDecoder
from chainrule.registry import MODELS
from chainrule.text.tokenizers import Tokenizer
from chainrule.types import Encoder, Source

if TYPE_CHECKING:
    from chainrule.runs.language_model import Run

Pooling = Literal["mean", "max", "first", "last"]
POOLINGS = ("mean", "max", "first", "last")
LINES = 512
"""Lines that are read together, to be grouped by length."""
BATCH_TOKENS = 8192


# Words


class Neighbour(NamedTuple):
    """A word and the cosine of its vector with what was asked for."""

    word: str
    cosine: float


@dataclass
class WordTable:
    """Words and their vectors, the most frequent words first where that is known."""

    words: Sequence[str]
    vectors_VD: Array  # float32; may be mapped

    @cached_property
    def places(self) -> dict[str, int]:
        """Words to rows; of words that stand twice, the first."""
        return {self.words[place]: place for place in range(len(self.words) - 1, -1, -1)}

    @cached_property
    def norms(self) -> Array:
        """The length of each vector, V."""
        return norms_of(self.vectors_VD)

    def place(self, word: str) -> int:
        """The row of a word; one that is not there is refused with the nearest that is."""
        if (place := self.places.get(word)) is not None:
            return place
        close = difflib.get_close_matches(word, self.words, n=1, cutoff=0.5)
        hint = f"did you mean '{close[0]}'?" if close else f"it knows {len(self.words):,} others."
        raise DataError(f"the run has no vector of the word '{word}'; {hint}")

    def vector(self, word: str) -> Array:
        """The vector of a word, D."""
        vector_D: Array = np.asarray(self.vectors_VD[self.place(word)], np.float32)
        return vector_D

    def neighbours(self, word: str, top: int = 10) -> list[Neighbour]:
        """The words whose vectors have the largest cosine with that of a word, itself left out."""
        return self._nearest(self.vector(word), top, [self.place(word)])

    def analogy(self, a: str, b: str, c: str, top: int = 10) -> list[Neighbour]:
        """What a is without b and with c (king - man + woman), by vectors of length one, the three left out."""
        places = [self.place(b), self.place(a), self.place(c)]
        query_1D = analogy_queries(self.vectors_VD, self.norms, np.array([places]))
        return self._nearest(query_1D[0], top, places)

    def _nearest(self, query_D: Array, top: int, without: list[int]) -> list[Neighbour]:
        if top < 1:
            raise ConfigError(f"top is {top}, but at least 1 neighbour must be asked for")
        places_1K, cosines_1K = nearest(self.vectors_VD, self.norms, query_D[None], top + len(without))
        found = zip(places_1K[0].tolist(), cosines_1K[0].tolist(), strict=True)
        return [Neighbour(self.words[place], cosine) for place, cosine in found if place not in without][:top]


def table_of(run: Run) -> WordTable:
    """The vectors of a run's words: its own, or its model's embedding without the tokens that are no text."""
    if hasattr(run, "vectors_VD"):
        return WordTable(run.words, run.vectors_VD)  # type: ignore[attr-defined]
    tokenizer = run.tokenizer
    if (table := embedding_of(run.model)) is None:
        raise RunError(
            f"{run.folder.path} is a {run.config.model.name}, which has no vectors of words; take a run of word2vec, "
            "or of a model with an embedding"
        )
    kept = [token for token in range(tokenizer.vocab_size) if token not in (tokenizer.eos, tokenizer.unk)]
    vectors_VD = table.weight.detach().float().cpu().numpy()
    return WordTable([tokenizer.piece(token) for token in kept], vectors_VD[kept])


def embedding_of(model: Any) -> nn.Embedding | None:
    """The table that a model looks its words up in, None if it has none."""
    for path in ("embedding", "encoder.word_table", "features.encoder.word_table"):
        part = model
        for name in path.split("."):
            part = getattr(part, name, None)
        if isinstance(part, nn.Embedding):
            return part
    return None


# Lines


class Tokens(NamedTuple):
    """The tokens that were read of a line, and the vector of each."""

    pieces: list[str]
    vectors_SD: Array


def embed_words(run: Run, words: Iterable[str], *, normalise: bool = False) -> Iterator[Array]:
    """The vector of each word, D; a word that the run does not know is refused."""
    table = table_of(run)
    for word in words:
        vector_D = table.vector(word)
        yield units(vector_D) if normalise else vector_D


def embed_lines(
    run: Run, lines: Iterable[str], *, pooling: Pooling = "mean", normalise: bool = False, layer: int | None = None
) -> Iterator[Array]:
    """One vector a line, D, in the order of the lines: those of its tokens pooled.

    `normalise` brings it to length one; `layer` takes the states of another layer than the last: 0 is the embedding.
    """
    if pooling not in POOLINGS:
        raise ConfigError(f"pooling is {pooling!r}; expected one of {', '.join(POOLINGS)}")
    for tokens in embed_tokens(run, lines, layer=layer):
        pooled_D = pool(tokens.vectors_SD, pooling)
        yield units(pooled_D) if normalise else pooled_D


def embed_tokens(
    run: Run, lines: Iterable[str], *, normalise: bool = False, layer: int | None = None
) -> Iterator[Tokens]:
    """The tokens of each line with their vectors, in the order of the lines; lines are read in groups."""
    read = _word_vectors(run, lines, layer) if hasattr(run, "vectors_VD") else _contextual(run, lines, layer)
    for tokens in read:
        yield Tokens(tokens.pieces, units(tokens.vectors_SD)) if normalise else tokens


def pool(vectors_SD: Array, pooling: Pooling) -> Array:
    """Some vectors as one, D; that of none is zero."""
    if not len(vectors_SD):
        return np.zeros(vectors_SD.shape[1], np.float32)
    if pooling in ("first", "last"):
        one_D: Array = vectors_SD[0 if pooling == "first" else -1]
        return one_D
    pooled_D: Array = vectors_SD.max(0) if pooling == "max" else vectors_SD.mean(0)
    return pooled_D


def _word_vectors(run: Run, lines: Iterable[str], layer: int | None) -> Iterator[Tokens]:
    """The words of each line that have vectors, with these."""
    if layer is not None:
        raise _no_layers(run)
    table = table_of(run)
    for line in lines:
        pieces = [run.tokenizer.piece(token) for token in run.tokenizer.encode(line) if token != run.tokenizer.unk]
        known = [piece for piece in pieces if piece in table.places]
        yield Tokens(known, np.asarray(table.vectors_VD[[table.places[piece] for piece in known]], np.float32))


def _contextual(run: Run, lines: Iterable[str], layer: int | None) -> Iterator[Tokens]:
    """What the model makes of each line's tokens."""
    reading = _Reading.of(run, layer)
    numbered = enumerate(lines, start=1)
    while group := list(islice(numbered, LINES)):
        rows = [reading.tokens(line, number) for number, line in group]
        found: dict[int, Tokens] = {}
        for batch in _batches(rows):
            for number, states_SD in zip(batch, reading.states([rows[number] for number in batch]), strict=True):
                found[number] = Tokens([reading.tokenizer.piece(token) for token in rows[number]], states_SD)
        yield from (found[number] for number in range(len(rows)))


def _batches(rows: Sequence[Sequence[int]]) -> Iterator[list[int]]:
    """The numbers of rows of about equal length, so many that they are read together."""
    order = sorted(range(len(rows)), key=lambda number: -len(rows[number]))
    while order:
        count = max(1, BATCH_TOKENS // len(rows[order[0]]))
        yield order[:count]
        order = order[count:]


@dataclass
class _Reading:
    """How a run's model reads a line: what goes before its tokens and after them, and how many it can read."""

    run: Run
    tokenizer: Tokenizer
    prefix: str  # of every source of a translator
    first: int | None  # the token before every text
    ended: bool  # whether eos is read after the line
    window: int | None  # most tokens of all
    layer: int | None

    @classmethod
    def of(cls, run: Run, layer: int | None) -> _Reading:
        model, task = run.model, MODELS.get(run.config.model.name).about["task"]
        # Translators that are no Transformers make other things of a source than one vector a token.
        if not isinstance(model, Encoder) or (task == "seq2seq" and not isinstance(model, EncoderDecoder)):
            raise RunError(
                f"{run.folder.path} is a {run.config.model.name}, which gives no vectors of the tokens of a line; take "
                "a neural language model, bert, word2vec, seq2seq-transformer or t5"
            )
        if layer is not None and not hasattr(model, "layers"):
            raise _no_layers(run)
        tokenizer = getattr(run, "source_tokenizer", run.tokenizer)
        shape = getattr(getattr(model, "encoder", None), "shape", None)
        window = None if task == "lm" else getattr(shape, "window", run.model.window)
        prefix = run.config.data.prefix if task == "seq2seq" else ""
        return cls(run, tokenizer, prefix, getattr(shape, "first", None), task != "lm", window, layer)

    def tokens(self, line: str, number: int) -> list[int]:
        """The tokens of a line as the model reads them, cut with a warning where it cannot read more."""
        row = list(self.tokenizer.encode(self.prefix + line))
        before = [] if self.first is None else [self.first]
        after = [self.tokenizer.eos] if self.ended or not row else []
        most = None if self.window is None else self.window - len(before) - len(after)
        if most is not None and len(row) > most:
            warnings.warn(
                f"line {number} has {len(row)} tokens, but the model reads {most}: the rest of it is left out of its "
                "vector",
                stacklevel=2,
            )
        return [*before, *row[:most], *after]

    def states(self, rows: list[list[int]]) -> list[Array]:
        """The states of each row's tokens, SD; what pads a row changes nothing."""
        longest = max(map(len, rows))
        tokens_BS = torch.full((len(rows), longest), self.tokenizer.eos)
        mask_BS = torch.zeros(len(rows), longest, dtype=torch.bool)
        for number, row in enumerate(rows):
            tokens_BS[number, : len(row)] = torch.tensor(row)
            mask_BS[number, : len(row)] = True
        with torch.inference_mode(), evaluating(self.run.model):
            states_BSD = self._encode(Source(tokens_BS.to(self.run.device), mask_BS.to(self.run.device)))
        states: Array = states_BSD.float().cpu().numpy()
        return [states[number, : len(row)] for number, row in enumerate(rows)]

    def _encode(self, source: Source) -> Tensor:
        if self.layer is None:
            model = self.run.model  # whose `encode` leaves out the state of the token before every text
            last_BSD: Tensor = model.encode(source) if self.first is None else model.encoder(*source)
            return last_BSD
        layers: list[Tensor] = self.run.model.layers(*source)
        if not -len(layers) <= self.layer < len(layers):
            raise ConfigError(
                f"layer is {self.layer}, but there are layers 0 (the embedding) to {len(layers) - 1}; from the end "
                "they are -1, -2 and so on"
            )
        return layers[self.layer]


def _no_layers(run: Run) -> ConfigError:
    return ConfigError(
        f"{run.folder.path} is a {run.config.model.name}, whose layers cannot be told apart; leave the layer out"
    )


# Files


def save_npy(path: Path, blocks: Iterable[Array]) -> tuple[int, int]:
    """Write vectors as they come, D or ND each, to one array of float32 that `numpy.load` reads -> its shape."""
    rows = width = 0
    with file_atomically(path) as file:
        for block in blocks:
            block_ND = np.ascontiguousarray(np.atleast_2d(block), "<f4")
            if not width:
                width = block_ND.shape[1]
                _write_header(file, 0, width)
            file.write(block_ND.data)
            rows += len(block_ND)
        file.seek(0)
        _write_header(file, rows, width)  # as long as the first: numpy leaves room for the number of rows to grow
    return rows, width


def _write_header(file: BinaryIO, rows: int, width: int) -> None:
    about = {"descr": "<f4", "fortran_order": False, "shape": (rows, width)}
    np.lib.format.write_array_header_1_0(file, about)
