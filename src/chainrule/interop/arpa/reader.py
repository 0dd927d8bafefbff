"""What an ARPA file says, section by section, checked line by line; `arpa_trie.py` makes a table of it.

Files of many tools are read: fields between spaces or tabs, back-off weights left out, lines of a section in any order,
blank lines anywhere, any text before the data, line ends of any kind, compressed files.

Legend: R n-grams of a section, K words of an n-gram.
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
from chainrule.base.progress import Progress
from chainrule.errors import DataError
from chainrule.interop.arpa.numbers import take_number
from chainrule.text.readers import Texts, open_texts
from chainrule.text.tokenizers import word_table as wordtable

UNK, EOS = 0, 1
"""The ids of `<unk>` and of `<s>` and `</s>`; words follow in the order of the file."""

COUNT = re.compile(rb"ngram\s+(\d+)\s*=\s*(\d+)")
HEAD = re.compile(rb"\\(\d+)-grams:")
NO_NUMBER, WRONG_FIELDS, NO_WEIGHT = 1, 2, 3
SPACE, TAB, NEWLINE, RETURN, BACKSLASH = 0x20, 0x09, 0x0A, 0x0D, 0x5C


@dataclass
class Section:
    """N-grams of K words. What has no back-off weight in the file has 0, a factor of one."""

    ids_RK: Array  # int32
    probs_R: Array  # float32, log10
    backoffs_R: Array  # float32, log10
    lines_R: Array  # int64: where each stands in the file


@dataclass
class Content:
    """A whole file."""

    words: list[str]  # the ids from 2 on
    sections: list[Section]
    notes: list[str] = field(default_factory=list)


class _Cursor:
    """Goes through a file block by block, keeping count of lines."""

    def __init__(self, texts: Texts) -> None:
        self.name = texts.name
        self._blocks = (block.data for block in texts.blocks())
        self.block = b""
        self.data = np.empty(0, np.uint8)  # the same bytes
        self.at, self.line = 0, 0

    def more(self) -> bool:
        """Have something to read; False at the end of the file."""
        while self.at >= len(self.block):
            if (block := next(self._blocks, None)) is None:
                return False
            self.block, self.data, self.at = block, np.frombuffer(block, np.uint8), 0
        return True

    def next_line(self) -> bytes | None:
        """The next line that is not blank, without white space around it; None at the end of the file."""
        while self.more():
            end = self.block.find(b"\n", self.at)
            end = len(self.block) if end < 0 else end
            line = self.block[self.at : end].strip()
            self.at, self.line = end + 1, self.line + 1
            if line:
                return line
        return None

    def fail(self, what: str, line: int | None = None) -> NoReturn:
        """Raise for a line, by default for the one just read."""
        raise DataError(f"{self.name}, line {self.line if line is None else line}: {what}")


def read_content(path: str | Path, progress: Progress | None = None) -> Content:
    """All n-grams of a file."""
    cursor = _Cursor(open_texts([path]))
    sizes = _read_counts(cursor)
    reader = _Reader(cursor, sizes, progress)
    for k in range(1, len(sizes) + 1):
        reader.read(k)
    if (line := cursor.next_line()) != b"\\end\\":
        _fail_truncated(cursor, line, "\\end\\")
    return reader.content()


def _read_counts(cursor: _Cursor) -> list[int]:
    """The head of a file -> the number of n-grams of each order. The first section's own head is read over."""
    while (line := cursor.next_line()) != b"\\data\\":
        if line is None or cursor.line > 1000 or b"\0" in line:
            raise DataError(f"{cursor.name} is not an ARPA file: it has no line \\data\\; give a model in ARPA format")
    sizes: list[int] = []
    while (line := cursor.next_line()) is not None and (found := COUNT.fullmatch(line)):
        if int(found[1]) != len(sizes) + 1:
            cursor.fail(f"expected the count of {len(sizes) + 1}-grams but got '{_shown(line)}'; restore the file")
        sizes.append(int(found[2]))
    if not sizes:
        cursor.fail("expected 'ngram 1=' and a number after \\data\\; restore the file")
    _check_head(cursor, line, 1)
    return sizes


def _check_head(cursor: _Cursor, line: bytes | None, k: int) -> None:
    found = HEAD.fullmatch(line or b"")
    if not found or int(found[1]) != k:
        _fail_truncated(cursor, line, f"\\{k}-grams:")


def _fail_truncated(cursor: _Cursor, line: bytes | None, expected: str) -> NoReturn:
    if line is None:
        raise DataError(f"{cursor.name} is truncated: it ends before {expected}; copy or make it again")
    cursor.fail(f"expected {expected} but got '{_shown(line)}'; restore the file")


