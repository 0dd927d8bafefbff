"""Comma-separated files of labelled texts and of pairs, quoted as in RFC 4180."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chainrule.errors import DataError
from chainrule.tasks.task import look_like_pairs
from chainrule.text.formats.csv_rows import csv_rows
from chainrule.text.formats.labels import LabelledFiles
from chainrule.text.formats.pairs import open_pairs
from chainrule.text.readers import lines_in
from chainrule.text.sources import TextSource


def write(path: Path, content: str) -> Path:
    path.write_text(content, encoding="utf-8", newline="")
    return path


def texts(path: Path) -> list[tuple[str, str]]:
    return [(example.labels[0], example.text) for example in LabelledFiles([path]).examples()]


def test_labels_of_quoted_rows(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", 'pos,"fine, really"\r\nneg,"he said ""no"""\r\npos,"two\nlines"\r\n\r\nneg,last')
    assert texts(path) == [("pos", "fine, really"), ("neg", 'he said "no"'), ("pos", "two\nlines"), ("neg", "last")]
    assert list(lines_in(LabelledFiles([path]).texts))[2] == "two lines"


def test_a_header_selects_columns_in_any_order(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", ',text,id,label\n0,"a, b",7,pos\n1,c,8,neg\n')
    assert texts(path) == [("pos", "a, b"), ("neg", "c")]


def test_pairs_of_quoted_rows_with_and_without_header(tmp_path: Path) -> None:
    for header in ("", "source,target\n"):
        pairs = open_pairs([write(tmp_path / "a.csv", header + '"a, b","c ""d"""\ne,"f\ng"\n')])
        assert [list(lines_in(side)) for side in pairs] == [["a, b", "e"], ['c "d"', "f g"]]
    swapped = open_pairs([write(tmp_path / "b.csv", "fr,en\nun,one\n")], fields=("en", "fr"))
    assert [list(lines_in(side)) for side in swapped] == [["one"], ["un"]]
    assert look_like_pairs(["a.csv"])


def test_a_header_of_a_tsv_of_pairs_is_no_pair(tmp_path: Path) -> None:
    pairs = open_pairs([write(tmp_path / "a.tsv", "target\tsource\nb\ta\n")])
    assert [list(lines_in(side)) for side in pairs] == [["a"], ["b"]]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("pos,a\nneg\n", "line 2: no comma in it; expected label, comma, text; repair the line or leave it out."),
        ("pos,a\nneg,b,c\n", "line 2: 3 columns, but the first line has 2; expected as many on each; repair the line"),
        ('pos,a\nneg,"b" c\n', "line 2: not a row of comma-separated values"),
        ('pos,"a\nneg,b\n', "line 1: not a row of comma-separated values"),
    ],
)
def test_a_wrong_row_is_named(content: str, message: str, tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", content)
    with pytest.raises(DataError) as error:
        texts(path)
    assert str(error.value).startswith(f"{path}, {message}")


def test_a_wrong_row_of_pairs_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "a,b\nc, d, e\n")
    with pytest.raises(DataError) as error:
        list(lines_in(open_pairs([path]).source))
    assert str(error.value) == (
        f"{path}, line 2: 3 columns; expected 2 as in the first row; put a text with commas in quotes, or leave the "
        "row out."
    )


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.text("ab,\" '\n", min_size=1), min_size=2, max_size=3), min_size=1))
def test_rows_that_pythons_writer_wrote_are_read_back(rows: list[list[str]]) -> None:
    lines: list[str] = []

    class File:
        def write(self, text: str) -> int:
            lines.append(text)
            return len(text)

    csv.writer(File()).writerows(rows)
    read = [row for _, row in csv_rows(TextSource("rows", lambda: iter(["".join(lines).encode()])))]
    assert read == [row for row in rows if any(field.strip() for field in row)]
