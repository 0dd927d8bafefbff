"""Vectors of words and of lines.

The vector of a line is pooled from the states of the model at each of its tokens, or from the vectors of its words
(`word_table.py`).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Literal, NamedTuple

import numpy as np

from chainrule.base.arrays import Array
from chainrule.base.files import file_atomically
from chainrule.base.lazy import torch
from chainrule.base.modes import evaluating
from chainrule.data.grouping import by_length, in_windows, map_batches
from chainrule.errors import ConfigError, RunError
from chainrule.evaluation.vectors import unit_vectors
from chainrule.inference.subject import TextModel
from chainrule.inference.word_table import table_of
from chainrule.types import Source, TextEncoder

if TYPE_CHECKING:
    from torch import Tensor

Pooling = Literal["mean", "max", "first", "last", "pooled"]
POOLINGS = ("mean", "max", "first", "last", "pooled")
LINES = 512
"""Lines read together, to be grouped by length."""
BATCH_TOKENS = 8192


# Lines


class TokenVectors(NamedTuple):
    """The tokens of a line, and the vector of each."""

    pieces: list[str]
    vectors_SD: Array


def embed_words(subject: TextModel, words: Iterable[str], *, normalise: bool = False) -> Iterator[Array]:
    """The vector of each word, D; an unknown word is an error."""
    table = table_of(subject)
    for word in words:
        vector_D = table.vector(word)
        yield unit_vectors(vector_D) if normalise else vector_D


def embed_lines(
    subject: TextModel,
    lines: Iterable[str],
    *,
    pooling: Pooling = "mean",
    normalise: bool = False,
    layer: int | None = None,
) -> Iterator[Array]:
    """One vector per line, D, in the order of the lines: those of its tokens, pooled.

    "pooled" is the pooled output of an encoder that has one, such as an imported BERT. `normalise` scales the vector to
    length one; `layer` selects another layer than the last: 0 is the embedding.
    """
    if pooling not in POOLINGS:
        raise ConfigError(f"pooling is {pooling!r}; expected one of {', '.join(POOLINGS)}")
    if pooling == "pooled":
        _check_pooler(subject, layer)
    for tokens in embed_tokens(subject, lines, layer=layer):
        first = pooling == "pooled"
        pooled_D = _pooled_output(subject, tokens.vectors_SD[0]) if first else pool(tokens.vectors_SD, pooling)
        yield unit_vectors(pooled_D) if normalise else pooled_D


def embed_tokens(
    subject: TextModel, lines: Iterable[str], *, normalise: bool = False, layer: int | None = None
) -> Iterator[TokenVectors]:
    """The tokens of each line with their vectors, in the order of the lines; lines are read in groups."""
    static = subject.model.word_vectors is not None
    embedded = _static(subject, lines, layer) if static else _contextual(subject, lines, layer)
    for tokens in embedded:
        yield TokenVectors(tokens.pieces, unit_vectors(tokens.vectors_SD)) if normalise else tokens


def pool(vectors_SD: Array, pooling: Pooling) -> Array:
    """Several vectors as one, D; zero if there are none."""
    if not len(vectors_SD):
        return np.zeros(vectors_SD.shape[1], np.float32)
    if pooling in ("first", "last"):
        one_D: Array = vectors_SD[0 if pooling == "first" else -1]
        return one_D
    pooled_D: Array = vectors_SD.max(0) if pooling == "max" else vectors_SD.mean(0)
    return pooled_D


def _pooled_output(subject: TextModel, first_D: Array) -> Array:
    """The pooled output from the vector of the first token of a line, D."""
    with torch.inference_mode():
        pooled_1D = subject.model.pool(torch.from_numpy(first_D[None]).to(subject.device))
    output_D: Array = pooled_1D[0].float().cpu().numpy()
    return output_D


def _check_pooler(subject: TextModel, layer: int | None) -> None:
    """Refuse models without a pooled output, and other layers than the last."""
    encoder, table = subject.model.text_encoder, subject.model.word_table
    if encoder is None or table is None or encoder.pool(table.weight[:1]) is None:
        raise ConfigError(
            f"{subject.name} has no pooled output; use mean, max, first or last, or import a BERT with one"
        )
    if layer is not None:
        raise ConfigError("the pooled output is made from the last layer; leave the layer out")


def _static(subject: TextModel, lines: Iterable[str], layer: int | None) -> Iterator[TokenVectors]:
    """The words of each line that have vectors, with these."""
    if layer is not None:
        raise _no_layers(subject)
    table, tokenizer = table_of(subject), subject.tokenizer
    for line in lines:
        pieces = [tokenizer.piece(token) for token in tokenizer.encode(line) if token != tokenizer.unk]
        known = [piece for piece in pieces if piece in table.places]
        yield TokenVectors(known, np.asarray(table.vectors_VD[[table.places[piece] for piece in known]], np.float32))


def _contextual(subject: TextModel, lines: Iterable[str], layer: int | None) -> Iterator[TokenVectors]:
    """The states of the model at each line's tokens."""
    reader = _LineReader.of(subject, layer)
    for group in in_windows(enumerate(lines, start=1), LINES):
        yield from reader.embed_all([reader.tokens(line, number) for number, line in group])