def _shown(text: bytes) -> str:
    """A piece of a file in a message."""
    return text[:40].decode(errors="replace")


class _Reader:
    """Reads the sections of a file one after the other."""

    def __init__(self, cursor: _Cursor, sizes: list[int], progress: Progress | None) -> None:
        self._cursor, self._sizes, self._progress = cursor, sizes, progress
        self._sections: list[Section] = []
        self._words: list[str] = []
        self._index = wordtable.TokenIndex([], missing=-1)
        self._done = self._misplaced = self._positive = 0
        self._notes: list[str] = []

    def read(self, k: int) -> None:
        """The section of n-grams of k words; the head of the first was read already."""
        if k > 1:
            _check_head(self._cursor, self._cursor.next_line(), k)
        parts = [self._words_of(part) if k == 1 else self._ids_of(part) for part in self._blocks(k)]
        fields = [np.concatenate([getattr(part, name) for part in parts]) for name in Section.__annotations__]
        section = Section(*fields)
        self._positive += int((section.probs_R > 0).sum())
        np.minimum(section.probs_R, 0, out=section.probs_R)
        self._sections.append(self._unigrams(section) if k == 1 else section)

    def content(self) -> Content:
        if self._misplaced:
            self._notes.append(
                f"{self._misplaced:,} n-grams have <s> after their first word or </s> before their last; left out"
            )
        if self._positive:
            self._notes.append(f"{self._positive:,} n-grams have a log-probability above 0; taken as 0")
        return Content(self._words, self._sections, self._notes)

    # Lines

    def _blocks(self, k: int) -> Iterator[tuple[Array, Array, Section]]:
        """The n-grams of a section in parts: where their words begin and end, and the rest (ids still empty)."""
        cursor, found, expected = self._cursor, 0, self._sizes[k - 1]
        while cursor.more() and cursor.data[cursor.at] != BACKSLASH:
            rows = int((cursor.data[cursor.at :] == NEWLINE).sum()) + 1
            starts_RK, ends_RK = np.empty((rows, k), np.int64), np.empty((rows, k), np.int64)
            probs_R, backoffs_R = np.empty(rows, np.float32), np.empty(rows, np.float32)
            lines_R, outcome = np.empty(rows, np.int64), np.zeros(2, np.int64)
            cursor.at, used = _take_lines(
                cursor.data, cursor.at, cursor.line, starts_RK, ends_RK, probs_R, backoffs_R, lines_R, outcome
            )
            cursor.line = int(outcome[1])
            self._check_outcome(int(outcome[0]), k)
            found += used
            self._done += used
            if self._progress:
                self._progress(self._done, sum(self._sizes))
            rest = Section(np.empty((used, k), np.int32), probs_R[:used], backoffs_R[:used], lines_R[:used])
            yield starts_RK[:used], ends_RK[:used], rest
        if found != expected:
            if not cursor.more():
                _fail_truncated(cursor, None, "\\end\\")
            raise DataError(
                f"{cursor.name}: section \\{k}-grams: has {found} n-grams, but the head says {expected}; make it again"
            )
        if not found:
            yield np.empty((0, k), np.int64), np.empty((0, k), np.int64), _empty_section(k)

    def _check_outcome(self, outcome: int, k: int) -> None:
        if outcome == NO_NUMBER:
            self._cursor.fail("expected a log-probability first; restore the file")
        if outcome == WRONG_FIELDS:
            self._cursor.fail(f"expected a log-probability, {k} word(s) and maybe a back-off weight; restore the file")
        if outcome == NO_WEIGHT:
            self._cursor.fail(f"expected a back-off weight after {k} word(s); restore the file")

    # Words

    def _words_of(self, part: tuple[Array, Array, Section]) -> Section:
        """Unigrams get new ids: their place in the file."""
        starts_RK, ends_RK, rest = part
        for row, (start, end) in enumerate(zip(starts_RK[:, 0].tolist(), ends_RK[:, 0].tolist(), strict=True)):
            try:
                self._words.append(self._cursor.block[start:end].decode())
            except UnicodeDecodeError:
                self._cursor.fail("the word is not UTF-8; convert the file, e.g. with iconv", int(rest.lines_R[row]))
        rest.ids_RK[:, 0] = np.arange(len(self._words) - len(rest.ids_RK), len(self._words))
        return rest

    def _unigrams(self, section: Section) -> Section:
        """One row for each id, the marks first; from here on words can be looked up."""
        place: dict[str, int] = {}
        for number, word in enumerate(self._words):
            name = "<unk>" if word == "<UNK>" else word
            if place.setdefault(name, number) != number:
                self._cursor.fail(f"'{word}' comes a second time; leave one out", int(section.lines_R[number]))
        marks = {mark: place.pop(mark, None) for mark in MISSING}
        self._notes += [MISSING[mark] for mark, number in marks.items() if number is None]
        self._words = list(place)
        self._index = wordtable.TokenIndex(["<unk>", "</s>", *self._words, "<s>", "<UNK>"], missing=-1)
        # One row more than the file has, the last, is for marks that are missing.
        probs = np.append(section.probs_R, np.float32(UNSEEN))
        backoffs = np.append(section.backoffs_R, np.float32(0))
        unk, end, begin = (-1 if number is None else number for number in marks.values())
        others = list(place.values())
        ids_RK = np.arange(len(others) + 2, dtype=np.int32)[:, None]
        return Section(
            ids_RK, probs[[unk, end, *others]], backoffs[[unk, begin, *others]], np.zeros(len(ids_RK), np.int64)
        )

    def _ids_of(self, part: tuple[Array, Array, Section]) -> Section:
        """The n-grams of a part by the ids of their words, without those that no line of text has."""
        starts_RK, ends_RK, rest = part
        ids_RK = self._index.look_up(self._cursor.data, starts_RK, ends_RK)
        if (ids_RK < 0).any():
            row, column = np.argwhere(ids_RK < 0)[0]
            word = self._cursor.block[starts_RK[row, column] : ends_RK[row, column]]
            self._cursor.fail(f"'{_shown(word)}' is not among the 1-grams; restore the file", int(rest.lines_R[row]))
        begin = len(self._words) + 2
        kept_R = ~((ids_RK[:, 1:] == begin).any(1) | (ids_RK[:, :-1] == EOS).any(1))
        self._misplaced += int((~kept_R).sum())
        ids_RK[ids_RK == begin] = EOS
        ids_RK[ids_RK == begin + 1] = UNK
        return Section(ids_RK[kept_R], rest.probs_R[kept_R], rest.backoffs_R[kept_R], rest.lines_R[kept_R])


