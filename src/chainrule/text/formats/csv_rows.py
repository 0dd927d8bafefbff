"""Rows of comma-separated files as in RFC 4180: fields in quotes may hold commas, newlines and doubled quotes."""

from __future__ import annotations

import csv
from collections.abc import Iterator

from chainrule.errors import DataError
from chainrule.text.sources import TextSource, decode_line, lines_of

CSV_SUFFIX = ".csv"
MAX_FIELD = 1 << 30
"""Characters of a field at most; beyond it a quote was left open."""


def csv_rows(source: TextSource) -> Iterator[tuple[str, list[str]]]:
    """The rows of a file with their places, without blank ones."""
    csv.field_size_limit(max(csv.field_size_limit(), MAX_FIELD))
    reader = csv.reader(_lines(source), strict=True)
    while True:
        place = f"{source.name}, line {reader.line_num + 1}"
        try:
            row = next(reader, None)
        except csv.Error as error:
            raise DataError(
                f"{place}: not a row of comma-separated values ({error}); expected a field with quotes or commas to be "
                'in quotes, and its quotes doubled: "a ""b"", c"; repair the row.'
            ) from None
        if row is None:
            return
        if any(field.strip() for field in row):
            yield place, row


def _lines(source: TextSource) -> Iterator[str]:
    """The lines with their newlines, which may be part of a field."""
    for number, line in enumerate(lines_of(source.chunks()), start=1):
        yield decode_line(f"{source.name}, line {number}", line) + "\n"