@dataclass
class _LineReader:
    """Turns lines into the tokens that a model reads, and these into states."""

    subject: TextModel
    encoder: TextEncoder
    layer: int | None

    @classmethod
    def of(cls, subject: TextModel, layer: int | None) -> _LineReader:
        if (encoder := subject.model.text_encoder) is None:
            raise RunError(
                f"{subject.name} gives no vector per token; use a neural language model, bert, word2vec, "
                "seq2seq-transformer or t5"
            )
        return cls(subject, encoder, layer)

    def tokens(self, line: str, number: int) -> list[int]:
        """The tokens of a line as the model reads them, cut with a warning where it cannot read more."""
        tokenizer, encoder = self.subject.source_tokenizer, self.encoder
        row = list(tokenizer.encode(self.subject.source_prefix + line))
        before = [] if encoder.first is None else [encoder.first]
        after = [tokenizer.eos] if encoder.reads_eos or not row else []
        limit = None if encoder.max_tokens is None else encoder.max_tokens - len(before) - len(after)
        if limit is not None and len(row) > limit:
            warnings.warn(
                f"line {number} has {len(row)} tokens, but the model reads {limit}: its vector ignores the rest",
                stacklevel=2,
            )
        return [*before, *row[:limit], *after]

    def embed_all(self, rows: list[list[int]]) -> list[TokenVectors]:
        """The tokens of each row and their states, computed in batches of similar length."""
        batches = by_length([len(row) for row in rows], max_tokens=BATCH_TOKENS)
        return map_batches(batches, lambda batch: self.embed([rows[index] for index in batch]))

    def embed(self, rows: list[list[int]]) -> list[TokenVectors]:
        """The tokens of each row and their states; padding has no effect on them."""
        longest = max(map(len, rows))
        tokens_BS = torch.full((len(rows), longest), self.subject.source_tokenizer.eos)
        mask_BS = torch.zeros(len(rows), longest, dtype=torch.bool)
        for index, row in enumerate(rows):
            tokens_BS[index, : len(row)] = torch.tensor(row)
            mask_BS[index, : len(row)] = True
        device = self.subject.device
        with torch.inference_mode(), evaluating(self.subject.model):
            states_BSD = self._encode(Source(tokens_BS.to(device), mask_BS.to(device)))
        states: Array = states_BSD.float().cpu().numpy()
        piece = self.subject.source_tokenizer.piece
        return [TokenVectors(list(map(piece, row)), states[index, : len(row)]) for index, row in enumerate(rows)]

    def _encode(self, source: Source) -> Tensor:
        if self.layer is None:
            return self.encoder.encode_text(source)
        if (layers := self.encoder.layers(*source)) is None:
            raise _no_layers(self.subject)
        if not -len(layers) <= self.layer < len(layers):
            raise ConfigError(
                f"layer is {self.layer}, but the layers are 0 (the embedding) to {len(layers) - 1}; negative numbers "
                "count from the end"
            )
        return layers[self.layer]


def _no_layers(subject: TextModel) -> ConfigError:
    return ConfigError(f"the layers of {subject.name} cannot be read separately; leave the layer out")


# Files


def save_npy(path: Path, blocks: Iterable[Array]) -> tuple[int, int]:
    """Write vectors one by one, D or ND each, to one float32 array that `numpy.load` reads -> its shape."""
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
        _write_header(file, rows, width)  # as long as the first: numpy pads the header for more rows
    return rows, width


def _write_header(file: BinaryIO, rows: int, width: int) -> None:
    about = {"descr": "<f4", "fortran_order": False, "shape": (rows, width)}
    np.lib.format.write_array_header_1_0(file, about)
