"""Texts and corpora that are given in memory: strings, lists, and the columns and frames of other libraries.

There is one convention. Where a function **answers** (score, classify, translate …), it takes texts: a string is one
text and gives one result, a list or column gives a list of results, an iterator gives an iterator. Where a function
**reads a corpus** (train, evaluate), a string or path names a file, and a list, column or frame is the data itself.

A frame is any object with named columns (pandas, polars, Arrow, Hugging Face data sets, or a mapping of lists); it is
recognised by the protocols below, so none of these libraries is imported. A corpus in memory is written to a file in
the cache that is named after its content, so that everything that holds for files (token store, fingerprints, resuming)
holds for it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np

from chainrule.base.results import Results
from chainrule.data.store import usable_cache
from chainrule.errors import DataError
from chainrule.text.samples.texts import PREFIX
from chainrule.text.sources import SourceName

T = TypeVar("T")

FILE_NAME = re.compile(r"\S*(/\S*|\.[A-Za-z]\w{0,7})")
"""A string that reads as the name of a file: no white space, and a slash or a suffix."""
MAX_PATHS = 1000
"""Longer lists are texts."""


# Columns and frames of other libraries


@runtime_checkable
class Table(Protocol):
    """Named columns, as Arrow and Hugging Face data sets declare them."""

    @property
    def column_names(self) -> Any: ...

    def __getitem__(self, name: str, /) -> Any: ...


@runtime_checkable
class Frame(Protocol):
    """Named columns, as pandas and polars declare them."""

    @property
    def columns(self) -> Any: ...

    def __getitem__(self, name: str, /) -> Any: ...


@runtime_checkable
class Boxed(Protocol):
    """A value that has to be unwrapped, as the entries of an Arrow column."""

    def as_py(self) -> Any: ...


Texts = str | Iterable[Any] | Frame | Table
"""Texts to answer about: one string, or a list, an iterator, a column or a frame of strings."""

Data = str | Path | Iterable[Any] | Frame | Table
"""A corpus: a path, several paths, or rows, columns or a frame in memory."""


class Columns(NamedTuple):
    """The columns that a task reads."""

    row: tuple[str, ...]  # their order in a row that is a tuple
    separate: tuple[str, ...]  # their order where each is given as an object of its own
    optional: frozenset[str] = frozenset()  # of these, a corpus may lack some


def column_names(data: object) -> list[str] | None:
    """The names of the columns of a frame; None: it is not a frame."""
    if isinstance(data, Mapping):
        return [str(name) for name in data]
    if isinstance(data, Table):
        return [str(name) for name in data.column_names]
    if isinstance(data, Frame):
        return [str(name) for name in data.columns]
    return None


def _column(data: Any, name: str, option: str) -> Iterable[Any]:
    names = column_names(data) or []
    if name not in names:
        raise DataError(
            f"the {type(data).__name__} has no column '{name}' (found {', '.join(names) or 'none'}); name the right "
            f"column with {option}"
        )
    column: Iterable[Any] = data[name]
    return column


# Texts


def texts_in(texts: Texts, field: str = "text", *, newlines: bool = False) -> Iterator[str]:
    """The texts of a string, list, iterator, column or frame, one by one, each checked to be a string.

    A final newline is dropped unless `newlines`, so that the lines of an open file are texts.
    """
    if type(texts) is list and set(map(type, texts)) == {str}:  # by far the most frequent, and checked at once
        return iter(texts if newlines else [text.removesuffix("\n") for text in texts])
    return _checked(texts, field, newlines)


def _checked(texts: Texts, field: str, newlines: bool) -> Iterator[str]:
    for row, text in enumerate(_entries(texts, field)):
        yield text if newlines and isinstance(text, str) else text_at(text, row)


def labelled_in(texts: Texts, fields: tuple[str, str]) -> Iterator[str | tuple[str, str]]:
    """The texts or pairs of texts to label: entries that are strings or tuples, or the two columns of a frame."""
    if set(fields) <= set(column_names(texts) or ()):
        firsts, seconds = (_column(texts, name, "field") for name in fields)
        for row, pair in enumerate(zip(firsts, seconds, strict=True)):
            yield text_at(pair[0], row), text_at(pair[1], row)
        return
    for row, value in enumerate(_entries(texts, fields[0])):
        if not isinstance(value, tuple | list):
            yield text_at(value, row)
        elif len(value) == 2:
            yield text_at(value[0], row), text_at(value[1], row)
        else:
            raise DataError(f"row {row} (the first is row 0) has {len(value)} texts; expected one text or a pair")


def sentences_in(texts: Texts, field: str = "text") -> Iterator[list[str]]:
    """The words of sentences: an entry is a list of words, or a string that is split at white space."""
    for row, value in enumerate(_entries(texts, field)):
        words = _unboxed(value)
        if isinstance(words, str):
            yield words.split()
        elif isinstance(words, Sequence | np.ndarray):
            yield [text_at(word, row) for word in words]
        else:
            raise _no_text(words, f"row {row}", "a sentence: a list of words, or a string")


def answer(texts: Texts, found: Iterator[T]) -> T | Results[T] | Iterator[T]:
    """Of the results that are `found`: the one of one text, all as a list for a list, the iterator for an iterator."""
    if isinstance(texts, str):
        return next(found)
    return found if isinstance(texts, Iterator) else Results(found)


def text_at(value: Any, row: int) -> str:
    """One entry of a list or column as a text, without its final newline; anything but a string is an error."""
    if isinstance(value, str):
        return value[:-1] if value[-1:] == "\n" else value
    found = _unboxed(value)
    if isinstance(found, str):
        return text_at(found, row)
    raise _no_text(found, f"row {row}", "a text")


def _entries(texts: Texts, field: str) -> Iterable[Any]:
    """The entries of a column, or of the column of a frame that has the texts."""
    if isinstance(texts, str):
        return [texts]
    if isinstance(texts, Path):
        raise DataError(
            f"got the path '{texts}' where texts are expected; read the file, for example open('{texts}'), and give "
            "its lines"
        )
    if (names := column_names(texts)) is not None:
        return _column(texts, names[0] if len(names) == 1 else field, "field")
    if not isinstance(texts, Iterable):
        raise DataError(f"got {type(texts).__name__} where texts are expected; give a string or a list of strings")
    return texts


def _unboxed(value: Any) -> Any:
    """A value of another library as a value of Python."""
    if isinstance(value, np.generic):
        return value.item()
    return value.as_py() if isinstance(value, Boxed) else value


def _is_missing(value: Any) -> bool:
    """None, NaN, and the NA and NaT of pandas, recognised by name."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, float) and value != value


