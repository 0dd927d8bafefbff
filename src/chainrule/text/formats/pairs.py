"""Pairs of lines: two parallel files, one file of tab-separated lines, comma-separated rows or JSON lines, a data set.

Pairs are two `Texts`, source and target, of which lines with the same number belong together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from chainrule.base.grammar import plural
from chainrule.errors import DataError
from chainrule.text.data_sets import DataSet, is_data_set
from chainrule.text.formats.csv_rows import CSV_SUFFIX, csv_rows
from chainrule.text.readers import Texts, open_texts
from chainrule.text.sources import TextSource, file_chunks, holds_records, kind_of, lines_of, record_text
from chainrule.text.splitting import some_lines

COLUMN_SUFFIXES = (".tsv", CSV_SUFFIX)
"""Files with the source and the target in columns."""


class Pairs(NamedTuple):
    """Sources and targets, line by line."""

    source: Texts
    target: Texts

    @property
    def name(self) -> str:
        return self.source.name if self.source.name == self.target.name else f"{self.source.name}, {self.target.name}"


def hold_pairs(path: str | Path) -> bool:
    """Whether one file or data set holds both sides, judged by its name."""
    return holds_records(path) or kind_of(Path(path)) in COLUMN_SUFFIXES


def open_pairs(paths: Sequence[str | Path], *, fields: tuple[str, str] = ("source", "target")) -> Pairs:
    """The pairs of two parallel files, or of files and data sets that hold both sides.

    A line of a .tsv is source, tab, target, a row of a .csv source, comma, target; a first line with the names of both
    `fields` selects the columns. A line of a .jsonl, like a record of a data set, is an object with both fields.
    """
    if paths and all(hold_pairs(path) for path in paths):
        for path in paths:
            open_texts([path])  # raises if the file is missing
        sources = [_records_of(path, fields) for path in paths]
        return Pairs(*(Texts([_side(source, side, fields) for source in sources]) for side in (0, 1)))
    if len(paths) != 2:
        raise DataError(
            f"got {plural(len(paths), 'file')} for pairs of lines: expected two, source then target, or one .tsv, "
            ".csv, .jsonl or hf:NAME:SPLIT with both; name them."
        )
    return Pairs(open_texts(paths[:1]), open_texts(paths[1:]))


def _records_of(path: str | Path, fields: tuple[str, str]) -> TextSource:
    """The lines of a file, or the records of a data set as JSON lines."""
    if not is_data_set(path):
        return TextSource(str(path), lambda: file_chunks(Path(path)))
    data_set = DataSet(str(path))
    return TextSource(str(path), lambda: data_set.lines({field: _option(side) for side, field in enumerate(fields)}))


def _option(side: int) -> str:
    """The option that names the field of a side, for messages."""
    return f"--set data.{('source', 'target')[side]}_field=NAME"


def _side(source: TextSource, side: int, fields: tuple[str, str]) -> TextSource:
    """The source (0) or target (1) of the pairs in one file."""
    if holds_records(source.name):
        return TextSource(source.name, lambda: _json_column(source, side, _json_field(fields)))
    if kind_of(Path(source.name)) == CSV_SUFFIX:
        return TextSource(source.name, lambda: _csv_column(csv_rows(source), side, fields))
    return TextSource(source.name, lambda: _tab_column(source, side, fields))


def _numbered(source: TextSource) -> Iterator[tuple[str, bytes]]:
    """The lines of a file with their places; the last may lack its newline."""
    lines = lines_of(source.chunks())
    current = next(lines)
    for number, following in enumerate(lines, start=1):
        yield f"{source.name}, line {number}", current
        current = following
    if current:
        yield f"{source.name}, last line", current


def _json_column(source: TextSource, side: int, field: Callable[[str, bytes, int], bytes]) -> Iterator[bytes]:
    return (field(place, line, side) for place, line in _numbered(source) if line.strip())


def _tab_column(source: TextSource, side: int, fields: tuple[str, str]) -> Iterator[bytes]:
    columns: tuple[int, int] | None = None
    for place, line in _numbered(source):
        parts = line.rstrip(b"\r").split(b"\t")
        if columns is None:
            columns, named = _columns([part.decode(errors="replace") for part in parts], fields)
            if named:
                continue
        if len(parts) <= max(columns):
            raise DataError(f"{place}: no tab in it; expected source, tab, target; repair the line or leave it out.")
        yield parts[columns[side]] + b"\n"


def _csv_column(rows: Iterator[tuple[str, list[str]]], side: int, fields: tuple[str, str]) -> Iterator[bytes]:
    columns: tuple[int, int] | None = None
    for place, parts in rows:
        if columns is None:
            columns, named = _columns(parts, fields)
            width = len(parts)
            if named:
                continue
        if len(parts) != width or width < 2:
            expected = f"{width} as in the first row" if width > 1 else "two, source and target"
            raise DataError(
                f"{place}: {plural(len(parts), 'column')}; expected {expected}; put a text with commas in quotes, or "
                "leave the row out."
            )
        yield parts[columns[side]].replace("\n", " ").encode() + b"\n"


def _columns(parts: list[str], fields: tuple[str, str]) -> tuple[tuple[int, int], bool]:
    """The columns of source and target, and whether the first line names them."""
    names, wanted = [part.strip().lower() for part in parts], [field.lower() for field in fields]
    if set(wanted) <= set(names):
        return (names.index(wanted[0]), names.index(wanted[1])), True
    return (0, 1), False


def _json_field(fields: tuple[str, str]) -> Callable[[str, bytes, int], bytes]:
    def column(place: str, line: bytes, side: int) -> bytes:
        return record_text(place, line, fields[side], _option(side))[:-1].replace(b"\n", b" ") + b"\n"

    return column


def prefixed(pairs: Pairs, prefix: str) -> Pairs:
    """The pairs with `prefix` before every source that is not empty."""
    before = prefix.encode()

    def chunks() -> Iterator[bytes]:
        inside_line = False
        for block in pairs.source.blocks():
            *lines, rest = block.data.split(b"\n")
            parts = [*lines, rest] if rest else lines
            continued = [number == 0 and inside_line for number in range(len(parts))]
            inside_line = bool(rest)
            parts = [before + part if part and not more else part for part, more in zip(parts, continued, strict=True)]
            yield b"\n".join(parts) + b"\n" * (not rest)

    return Pairs(Texts([TextSource(pairs.source.name, chunks)]), pairs.target)


def part_of(pairs: Pairs, begin: int, end: int | None = None) -> Pairs:
    """The pairs from index `begin` to before `end`."""
    return Pairs(*(some_lines(text, begin, end) for text in pairs))


def count_pairs(pairs: Pairs) -> int:
    """The number of pairs; files of different lengths are an error."""
    counts = [sum(piece.ends_line for piece in text.pieces()) + _unended(text) for text in pairs]
    if counts[0] != counts[1]:
        raise unmatched((counts[0], counts[1]), (pairs.source.name, pairs.target.name))
    return counts[0]


def _unended(text: Texts) -> int:
    """1 if the last line lacks its newline."""
    last = b""
    for block in text.blocks():
        last = block.data[-1:]
    return int(last != b"\n")


def unmatched(lines: tuple[int, int], names: tuple[str, str]) -> DataError:
    """The error for a source and a target that do not match line by line."""
    longer = names[0] if lines[0] > lines[1] else names[1]
    return DataError(
        f"{names[0]} has {plural(lines[0], 'line')} and {names[1]} has {lines[1]:,}: line {min(lines) + 1} of {longer} "
        "has no partner; expected two files that match line by line."
    )
