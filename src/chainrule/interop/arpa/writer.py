"""An n-gram table as an ARPA file.

    \\data\\
    ngram 1=…                         the number of n-grams of each order
    \\1-grams:
    log10 p <tab> word <tab> log10 of the back-off weight
    \\2-grams:  …                      the highest order has no back-off weights
    \\end\\

The token `eos` is written as `</s>` where it is predicted and as `<s>` where it begins an n-gram. As in KenLM, the
log-probability of `<s>` is 0, which is never used, and the back-off weight of n-grams that end with `</s>` is 0 (a
factor of one). The log-probability of an impossible word is -99.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple, Self

import numpy as np
from numba import njit

from chainrule.base.arrays import Array
from chainrule.base.files import file_atomically
from chainrule.base.progress import Progress
from chainrule.engines.ngram.table import BINS, GROUP, NgramTable, TableArrays
from chainrule.errors import ConfigError
from chainrule.interop.arpa.numbers import MAX_LENGTH, put_number

BEGIN, END, UNKNOWN = "<s>", "</s>", "<unk>"
RESERVED = {BEGIN, END, UNKNOWN, "<UNK>"}  # KenLM reads <UNK> as <unk>
WHITE_SPACE = str.maketrans(" \t\r\n\v\f\0", "▁␉␍␊␋␌␀")
"""White space separates the words of a file; inside a token it is replaced by a visible sign."""

BUFFER = 1 << 22
"""Approximate number of bytes written at once."""

TAB, NEWLINE, SPACE = (np.uint8(ord(sign)) for sign in "\t\n ")


def write_arpa(
    table: NgramTable, pieces: Sequence[str], path: Path, *, unk: int | None = None, progress: Progress | None = None
) -> None:
    """Write a table whose token i is pieces[i]; compressed if the file name ends in .gz.

    `unk` is the token for unknown words, by default the piece `<unk>`.
    """
    _check(table)
    names = arpa_names(pieces, table.eos, pieces.index(UNKNOWN) if unk is None and UNKNOWN in pieces else unk)
    sizes, encoded, first_Y = table.sizes, _EncodedNames.of(names), _first_children(table.arrays)
    with _open_output(path) as file:
        counts = "".join(f"ngram {k}={size + (k == 1)}\n" for k, size in enumerate(sizes, 1))  # eos is two words
        file.write(f"\\data\\\n{counts}".encode())
        done = 0
        for k in range(1, table.order + 1):
            file.write(f"\n\\{k}-grams:\n".encode())
            for lines, ngrams in _section(table, encoded, first_Y, k):
                file.write(lines)
                done += ngrams
                if progress:
                    progress(done, sum(sizes))
        file.write(b"\n\\end\\\n")


def _check(table: NgramTable) -> None:
    if table.across_lines:
        raise ConfigError(
            "this model uses context across line ends, which the ARPA format cannot represent; "
            "train it again with --set model.across_lines=false"
        )
    if not table.normalised or table.absent != 0:
        raise ConfigError(
            "this model gives scores that are not probabilities, which the ARPA format cannot represent; "
            "train it again with another smoothing"
        )


def arpa_names(pieces: Sequence[str], eos: int, unk: int | None) -> list[str]:
    """The names of all tokens in a file: unique, without white space, and special words for special tokens only."""
    names = [piece.translate(WHITE_SPACE) for piece in pieces]
    names = [f"\\{name}" if name in RESERVED else name for name in names]
    names[eos] = END
    if unk is not None:
        names[unk] = UNKNOWN
    seen: dict[str, str] = {}
    for name, piece in zip(names, pieces, strict=True):
        if not name:
            raise ConfigError(
                "the tokeniser has an empty piece, which the ARPA format cannot represent; use another tokeniser"
            )
        if name in seen:
            raise ConfigError(
                f"the pieces {seen[name]!r} and {piece!r} would have the same name '{name}' in an ARPA file; "
                "use another tokeniser"
            )
        seen[name] = piece
    return names


@contextmanager
def _open_output(path: Path) -> Iterator[IO[bytes]]:
    """A file to write, compressed if its name ends in .gz; it appears under its name only when it is complete."""
    with file_atomically(path) as plain:
        if path.suffix.lower() != ".gz":
            yield plain
            return
        with gzip.GzipFile("", "wb", compresslevel=6, fileobj=plain, mtime=0) as packed:
            yield packed  # type: ignore[misc]


# Lines


class _EncodedNames(NamedTuple):
    """The names of tokens: that of token i is text[offsets_V[i]:offsets_V[i + 1]]; `<s>` is the last."""

    text: Array
    offsets_V: Array  # V + 2

    @classmethod
    def of(cls, names: list[str]) -> Self:
        encoded = [name.encode() for name in [*names, BEGIN]]
        lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
        return cls(np.frombuffer(bytearray().join(encoded), np.uint8), np.concatenate([[0], np.cumsum(lengths)]))


def _section(table: NgramTable, names: _EncodedNames, first_Y: Array, k: int) -> Iterator[tuple[Any, int]]:
    """The lines of the n-grams of k words, in parts, with the number of n-grams of each part."""
    longest = k * (int(np.diff(names.offsets_V).max()) + 1) + 2 * MAX_LENGTH + 3
    rows = max(1, BUFFER // longest)
    out = np.empty(rows * longest, np.uint8)
    arrays, has_backoffs = table.arrays, k < table.order
    path_O = np.array(arrays.starts[:-1])
    if k == 1:
        eos = slice(table.eos, table.eos + 1)
        backoff = _values(arrays.backoffs, arrays.backoff_table, 0, eos) if has_backoffs else np.zeros(0)
        yield _begin_line(backoff), 0
    for begin in range(int(arrays.starts[k - 1]), int(arrays.starts[k]), rows):
        nodes = slice(begin, min(begin + rows, int(arrays.starts[k])))
        probs_M = _values(arrays.probs, arrays.prob_table, k - 1, nodes)
        backoffs_M = np.empty(0, np.float32)
        if has_backoffs:
            backoffs_M = _values(arrays.backoffs, arrays.backoff_table, k - 1, nodes)
        used = _put_lines(begin, k, table.eos, arrays.words, first_Y, probs_M, backoffs_M, path_O, *names, out)
        yield out[:used].data, len(probs_M)


def _values(codes: Array, table: Array, level: int, nodes: slice) -> Array:
    """Probabilities or back-off weights of nodes of a level: plain, or decoded through a table."""
    kept = codes[nodes]
    if kept.dtype == np.float32:
        return np.array(kept)
    return np.asarray(table[kept.astype(np.int64) + (level * BINS if kept.dtype == np.uint8 else 0)])


def _first_children(arrays: TableArrays) -> Array:
    """The first child of each context, and the end of the last one's children."""
    steps = np.repeat(arrays.first_groups, GROUP)[: len(arrays.first_steps)] + arrays.first_steps
    return np.append(arrays.first_words, steps)


