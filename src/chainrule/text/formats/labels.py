"""Labelled texts, as they stand in files: tab-separated lines, or JSON lines.

A line is label, tab, text, and a second text after another tab if they are pairs; or an object with these as fields.
Files are streamed; what is kept of the labels is their numbers in arrays. For a tag behind each word see tagged.py.

Legend: P texts or sentences, N labels or words of all of them.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from chainrule.errors import DataError
from chainrule.text.readers import Texts
from chainrule.text.sources import JSON_SUFFIXES, Source, file_chunks, find_sources, kind_of, lines_of

T = TypeVar("T")

SHOWN = 10
"""So many labels are named in a message."""


class Fields(NamedTuple):
    """What the parts of a labelled text are called in JSON lines and in a header."""

    text: str = "text"
    label: str = "label"
    pair: str = "text_pair"


class Example(NamedTuple):
    """A labelled text."""

    place: str  # in its file, for messages
    labels: tuple[str, ...]
    text: str
    pair: str | None = None
    listed: bool = False  # its labels were given as a list: there may be any number of them


@dataclass(frozen=True)
class Labels:
    """The labels of all texts, or the tags of all words, by number."""

    names: tuple[str, ...]
    ids_N: NDArray[np.int32]
    ends_P: NDArray[np.int64]  # where in ids_N those of each text or sentence end
    multiple: bool = False  # whether a text may have any number of them

    def __len__(self) -> int:
        return len(self.ends_P)


# Files


class LabelledFiles:
    """Labelled texts of some files. Every method starts from the beginning."""

    def __init__(
        self,
        paths: Sequence[str | Path],
        *,
        fields: Fields = Fields(),  # noqa: B008
        several: bool = False,
        most: int | None = None,
    ) -> None:
        """`several`: a label of tab-separated lines may be several, joined by |; `most`: read so many texts."""
        self.sources = label_sources(paths)
        self.fields, self.several, self.most = fields, several, most

    @property
    def name(self) -> str:
        return name_of(self.sources)

    def examples(self) -> Iterator[Example]:
        """All texts with their labels, in order."""
        found = (example for source in self.sources for example in self._read(source))
        return at_least_one(islice(found, self.most), self.name, "label, tab, text")

    def _read(self, source: Source) -> Iterator[Example]:
        lines = numbered_lines(source)
        if kind_of(Path(source.name)) in JSON_SUFFIXES:
            return (_json_example(place, line, self.fields) for place, line in lines)
        return _tab_examples(lines, self.fields, self.several)

    @property
    def paired(self) -> bool:
        """Whether the texts are pairs of texts: as the first is, so must all be."""
        return next(self.examples()).pair is not None

    @property
    def texts(self) -> Texts:
        """The texts alone, one a line."""
        return self._column(lambda example: example.text)

    @property
    def pairs(self) -> Texts | None:
        """The second texts, one a line; None if there are none."""
        return self._column(lambda example: example.pair or "") if self.paired else None

    def _column(self, part: Callable[[Example], str]) -> Texts:
        def chunks() -> Iterator[bytes]:
            paired = self.paired
            for example in self.examples():
                if (example.pair is not None) != paired:
                    told = ("a second text", "none") if paired else ("no second text", "one")
                    raise DataError(
                        f"{example.place}: the texts before it have {told[0]}, this one has {told[1]}; give pairs or "
                        "single texts, not both."
                    )
                yield part(example).replace("\n", " ").encode() + b"\n"

        return Texts([Source(self.name, chunks)])

    def labels(self, known: Sequence[str] | None = None) -> Labels:
        """The labels of all texts; those that are `known` keep their numbers, and others are refused."""
        names, ids, ends, listed = Names(known), array("i"), array("q"), False
        for example in self.examples():
            listed |= example.listed
            ids.extend(names.number(label, example.place) for label in dict.fromkeys(example.labels))
            ends.append(len(ids))
        return names.labels(ids, ends, listed)


class Names:
    """Names to numbers, in the order of the alphabet, or as they are known."""

    def __init__(self, known: Sequence[str] | None, what: str = "label") -> None:
        self.known, self.what = known, what
        self.numbers = {name: number for number, name in enumerate(known or ())}

    def number(self, name: str, place: str) -> int:
        if (found := self.numbers.get(name)) is not None:
            return found
        if self.known is not None:
            raise DataError(
                f"{place}: the {self.what} '{name}' does not come in the training data (found there: "
                f"{_listed(self.known)}); leave it out, or train with texts that have it."
            )
        return self.numbers.setdefault(name, len(self.numbers))

    def labels(self, ids: array[int], ends: array[int], multiple: bool) -> Labels:
        ids_N = np.frombuffer(ids, np.int32) if ids else np.zeros(0, np.int32)
        names = list(self.numbers)
        order = np.argsort(names, kind="stable") if self.known is None else np.arange(len(names))
        place_L = np.empty(len(names), np.int32)
        place_L[order] = np.arange(len(names), dtype=np.int32)
        return Labels(tuple(names[i] for i in order), place_L[ids_N], np.frombuffer(ends, np.int64), multiple)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def label_sources(paths: Sequence[str | Path]) -> list[Source]:
    """The files themselves, whatever is in them."""
    found: list[Source] = []
    for path in paths:
        if str(path).startswith("hf:"):
            raise DataError(f"got {path} for labelled text: expected files or '-'; save the data set as JSON lines.")
        for source in find_sources(path, "text"):
            if str(path) == "-":
                found.append(source)
            else:
                file = Path(source.name)
                found.append(Source(source.name, lambda file=file: file_chunks(file)))  # type: ignore[misc]
    if not found:
        raise DataError("no labelled text was given: expected a file, a folder or '-'; name at least one.")
    return found


def name_of(sources: Sequence[Source]) -> str:
    others = len(sources) - 1
    return sources[0].name + (f" and {others} more" if others else "")


def at_least_one(found: Iterable[T], name: str, expected: str) -> Iterator[T]:
    """What was found, which must be something."""
    empty = True
    for one in found:
        empty = False
        yield one
    if empty:
        raise DataError(f"{name} is empty: expected {expected}; give a file with at least one.")


def numbered_lines(source: Source, *, blank: bool = False) -> Iterator[tuple[str, str]]:
    """The lines of a file with their places; those with nothing in them are left out, unless `blank` ones count."""
    for number, line in enumerate(lines_of(source.chunks()), start=1):
        if line.strip() or blank:
            place = f"{source.name}, line {number}"
            try:
                yield place, line.decode().removesuffix("\r")
            except UnicodeDecodeError as error:
                raise DataError(
                    f"{place}: byte {error.start} is 0x{line[error.start]:02x}; expected UTF-8 text; convert the file "
                    "(iconv -f latin1 -t utf-8)."
                ) from None


# Lines


def _tab_examples(lines: Iterator[tuple[str, str]], fields: Fields, several: bool) -> Iterator[Example]:
    """Tab-separated lines; the first may name the columns."""
    columns: tuple[int, ...] | None = None
    for place, line in lines:
        parts = line.split("\t")
        if columns is None:
            columns, named = _columns(parts, fields)
            if named:
                continue
        if len(parts) < 2:
            raise DataError(f"{place}: no tab in it; expected label, tab, text; repair the line or leave it out.")
        if len(parts) <= max(columns) or (len(columns) != len(parts) and columns == (0, 1, 2)[: len(columns)]):
            raise DataError(
                f"{place}: {len(parts)} columns, but the first line has {len(columns)}; expected as many on each; "
                "repair the line or leave it out."
            )
        label, text, *pair = (parts[column] for column in columns)
        yield Example(place, _tab_labels(place, label, several), text, pair[0] if pair else None, several)


def _columns(parts: list[str], fields: Fields) -> tuple[tuple[int, ...], bool]:
    """Where label, text and second text stand, and whether the first line named them."""
    names = [part.strip().lower() for part in parts]
    wanted = [name.lower() for name in (fields.label, fields.text, fields.pair)]
    if set(wanted[:2]) <= set(names):
        return tuple(names.index(name) for name in wanted if name in names), True
    return (0, 1, 2)[: max(2, min(3, len(parts)))], False


def _tab_labels(place: str, label: str, several: bool) -> tuple[str, ...]:
    labels = [part.strip() for part in label.split("|")] if several and label.strip() else [label.strip()]
    if several and labels == [""]:
        return ()
    if "" in labels:
        raise DataError(f"{place}: the label is empty; expected a word before the tab; name it or leave the line out.")
    return tuple(labels)


def json_record(place: str, line: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place}: not JSON ({error}); expected one object a line; repair the line.") from None
    if not isinstance(record, dict):
        raise DataError(f"{place}: got {type(record).__name__}; expected a JSON object with text and label.")
    return record


def _json_example(place: str, line: str, fields: Fields) -> Example:
    record = json_record(place, line)
    text, pair = _json_text(place, record, fields.text, "--field NAME"), None
    if record.get(fields.pair) is not None:
        pair = _json_text(place, record, fields.pair, "--set data.pair_field=NAME")
    given = given_field(place, record, fields.label, "label", "--set data.label_field=NAME")
    labels = given if isinstance(given, list) else [given]
    return Example(place, tuple(json_label(place, label) for label in labels), text, pair, isinstance(given, list))


def given_field(place: str, record: dict[str, Any], field: str, what: str, option: str) -> Any:
    if record.get(field) is None:
        raise DataError(
            f"{place}: no {what} in the field '{field}' (found {', '.join(record) or 'none'}); name the right one with "
            f"{option}."
        )
    return record[field]


def _json_text(place: str, record: dict[str, Any], field: str, option: str) -> str:
    text = given_field(place, record, field, "text", option)
    if not isinstance(text, str):
        raise DataError(
            f"{place}: '{field}' is {type(text).__name__}; expected text; name the right one with {option}."
        )
    return whole_text(place, text)


def whole_text(place: str, text: str) -> str:
    """A text of whole characters, which JSON can write half of."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{place}: character {error.start} is half of a surrogate pair; expected whole Unicode characters; "
            "repair the record or leave it out."
        ) from None
    return text


def json_label(place: str, label: Any) -> str:
    """A name, or a whole number as its digits."""
    if isinstance(label, int) and not isinstance(label, bool):
        return str(label)
    if not isinstance(label, str) or not label.strip():
        got = "is empty" if isinstance(label, str) else f"is {type(label).__name__}"
        raise DataError(f"{place}: the label {got}; expected a word; name it or leave the line out.")
    return whole_text(place, label.strip())
