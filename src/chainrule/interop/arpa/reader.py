"""The contents of an ARPA file, section by section, every line checked; `trie.py` builds a table from them.

The files of many tools are accepted: fields separated by spaces or tabs, missing back-off weights, the lines of a
section in any order, blank lines anywhere, any text before the data, any kind of line end, and compressed files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import numpy as np
from numba import njit

from chainrule.base.arrays import Array
from chainrule.base.grammar import plural
from chainrule.base.progress import Progress
from chainrule.errors import DataError
from chainrule.interop.arpa.numbers import take_number
from chainrule.text.readers import Texts, open_texts
from chainrule.text.tokenizers.word_table import TokenIndex

UNK, EOS = 0, 1
"""The ids of `<unk>` and of `<s>` and `</s>`; the words follow in the order of the file."""

COUNT = re.compile(rb"ngram\s+(\d+)\s*=\s*(\d+)")
SECTION_HEAD = re.compile(rb"\\(\d+)-grams:")
BAD_PROBABILITY, BAD_FIELDS, BAD_WEIGHT = 1, 2, 3
SPACE, TAB, NEWLINE, RETURN, BACKSLASH = 0x20, 0x09, 0x0A, 0x0D, 0x5C


@dataclass
class NgramSection:
    """N n-grams of O words. A back-off weight that the file omits is 0, a factor of one."""

    ids_NO: Array  # int32
    probs_N: Array  # float32, log10
    backoffs_N: Array  # float32, log10
    lines_N: Array  # int64: line numbers in the file


@dataclass
class ArpaContent:
    """The contents of a file."""

    words: list[str]  # of the ids from 2 on
    sections: list[NgramSection]
    notes: list[str] = field(default_factory=list)


class _LineCursor:
    """Reads a file block by block and counts its lines."""

    def __init__(self, texts: Texts) -> None:
        self.name = texts.name
        self._blocks = (block.data for block in texts.blocks())
        self.block = b""
        self.data = np.empty(0, np.uint8)  # the same bytes
        self.at, self.line = 0, 0

    def more(self) -> bool:
        """Load the next block if the current one is used up; False at the end of the file."""
        while self.at >= len(self.block):
            if (block := next(self._blocks, None)) is None:
                return False
            self.block, self.data, self.at = block, np.frombuffer(block, np.uint8), 0
        return True

    def next_line(self) -> bytes | None:
        """The next line that is not blank, stripped; None at the end of the file."""
        while self.more():
            end = self.block.find(b"\n", self.at)
            end = len(self.block) if end < 0 else end
            line = self.block[self.at : end].strip()
            self.at, self.line = end + 1, self.line + 1
            if line:
                return line
        return None

    def fail(self, what: str, line: int | None = None) -> NoReturn:
        """Raise an error about a line, by default the current one."""
        raise DataError(f"{self.name}, line {self.line if line is None else line}: {what}")


def read_arpa_content(path: str | Path, progress: Progress | None = None) -> ArpaContent:
    """All n-grams of a file."""
    cursor = _LineCursor(open_texts([path]))
    sizes = _read_counts(cursor)
    reader = _SectionReader(cursor, sizes, progress)
    for k in range(1, len(sizes) + 1):
        reader.read(k)
    if (line := cursor.next_line()) != b"\\end\\":
        _fail_truncated(cursor, line, "\\end\\")
    return reader.content()


def _read_counts(cursor: _LineCursor) -> list[int]:
    """Read the file up to the head of the first section -> the number of n-grams of each order."""
    while (line := cursor.next_line()) != b"\\data\\":
        if line is None or cursor.line > 1000 or b"\0" in line:
            raise DataError(f"{cursor.name} is not an ARPA file: it has no line \\data\\; give a model in ARPA format")
    sizes: list[int] = []
    while (line := cursor.next_line()) is not None and (found := COUNT.fullmatch(line)):
        if int(found[1]) != len(sizes) + 1:
            cursor.fail(f"expected the count of {len(sizes) + 1}-grams but got '{_excerpt(line)}'; restore the file")
        sizes.append(int(found[2]))
    if not sizes:
        cursor.fail("expected 'ngram 1=' and a number after \\data\\; restore the file")
    _check_head(cursor, line, 1)
    return sizes


def _check_head(cursor: _LineCursor, line: bytes | None, k: int) -> None:
    found = SECTION_HEAD.fullmatch(line or b"")
    if not found or int(found[1]) != k:
        _fail_truncated(cursor, line, f"\\{k}-grams:")


def _fail_truncated(cursor: _LineCursor, line: bytes | None, expected: str) -> NoReturn:
    if line is None:
        raise DataError(f"{cursor.name} is truncated: it ends before {expected}; copy or create it again")
    cursor.fail(f"expected {expected} but got '{_excerpt(line)}'; restore the file")


def _excerpt(text: bytes) -> str:
    """The beginning of a line, for a message."""
    return text[:40].decode(errors="replace")


class _SectionReader:
    """Reads the sections of a file one after the other."""

    def __init__(self, cursor: _LineCursor, sizes: list[int], progress: Progress | None) -> None:
        self._cursor, self._sizes, self._progress = cursor, sizes, progress
        self._sections: list[NgramSection] = []
        self._words: list[str] = []
        self._index = TokenIndex([], missing=-1)
        self._done = self._misplaced = self._positive = 0
        self._notes: list[str] = []

    def read(self, k: int) -> None:
        """Read the section of n-grams of k words; the head of the first section is already read."""
        if k > 1:
            _check_head(self._cursor, self._cursor.next_line(), k)
        parts = [self._add_words(part) if k == 1 else self._look_up_words(part) for part in self._parts(k)]
        fields = [np.concatenate([getattr(part, name) for part in parts]) for name in NgramSection.__annotations__]
        section = NgramSection(*fields)
        self._positive += int((section.probs_N > 0).sum())
        np.minimum(section.probs_N, 0, out=section.probs_N)
        self._sections.append(self._order_unigrams(section) if k == 1 else section)

    def content(self) -> ArpaContent:
        if self._misplaced:
            self._notes.append(
                f"{self._misplaced:,} n-grams have <s> after their first word or </s> before their last; dropped"
            )
        if self._positive:
            self._notes.append(f"{self._positive:,} n-grams have a log-probability above 0; set to 0")
        return ArpaContent(self._words, self._sections, self._notes)

    # Lines

    def _parts(self, k: int) -> Iterator[tuple[Array, Array, NgramSection]]:
        """The n-grams of a section in parts: the starts and ends of their words, and the rest, with unset ids."""
        cursor, found, expected = self._cursor, 0, self._sizes[k - 1]
        while cursor.more() and cursor.data[cursor.at] != BACKSLASH:
            rows = int((cursor.data[cursor.at :] == NEWLINE).sum()) + 1
            starts_NO, ends_NO = np.empty((rows, k), np.int64), np.empty((rows, k), np.int64)
            probs_N, backoffs_N = np.empty(rows, np.float32), np.empty(rows, np.float32)
            lines_N, outcome = np.empty(rows, np.int64), np.zeros(2, np.int64)
            cursor.at, used = _take_lines(
                cursor.data, cursor.at, cursor.line, starts_NO, ends_NO, probs_N, backoffs_N, lines_N, outcome
            )
            cursor.line = int(outcome[1])
            self._check_outcome(int(outcome[0]), k)
            found += used
            self._done += used
            if self._progress:
                self._progress(self._done, sum(self._sizes))
            rest = NgramSection(np.empty((used, k), np.int32), probs_N[:used], backoffs_N[:used], lines_N[:used])
            yield starts_NO[:used], ends_NO[:used], rest
        if found != expected:
            if not cursor.more():
                _fail_truncated(cursor, None, "\\end\\")
            raise DataError(
                f"{cursor.name}: section \\{k}-grams: has {found} n-grams, but the head promises {expected}; create "
                "the file again"
            )
        if not found:
            yield np.empty((0, k), np.int64), np.empty((0, k), np.int64), _empty_section(k)

    def _check_outcome(self, outcome: int, k: int) -> None:
        if outcome == BAD_PROBABILITY:
            self._cursor.fail("expected a log-probability first; restore the file")
        if outcome == BAD_FIELDS:
            self._cursor.fail(
                f"expected a log-probability, {plural(k, 'word')} and optionally a back-off weight; restore the file"
            )
        if outcome == BAD_WEIGHT:
            self._cursor.fail(f"expected a back-off weight after {plural(k, 'word')}; restore the file")

    # Words

    def _add_words(self, part: tuple[Array, Array, NgramSection]) -> NgramSection:
        """Add the words of unigrams; until all are known, the id of a word is its position in the file."""
        starts_NO, ends_NO, rest = part
        for row, (start, end) in enumerate(zip(starts_NO[:, 0].tolist(), ends_NO[:, 0].tolist(), strict=True)):
            try:
                self._words.append(self._cursor.block[start:end].decode())
            except UnicodeDecodeError:
                self._cursor.fail("the word is not UTF-8; convert the file, e.g. with iconv", int(rest.lines_N[row]))
        rest.ids_NO[:, 0] = np.arange(len(self._words) - len(rest.ids_NO), len(self._words))
        return rest

    def _order_unigrams(self, section: NgramSection) -> NgramSection:
        """One row per id, the special words first; the index of the words is built here."""
        place: dict[str, int] = {}
        for number, word in enumerate(self._words):
            name = "<unk>" if word == "<UNK>" else word
            if place.setdefault(name, number) != number:
                self._cursor.fail(f"'{word}' is a duplicate; remove one", int(section.lines_N[number]))
        special = {word: place.pop(word, None) for word in MISSING}
        self._notes += [MISSING[word] for word, number in special.items() if number is None]
        self._words = list(place)
        self._index = TokenIndex(["<unk>", "</s>", *self._words, "<s>", "<UNK>"], missing=-1)
        # An additional last row is for the special words that are missing.
        probs = np.append(section.probs_N, np.float32(UNSEEN))
        backoffs = np.append(section.backoffs_N, np.float32(0))
        unk, end, begin = (-1 if number is None else number for number in special.values())
        others = list(place.values())
        ids_NO = np.arange(len(others) + 2, dtype=np.int32)[:, None]
        return NgramSection(
            ids_NO, probs[[unk, end, *others]], backoffs[[unk, begin, *others]], np.zeros(len(ids_NO), np.int64)
        )

    def _look_up_words(self, part: tuple[Array, Array, NgramSection]) -> NgramSection:
        """Look up the words of n-grams; drop the n-grams that cannot occur in a line."""
        starts_NO, ends_NO, rest = part
        ids_NO = self._index.look_up(self._cursor.data, starts_NO, ends_NO)
        if (ids_NO < 0).any():
            row, column = np.argwhere(ids_NO < 0)[0]
            word = self._cursor.block[starts_NO[row, column] : ends_NO[row, column]]
            self._cursor.fail(f"'{_excerpt(word)}' is not among the 1-grams; restore the file", int(rest.lines_N[row]))
        begin = len(self._words) + 2
        kept_N = ~((ids_NO[:, 1:] == begin).any(1) | (ids_NO[:, :-1] == EOS).any(1))
        self._misplaced += int((~kept_N).sum())
        ids_NO[ids_NO == begin] = EOS
        ids_NO[ids_NO == begin + 1] = UNK
        return NgramSection(ids_NO[kept_N], rest.probs_N[kept_N], rest.backoffs_N[kept_N], rest.lines_N[kept_N])


UNSEEN = -100.0
"""log10 p of unknown words in KenLM if the file does not give it."""

MISSING = {
    "<unk>": "the file has no <unk>; unknown words get log10 p = -100, as in KenLM",
    "</s>": "the file has no </s>; the end of a line gets log10 p = -100",
    "<s>": "the file has no <s>; the first word of a line is scored without context",
}
"""The notes about missing special words."""


def _empty_section(k: int) -> NgramSection:
    none = np.empty(0, np.float32)
    return NgramSection(np.empty((0, k), np.int32), none, none, np.empty(0, np.int64))


@njit(cache=True, nogil=True)
def _take_lines(
    data: Array,
    at: int,
    line: int,
    starts_NO: Array,
    ends_NO: Array,
    probs_N: Array,
    backoffs_N: Array,
    lines_N: Array,
    outcome: Array,
) -> tuple[int, int]:
    """Read n-grams up to the end of the data or a line that begins with a backslash -> that position, and the number.

    `outcome` is set to the problem of the last line that was read (0: none), and the number of this line.
    """
    k, used = starts_NO.shape[1], 0
    while at < len(data) and data[at] != BACKSLASH and outcome[0] == 0:
        line += 1
        fields, prob, backoff = 0, 0.0, 0.0
        while at < len(data) and data[at] != NEWLINE:
            start = at
            while at < len(data) and not _is_separator(data[at]):
                at += 1
            if at == start:
                at += 1
                continue
            if fields == 0:
                prob = take_number(data, start, at)
            elif fields <= k:
                starts_NO[used, fields - 1], ends_NO[used, fields - 1] = start, at
            else:
                backoff = take_number(data, start, at)
            fields += 1
        at += 1
        if fields > 0:
            outcome[0] = _find_problem(fields, k, prob, backoff)
            probs_N[used], backoffs_N[used], lines_N[used] = prob, backoff, line
            used += 1
    outcome[1] = line
    return at, used


@njit(cache=True, nogil=True)
def _is_separator(byte: int) -> bool:
    """Whether a byte separates fields: space, tab, newline, carriage return."""
    return byte in (SPACE, TAB, NEWLINE, RETURN)


@njit(cache=True, nogil=True)
def _find_problem(fields: int, k: int, prob: float, backoff: float) -> int:
    """The problem of a line, 0 if there is none."""
    if np.isnan(prob):
        return BAD_PROBABILITY
    if fields < k + 1 or fields > k + 2:
        return BAD_FIELDS
    return BAD_WEIGHT if np.isnan(backoff) else 0