def _begin_line(backoff: Array) -> bytes:
    """The line of the unigram `<s>`: it is never predicted, but words follow it."""
    out = np.empty(MAX_LENGTH, np.uint8)
    texts = [out[: put_number(out, 0, float(number))].tobytes() for number in backoff]
    return b"\t".join([b"0", BEGIN.encode(), *texts]) + b"\n"


@njit(cache=True, nogil=True)
def _put_lines(
    begin: int,
    k: int,
    eos: int,
    words: Array,
    first_Y: Array,
    probs_M: Array,
    backoffs_M: Array,
    path_O: Array,
    text: Array,
    offsets_V: Array,
    out: Array,
) -> int:
    """Write the n-grams from node `begin` on, one for each probability -> the bytes used.

    `path_O` has the node of each level on the path to the last n-gram; the search for the next one continues there.
    """
    size = opening = len(offsets_V) - 2  # the number of tokens, and the index of <s> after them
    at = 0
    for row in range(len(probs_M)):
        path_O[k - 1] = begin + row
        for level in range(k - 1, 0, -1):
            while np.int64(first_Y[path_O[level - 1] + 1]) <= path_O[level]:
                path_O[level - 1] += 1
        at = put_number(out, at, probs_M[row])
        word = np.int64(0)
        for level in range(k):
            word = path_O[0] if level == 0 else np.int64(words[path_O[level] - size])
            out[at] = TAB if level == 0 else SPACE
            name = opening if level == 0 and k > 1 and word == eos else word
            length = offsets_V[name + 1] - offsets_V[name]
            for place in range(length):
                out[at + 1 + place] = text[offsets_V[name] + place]
            at += 1 + length
        if len(backoffs_M) > 0:
            out[at] = TAB
            at = put_number(out, at + 1, 0.0 if word == eos else backoffs_M[row])
        out[at] = NEWLINE
        at += 1
    return at
