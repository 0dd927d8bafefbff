"""An n-gram table as an ARPA file.

    \\data\\
    ngram 1=…                         how many n-grams of each order follow
    \\1-grams:
    log10 p <tab> word <tab> log10 of the back-off weight
    \\2-grams:  …                      the highest order has no back-off weights
    \\end\\

Our one token `eos` is `</s>` where it is predicted and `<s>` where it begins an n-gram. As KenLM has it, `<s>` has the
log-probability 0, which nobody asks for, and what ends with `</s>` has the back-off weight 0 (a factor of one). An
impossible word has -99.

Legend: N order, H contexts, R n-grams of a piece, W names.
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
from chainrule.interop.arpa.numbers import LONGEST, put_number

BEGIN, END, UNKNOWN = "<s>", "</s>", "<unk>"
RESERVED = {BEGIN, END, UNKNOWN, "<UNK>"}  # KenLM takes <UNK> for <unk>
SIGNS = str.maketrans(" \t\r\n\v\f\0", "▁␉␍␊␋␌␀")
"""White space separates the words of a file, so inside a piece it is written as the sign for it."""

BUFFER = 1 << 22
"""About how many bytes are written at once."""

TAB, NEWLINE, SPACE = (np.uint8(ord(sign)) for sign in "\t\n ")


def write_arpa(
    table: NgramTable, pieces: Sequence[str], path: Path, *, unk: int | None = None, progress: Progress | None = None
) -> None:
    """Write a table whose token i is called pieces[i]; compressed if the name ends in .gz.

    `unk` is the token for unknown words, by default the piece `<unk>`.
    """
    _check(table)
    names = arpa_names(pieces, table.eos, pieces.index(UNKNOWN) if unk is None and UNKNOWN in pieces else unk)
    sizes, known, first_H = table.sizes, _Names.of(names), _first_children(table.arrays)
    with _opened(path) as file:
        counts = "".join(f"ngram {k}={size + (k == 1)}\n" for k, size in enumerate(sizes, 1))  # eos is two words
        file.write(f"\\data\\\n{counts}".encode())
        done = 0
        for k in range(1, table.order + 1):
            file.write(f"\n\\{k}-grams:\n".encode())
            for lines, ngrams in _section(table, known, first_H, k):
                file.write(lines)
                done += ngrams
                if progress:
                    progress(done, sum(sizes))
        file.write(b"\n\\end\\\n")


def _check(table: NgramTable) -> None:
    if table.across_lines:
        raise ConfigError(
            "this model reads on across line ends, which an ARPA file cannot tell; "
            "train it again with --set model.across_lines=false"
        )
    if not table.normalised or table.absent != 0:
        raise ConfigError(
            "this model gives scores that are no probabilities, which an ARPA file cannot tell; "
            "train it again with another smoothing"
        )


def arpa_names(pieces: Sequence[str], eos: int, unk: int | None) -> list[str]:
    """What each token is called in a file: no white space inside, nothing twice, marks only for what they mean."""
    names = [piece.translate(SIGNS) for piece in pieces]
    names = [f"\\{name}" if name in RESERVED else name for name in names]
    names[eos] = END
    if unk is not None:
        names[unk] = UNKNOWN
    seen: dict[str, str] = {}
    for name, piece in zip(names, pieces, strict=True):
        if not name:
            raise ConfigError("the tokeniser has an empty piece, which an ARPA file cannot tell; use another tokeniser")
        if name in seen:
            raise ConfigError(
                f"the pieces {seen[name]!r} and {piece!r} would both be called '{name}' in an ARPA file; "
                "use another tokeniser"
            )
        seen[name] = piece
    return names


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    """A file to write, packed if its name says so; it takes its place when it is whole."""
    with file_atomically(path) as plain:
        if path.suffix.lower() != ".gz":
            yield plain
            return
        with gzip.GzipFile("", "wb", compresslevel=6, fileobj=plain, mtime=0) as packed:
            yield packed  # type: ignore[misc]


# Lines


class _Names(NamedTuple):
    """What tokens are called: token i is text[offsets[i]:offsets[i + 1]], and `<s>` is the last."""

    text: Array
    offsets_W: Array

    @classmethod
    def of(cls, names: list[str]) -> Self:
        encoded = [name.encode() for name in [*names, BEGIN]]
        lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
        return cls(np.frombuffer(bytearray().join(encoded), np.uint8), np.concatenate([[0], np.cumsum(lengths)]))


def _section(table: NgramTable, names: _Names, first_H: Array, k: int) -> Iterator[tuple[Any, int]]:
    """The lines of the n-grams of k words, in pieces, with the number of n-grams in each."""
    longest = k * (int(np.diff(names.offsets_W).max()) + 1) + 2 * LONGEST + 3
    rows = max(1, BUFFER // longest)
    out = np.empty(rows * longest, np.uint8)
    t, lower = table.arrays, k < table.order
    path_N = np.array(t.starts[:-1])
    if k == 1:
        backoff = _values(t.backoffs, t.backoff_table, 0, slice(table.eos, table.eos + 1)) if lower else np.zeros(0)
        yield _line_of_begin(backoff), 0
    for begin in range(int(t.starts[k - 1]), int(t.starts[k]), rows):
        nodes = slice(begin, min(begin + rows, int(t.starts[k])))
        probs_R = _values(t.probs, t.prob_table, k - 1, nodes)
        backoffs_R = _values(t.backoffs, t.backoff_table, k - 1, nodes) if lower else np.empty(0, np.float32)
        used = _put_lines(begin, k, table.eos, t.words, first_H, probs_R, backoffs_R, path_N, *names, out)
        yield out[:used].data, len(probs_R)


def _values(codes: Array, table: Array, level: int, nodes: slice) -> Array:
    """Probabilities or back-off weights of nodes of a level: as they are kept, or through a table."""
    kept = codes[nodes]
    if kept.dtype == np.float32:
        return np.array(kept)
    return np.asarray(table[kept.astype(np.int64) + (level * BINS if kept.dtype == np.uint8 else 0)])


def _first_children(t: TableArrays) -> Array:
    """Where the children of each context begin, and where those of the last one end."""
    return np.append(t.first_words, np.repeat(t.first_groups, GROUP)[: len(t.first_steps)] + t.first_steps)


def _line_of_begin(backoff: Array) -> bytes:
    """`<s>` as a word: it is never predicted, but words follow it."""
    out = np.empty(LONGEST, np.uint8)
    texts = [out[: put_number(out, 0, float(number))].tobytes() for number in backoff]
    return b"\t".join([b"0", BEGIN.encode(), *texts]) + b"\n"


@njit(cache=True, nogil=True)
def _put_lines(
    begin: int,
    k: int,
    eos: int,
    words: Array,
    first_H: Array,
    probs_R: Array,
    backoffs_R: Array,
    path_N: Array,
    text: Array,
    offsets_W: Array,
    out: Array,
) -> int:
    """Write the n-grams from node `begin` on, one for each probability -> the bytes used.

    `path_N` holds the node of each level that the last n-gram went through: the next one goes on from there.
    """
    size = opening = len(offsets_W) - 2  # tokens; their names come first, that of <s> is last
    at = 0
    for row in range(len(probs_R)):
        path_N[k - 1] = begin + row
        for level in range(k - 1, 0, -1):
            while np.int64(first_H[path_N[level - 1] + 1]) <= path_N[level]:
                path_N[level - 1] += 1
        at = put_number(out, at, probs_R[row])
        word = np.int64(0)
        for level in range(k):
            word = path_N[0] if level == 0 else np.int64(words[path_N[level] - size])
            out[at] = TAB if level == 0 else SPACE
            name = opening if level == 0 and k > 1 and word == eos else word
            length = offsets_W[name + 1] - offsets_W[name]
            for place in range(length):
                out[at + 1 + place] = text[offsets_W[name] + place]
            at += 1 + length
        if len(backoffs_R) > 0:
            out[at] = TAB
            at = put_number(out, at + 1, 0.0 if word == eos else backoffs_R[row])
        out[at] = NEWLINE
        at += 1
    return at
