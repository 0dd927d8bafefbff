"""Files of labelled texts: tab-separated lines, comma-separated rows, JSON lines, or data sets.

A line is label, tab, text, and for pairs another tab and a second text; or a row of a .csv with the same columns; or an
object with these as fields. A first line with the names of the fields selects the columns. Files are streamed; labels
are kept in memory as arrays of ids. Files with a tag for each word are read by `tags.py`.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import compress, islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from chainrule.base.grammar import plural
from chainrule.errors import DataError
from chainrule.text.data_sets import DataSet, field_names, field_of, is_data_set
from chainrule.text.formats.csv_rows import CSV_SUFFIX, csv_rows
from chainrule.text.readers import Texts
from chainrule.text.sources import (
    TextSource,
    decode_line,
    file_chunks,
    find_sources,
    holds_records,
    kind_of,
    lines_of,
    name_of,
)

T = TypeVar("T")

TEXT_OPTION, LABEL_OPTION = "--field NAME", "--set data.label_field=NAME"
"""The options that name these fields, for messages."""

SHOWN = 10
"""Number of labels named in a message."""

QUOTES = ', and put a text with commas in quotes: "one, two"'
"""What a row of a .csv with too many columns usually needs."""


class Fields(NamedTuple):
    """The names of the parts of a labelled text in JSON lines and in a header."""

    text: str = "text"
    label: str = "label"
    pair: str = "text_pair"


class Example(NamedTuple):
    """A labelled text."""

    place: str  # in its file, for messages
    labels: tuple[str, ...]
    text: str
    pair: str | None = None
    listed: bool = False  # its labels are given as a list: there may be any number of them


@dataclass(frozen=True)
class Labels:
    """The labels of all texts, or the tags of all words, as ids."""

    names: tuple[str, ...]
    ids_N: NDArray[np.int32]
    ends_P: NDArray[np.int64]  # where the ids of each text or sentence end in ids_N
    multiple: bool = False  # a text may have any number of labels

    def __len__(self) -> int:
        return len(self.ends_P)


# Files


class LabelledFiles:
    """The labelled texts of some files. Every method starts from the beginning."""

    def __init__(
        self,
        paths: Sequence[str | Path],
        *,
        fields: Fields = Fields(),  # noqa: B008
        multi_label: bool = False,
        max_examples: int | None = None,
    ) -> None:
        """`multi_label`: tab-separated lines have any number of labels, joined by |; `max_examples`: limit of texts."""
        self.sources = label_sources(paths, fields)
        self.fields, self.multi_label, self.max_examples = fields, multi_label, max_examples
        self.kept_P: NDArray[np.bool_] | None = None  # which of the texts are read; None: all

    @property
    def name(self) -> str:
        return name_of(self.sources)

    def examples(self) -> Iterator[Example]:
        """All texts with their labels, in order."""
        found = islice((example for source in self.sources for example in self._read(source)), self.max_examples)
        kept = found if self.kept_P is None else compress(found, self.kept_P)
        return at_least_one(kept, self.name, "label, tab, text")

    def part(self, kept_P: NDArray[np.bool_]) -> LabelledFiles:
        """The same files, of which only some texts are read."""
        files = copy(self)
        files.kept_P = kept_P
        return files

    def _read(self, source: TextSource) -> Iterator[Example]:
        if holds_records(source.name):
            return (_json_example(place, line, self.fields) for place, line in numbered_lines(source))
        if kind_of(Path(source.name)) == CSV_SUFFIX:
            return _row_examples(csv_rows(source), self.fields, self.multi_label, "comma")
        rows = ((place, line.split("\t")) for place, line in numbered_lines(source))
        return _row_examples(rows, self.fields, self.multi_label, "tab")

    @property
    def paired(self) -> bool:
        """Whether the texts are pairs of texts, judged by the first; all must be alike."""
        return next(self.examples()).pair is not None

    @property
    def texts(self) -> Texts:
        """The texts without labels, one per line."""
        return self._column(lambda example: example.text)

    @property
    def pairs(self) -> Texts | None:
        """The second texts of pairs, one per line; None if there are none."""
        return self._column(lambda example: example.pair or "") if self.paired else None

    def _column(self, part: Callable[[Example], str]) -> Texts:
        def chunks() -> Iterator[bytes]:
            paired = self.paired
            for example in self.examples():
                if (example.pair is not None) != paired:
                    others, this = ("a second text", "none") if paired else ("no second text", "one")
                    raise DataError(
                        f"{example.place}: the texts before it have {others}, this one has {this}; give pairs or "
                        "single texts, not both."
                    )
                yield part(example).replace("\n", " ").encode() + b"\n"

        return Texts([TextSource(self.name, chunks)])

    def labels(self, known: Sequence[str] | None = None) -> Labels:
        """The labels of all texts; if some are `known`, these keep their ids, and others are errors."""
        names, ids, ends, listed = LabelNames(known), array("i"), array("q"), False
        for example in self.examples():
            listed |= example.listed
            ids.extend(names.id_of(label, example.place) for label in dict.fromkeys(example.labels))
            ends.append(len(ids))
        return names.labels(ids, ends, listed)


class LabelNames:
    """The ids of names: in alphabetical order, or the given ones."""

    def __init__(self, known: Sequence[str] | None, what: str = "label") -> None:
        self.known, self.what = known, what
        self.ids = {name: number for number, name in enumerate(known or ())}

    def id_of(self, name: str, place: str) -> int:
        """The id of a name; a name that is not known is an error if known ones were given."""
        if (found := self.ids.get(name)) is not None:
            return found
        if self.known is not None:
            raise DataError(
                f"{place}: the {self.what} '{name}' does not occur in the training data (found there: "
                f"{_listed(self.known)}); leave it out, or train with texts that have it."
            )
        return self.ids.setdefault(name, len(self.ids))

    def labels(self, ids: array[int], ends: array[int], multiple: bool) -> Labels:
        """The labels of all texts, given by ids of `id_of`, which are renumbered alphabetically if none were known."""
        ids_N = np.frombuffer(ids, np.int32) if ids else np.zeros(0, np.int32)
        names = list(self.ids)
        order = np.argsort(names, kind="stable") if self.known is None else np.arange(len(names))
        place_C = np.empty(len(names), np.int32)
        place_C[order] = np.arange(len(names), dtype=np.int32)
        return Labels(tuple(names[i] for i in order), place_C[ids_N], np.frombuffer(ends, np.int64), multiple)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def label_sources(paths: Sequence[str | Path], fields: Fields) -> list[TextSource]:
    """The files as they are, without extracting a field; the records of a data set as JSON lines."""
    found: list[TextSource] = []
    for path in paths:
        if is_data_set(path):
            found.append(_data_set(str(path), fields))
            continue
        for source in find_sources(path, "text"):
            if str(path) == "-":
                found.append(source)
            else:
                file = Path(source.name)
                found.append(TextSource(source.name, lambda file=file: file_chunks(file)))  # type: ignore[misc]
    if not found:
        raise DataError("no labelled text was given: expected a file, a folder or '-'; name at least one.")
    return found


def _data_set(spec: str, fields: Fields) -> TextSource:
    data_set, needed = DataSet(spec), {fields.text: TEXT_OPTION, fields.label: LABEL_OPTION}
    return TextSource(spec, lambda: data_set.lines(needed, [fields.pair]))


def at_least_one(found: Iterable[T], name: str, expected: str) -> Iterator[T]:
    """The items; none at all is an error."""
    empty = True
    for one in found:
        empty = False
        yield one
    if empty:
        raise DataError(f"{name} is empty: expected {expected}; give a file with at least one.")


def numbered_lines(source: TextSource, *, blank: bool = False) -> Iterator[tuple[str, str]]:
    """The lines of a file with their places, without blank ones unless `blank`."""
    for number, line in enumerate(lines_of(source.chunks()), start=1):
        if line.strip() or blank:
            place = f"{source.name}, line {number}"
            yield place, decode_line(place, line).removesuffix("\r")


# Lines


def _row_examples(
    rows: Iterable[tuple[str, list[str]]], fields: Fields, multi_label: bool, separator: str
) -> Iterator[Example]:
    """Rows of columns, between which is `separator`; the first may name the columns."""
    columns: tuple[int, ...] | None = None
    for place, parts in rows:
        if columns is None:
            columns, named = _columns(parts, fields)
            if named:
                continue
        if len(parts) < 2:
            raise DataError(
                f"{place}: no {separator} in it; expected label, {separator}, text; repair the line or leave it out."
            )
        if len(parts) <= max(columns) or (len(columns) != len(parts) and columns == (0, 1, 2)[: len(columns)]):
            raise DataError(
                f"{place}: {plural(len(parts), 'column')}, but the first line has {len(columns)}; expected as many on "
                f"each; repair the line or leave it out{QUOTES if separator == 'comma' else ''}."
            )
        label, text, *pair = (parts[column] for column in columns)
        yield Example(place, _row_labels(place, label, multi_label), text, pair[0] if pair else None, multi_label)


def _columns(parts: list[str], fields: Fields) -> tuple[tuple[int, ...], bool]:
    """The columns of label, text and second text, and whether the first line names them."""
    names = [part.strip().lower() for part in parts]
    wanted = [name.lower() for name in (fields.label, fields.text, fields.pair)]
    if set(wanted[:2]) <= set(names):
        return tuple(names.index(name) for name in wanted if name in names), True
    return (0, 1, 2)[: max(2, min(3, len(parts)))], False


def _row_labels(place: str, label: str, multi_label: bool) -> tuple[str, ...]:
    labels = [part.strip() for part in label.split("|")] if multi_label and label.strip() else [label.strip()]
    if multi_label and labels == [""]:
        return ()
    if "" in labels:
        raise DataError(f"{place}: the label is empty; expected a word; name it or leave the line out.")
    return tuple(labels)


def json_record(place: str, line: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place}: not JSON ({error}); expected one object per line; repair the line.") from None
    if not isinstance(record, dict):
        raise DataError(f"{place}: got {type(record).__name__}; expected a JSON object with text and label.")
    return record


def _json_example(place: str, line: str, fields: Fields) -> Example:
    record = json_record(place, line)
    text, pair = _json_text(place, record, fields.text, TEXT_OPTION), None
    if field_of(record, fields.pair) is not None:
        pair = _json_text(place, record, fields.pair, "--set data.pair_field=NAME")
    given = given_field(place, record, fields.label, "label", LABEL_OPTION)
    labels = given if isinstance(given, list) else [given]
    return Example(place, tuple(json_label(place, label) for label in labels), text, pair, isinstance(given, list))


def given_field(place: str, record: dict[str, Any], field: str, what: str, option: str) -> Any:
    if (value := field_of(record, field)) is None:
        raise DataError(
            f"{place}: no {what} in the field '{field}' (found {field_names(record)}); "
            f"name the right one with {option}."
        )
    return value


def _json_text(place: str, record: dict[str, Any], field: str, option: str) -> str:
    text = given_field(place, record, field, "text", option)
    if not isinstance(text, str):
        raise DataError(
            f"{place}: '{field}' is {type(text).__name__}; expected text; name the right one with {option}."
        )
    return whole_text(place, text)


def whole_text(place: str, text: str) -> str:
    """The text; an error if it has half of a surrogate pair, which JSON can express."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{place}: character {error.start} is half of a surrogate pair; expected whole Unicode characters; "
            "repair the record or leave it out."
        ) from None
    return text


def json_label(place: str, label: Any) -> str:
    """A label: a string, or a whole number as its digits."""
    if isinstance(label, int) and not isinstance(label, bool):
        return str(label)
    if not isinstance(label, str) or not label.strip():
        got = "is empty" if isinstance(label, str) else f"is {type(label).__name__}"
        raise DataError(f"{place}: the label {got}; expected a word; name it or leave the line out.")
    return whole_text(place, label.strip())