def _no_text(value: Any, place: str, expected: str) -> DataError:
    if _is_missing(value):
        return DataError(
            f"{place} (the first is row 0) is missing ({value}); expected {expected}; drop such rows or fill them in"
        )
    return DataError(
        f"{place} (the first is row 0) has type {type(value).__name__}; expected {expected}; convert or drop it"
    )


# Corpora


def corpus_paths(data: Data, columns: Columns) -> list[SourceName]:
    """The files of a corpus: those it names, or one in the cache with the data that it is. Given these, the same."""
    if isinstance(data, str | Path):
        return [_checked_path(data)]
    if isinstance(data, Sequence) and _are_paths(data):
        return [_checked_path(path) for path in data]
    return [_write(data, columns)]


def joined_paths(corpora: Sequence[Data], columns: Columns) -> list[SourceName]:
    """The files of several corpora; several columns in memory are one corpus if the task reads several."""
    in_memory = [one for one in corpora if not isinstance(one, str | Path)]
    if len(corpora) > 1 and len(in_memory) == len(corpora) and _are_columns(corpora, columns):
        return corpus_paths(tuple(corpora), columns)
    return [path for one in corpora for path in corpus_paths(one, columns)]


def _checked_path(path: str | Path) -> SourceName:
    if "\n" in str(path) or len(str(path)) > 1024:
        raise DataError(
            f"got a text of {len(str(path)):,} characters where the path of a file is expected; give texts as a list: "
            "[text]"
        )
    return SourceName(path)


def _are_paths(data: Sequence[Any]) -> bool:
    """Whether all entries name files or other sources; nothing at all is no text either."""
    if len(data) > MAX_PATHS:
        return False
    return all(isinstance(one, Path | SourceName) or (isinstance(one, str) and _names_source(one)) for one in data)


def _names_source(text: str) -> bool:
    if text == "-" or text.startswith(("hf:", PREFIX)):
        return True
    return len(text) < 1024 and "\n" not in text and bool(FILE_NAME.fullmatch(text) or os.path.exists(text))


def _are_columns(data: Sequence[Any], columns: Columns) -> bool:
    """Whether these are the columns of a task, each a list or column of its own, rather than rows."""
    return len(data) == len(columns.separate) > 1 and not any(
        isinstance(one, str | Path | tuple) or column_names(one) is not None for one in data
    )