UNSEEN = -100.0
"""KenLM's log10 p of unknown words where a file does not give it."""

MISSING = {
    "<unk>": "the file has no <unk>; unknown words get log10 p = -100, as KenLM gives them",
    "</s>": "the file has no </s>; the end of a line gets log10 p = -100",
    "<s>": "the file has no <s>; a line begins as if nothing was known before it",
}


def _empty_section(k: int) -> Section:
    none = np.empty(0, np.float32)
    return Section(np.empty((0, k), np.int32), none, none, np.empty(0, np.int64))


@njit(cache=True, nogil=True)
def _take_lines(
    data: Array,
    at: int,
    line: int,
    starts_RK: Array,
    ends_RK: Array,
    probs_R: Array,
    backoffs_R: Array,
    lines_R: Array,
    outcome: Array,
) -> tuple[int, int]:
    """Read n-grams up to the end of the data or a line that begins with a backslash -> where that is, and how many.

    `outcome` gets what was wrong with the last line that was read (0: nothing), and its number.
    """
    k, used = starts_RK.shape[1], 0
    while at < len(data) and data[at] != BACKSLASH and outcome[0] == 0:
        line += 1
        fields, prob, backoff = 0, 0.0, 0.0
        while at < len(data) and data[at] != NEWLINE:
            start = at
            while at < len(data) and not _is_gap(data[at]):
                at += 1
            if at == start:
                at += 1
                continue
            if fields == 0:
                prob = take_number(data, start, at)
            elif fields <= k:
                starts_RK[used, fields - 1], ends_RK[used, fields - 1] = start, at
            else:
                backoff = take_number(data, start, at)
            fields += 1
        at += 1
        if fields > 0:
            outcome[0] = _judge(fields, k, prob, backoff)
            probs_R[used], backoffs_R[used], lines_R[used] = prob, backoff, line
            used += 1
    outcome[1] = line
    return at, used


@njit(cache=True, nogil=True)
def _is_gap(byte: int) -> bool:
    """What separates fields: space, tab, newline, carriage return."""
    return byte in (SPACE, TAB, NEWLINE, RETURN)


@njit(cache=True, nogil=True)
def _judge(fields: int, k: int, prob: float, backoff: float) -> int:
    """What is wrong with a line, 0 if nothing is."""
    if np.isnan(prob):
        return NO_NUMBER
    if fields < k + 1 or fields > k + 2:
        return WRONG_FIELDS
    return NO_WEIGHT if np.isnan(backoff) else 0
