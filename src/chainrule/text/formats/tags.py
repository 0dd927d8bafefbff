"""Files of tagged sentences: CoNLL columns, JSON lines, or data sets.

One word per line, followed by columns of which the last is its tag, and a blank line after each sentence; or one object
per line with a list of words and a list of tags. Files are streamed.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from copy import copy
from itertools import compress, islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chainrule.errors import DataError
from chainrule.text.formats.labels import (
    LABEL_OPTION,
    TEXT_OPTION,
    Fields,
    LabelNames,
    Labels,
    at_least_one,
    given_field,
    json_label,
    json_record,
    label_sources,
    numbered_lines,
)
from chainrule.text.readers import Texts
from chainrule.text.sources import TextSource, holds_records, name_of

DOCUMENT = "-DOCSTART-"
"""Begins a line of CoNLL columns that separates documents and holds no word."""


class Sentence(NamedTuple):
    """A tagged sentence."""

    place: str
    words: list[str]
    tags: list[str]


class TaggedFiles:
    """The tagged sentences of some files. Every method starts from the beginning."""

    def __init__(
        self,
        paths: Sequence[str | Path],
        *,
        fields: Fields = Fields(),  # noqa: B008
        max_examples: int | None = None,
    ) -> None:
        """`max_examples`: limit of sentences."""
        self.sources = label_sources(paths, fields)
        self.fields, self.max_examples = fields, max_examples
        self.kept_P: NDArray[np.bool_] | None = None  # which of the sentences are read; None: all

    @property
    def name(self) -> str:
        return name_of(self.sources)

    def sentences(self) -> Iterator[Sentence]:
        """All sentences with at least one word, in order."""
        every = (sentence for source in self.sources for sentence in self._read(source) if sentence.words)
        found = islice(every, self.max_examples)
        kept = found if self.kept_P is None else compress(found, self.kept_P)
        return at_least_one(kept, self.name, "a word and its tag on each line")

    def part(self, kept_P: NDArray[np.bool_]) -> TaggedFiles:
        """The same files, of which only some sentences are read."""
        files = copy(self)
        files.kept_P = kept_P
        return files

    def _read(self, source: TextSource) -> Iterator[Sentence]:
        lines = numbered_lines(source)
        if holds_records(source.name):
            return (_json_sentence(place, line, self.fields) for place, line in lines)
        return _column_sentences(numbered_lines(source, blank=True))

    def words(self, *, spaced: bool) -> Texts:
        """The words, one per line; `spaced` puts a space before each but the first of a sentence."""

        def chunks() -> Iterator[bytes]:
            for sentence in self.sentences():
                lines = (word_line(word, spaced=spaced and number > 0) for number, word in enumerate(sentence.words))
                yield "".join(lines).encode()

        return Texts([TextSource(self.name, chunks)])

    def labels(self, known: Sequence[str] | None = None) -> Labels:
        """The tags of all words; if some are `known`, these keep their ids, and others are errors."""
        names, ids, ends = LabelNames(known, "tag"), array("i"), array("q")
        for sentence in self.sentences():
            ids.extend(names.id_of(tag, sentence.place) for tag in sentence.tags)
            ends.append(len(ids))
        return names.labels(ids, ends, multiple=False)


def word_line(word: str, *, spaced: bool) -> str:
    """A word as a line."""
    return f"{' ' if spaced else ''}{word}".replace("\n", " ") + "\n"


# Sentences


def _column_sentences(lines: Iterator[tuple[str, str]]) -> Iterator[Sentence]:
    """Sentences of lines in columns, the word first and its tag last, separated by blank lines."""
    place, words, tags = "", [], []
    for here, line in lines:
        columns = line.split()
        if columns and columns[0] != DOCUMENT:
            if len(columns) == 1:
                raise DataError(
                    f"{here}: the word '{columns[0]}' has no tag; expected word and tag, a space or a tab between "
                    "them; repair the line."
                )
            place = place or here
            words.append(columns[0])
            tags.append(columns[-1])
        elif words:
            yield Sentence(place, words, tags)
            place, words, tags = "", [], []
    if words:
        yield Sentence(place, words, tags)


def _json_sentence(place: str, line: str, fields: Fields) -> Sentence:
    record = json_record(place, line)
    words = given_field(place, record, fields.text, "words", TEXT_OPTION)
    tags = given_field(place, record, fields.label, "tags", LABEL_OPTION)
    for field, found in ((fields.text, words), (fields.label, tags)):
        if not isinstance(found, list):
            raise DataError(f"{place}: '{field}' is {type(found).__name__}; expected a list with one entry per word.")
    if len(words) != len(tags):
        raise DataError(f"{place}: {len(words)} words and {len(tags)} tags; expected a tag for each word; repair it.")
    return Sentence(place, [json_label(place, word) for word in words], [json_label(place, tag) for tag in tags])