def _write(data: Data, columns: Columns) -> SourceName:
    """Write data in memory to a file that is named after its content -> its path."""
    plain = len(columns.row) == 1 and column_names(data) is None
    digest, folder = hashlib.blake2b(digest_size=8), usable_cache() / "texts"
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("wb", dir=folder, delete=False) as file:
        try:
            for row, line in enumerate(_plain_lines(data) if plain else _json_lines(data, columns)):
                encoded = _encoded(line, row)
                digest.update(encoded)
                file.write(encoded)
        except BaseException:
            os.unlink(file.name)
            raise
    path = folder / f"data-{digest.hexdigest()}.{'txt' if plain else 'jsonl'}"
    os.replace(file.name, path)
    return SourceName(path)


def _encoded(line: str, row: int) -> bytes:
    try:
        return line.encode() + b"\n"
    except UnicodeEncodeError as error:
        raise DataError(
            f"row {row} (the first is row 0): character {error.start} is half of a surrogate pair; expected whole "
            "Unicode characters; repair the row or drop it"
        ) from None


def _plain_lines(data: Any) -> Iterator[str]:
    for row, value in enumerate(_entries(data, "text")):
        if isinstance(value, tuple | list | Mapping):
            raise DataError(
                f"row {row} has several values, but the model reads one text; give a list of strings, or choose a "
                "classifier or translator"
            )
        yield text_at(value, row)


def _json_lines(data: Any, columns: Columns) -> Iterator[str]:
    rows = _frame_rows(data, columns) if column_names(data) is not None else None
    if rows is None and isinstance(data, tuple) and _are_columns(data, columns):
        rows = _frame_rows(dict(zip(columns.separate, data, strict=True)), columns)
    for number, row in enumerate(_tuple_rows(data, columns) if rows is None else rows):
        record = {name: _json_value(value, number, name) for name, value in row.items()}
        yield json.dumps(record, ensure_ascii=False)


def _frame_rows(data: Any, columns: Columns) -> Iterator[dict[str, Any]]:
    """The rows of a frame, of the columns that the task reads."""
    names = column_names(data) or []
    wanted = [name for name in columns.row if name in names or name not in columns.optional]
    options = "field, label_field, pair_field, source_field or target_field"
    found = [list(_column(data, name, options)) for name in wanted]
    if len({len(column) for column in found}) > 1:
        sizes = ", ".join(f"'{name}' has {len(column):,}" for name, column in zip(wanted, found, strict=True))
        raise DataError(f"the columns have different lengths ({sizes}); give one entry for each row")
    return (dict(zip(wanted, values, strict=True)) for values in zip(*found, strict=True))


def _tuple_rows(data: Any, columns: Columns) -> Iterator[dict[str, Any]]:
    """Rows that are mappings, or tuples in the order of the columns."""
    least = len(columns.row) - len(columns.optional)
    for number, row in enumerate(data):
        if isinstance(row, Mapping):
            yield {name: row.get(name) for name in columns.row if name in row or name not in columns.optional}
            continue
        if isinstance(row, str) or not isinstance(row, Sequence | np.ndarray):
            got = "one text" if isinstance(row, str) else type(row).__name__
            raise DataError(f"row {number} (the first is row 0) is {got}; expected {_row_form(columns)}, or a mapping")
        if not least <= len(row) <= len(columns.row):
            got = "1 value" if len(row) == 1 else f"{len(row)} values"
            raise DataError(f"row {number} (the first is row 0) has {got}; expected {_row_form(columns)}, or a mapping")
        yield dict(zip(columns.row, row, strict=False))


def _row_form(columns: Columns) -> str:
    """(label, text[, text_pair])"""
    return "(" + ", ".join(f"[{name}]" if name in columns.optional else name for name in columns.row) + ")"


def _json_value(value: Any, row: int, name: str) -> Any:
    found = _unboxed(value)
    if isinstance(found, list | tuple | np.ndarray):
        return [_json_value(one, row, name) for one in found]
    if isinstance(found, bool) or not isinstance(found, str | int):
        raise _no_text(found, f"row {row} of '{name}'", "a text or a label (a string or a whole number)")
    return found


def several_texts(texts: Texts) -> list[str]:
    """The texts, which must be several strings; a table or matrix of one column counts as its column."""
    if isinstance(texts, str):
        raise DataError("got one string; expected a list or column of texts; give [text]")
    one_column = not isinstance(texts, dict) and len(column_names(texts) or ()) == 1
    if one_column or (isinstance(texts, np.ndarray) and texts.ndim == 2 and texts.shape[1] == 1):
        texts = np.asarray(texts)[:, 0]
    found = list(texts_in(texts))
    if not found:
        raise DataError("got no texts; expected at least one; give a list or column of texts")
    return found
