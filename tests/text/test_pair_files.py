"""Pairs of lines from two files, tab-separated lines or JSON lines, as two texts whose lines belong together."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from chainrule.errors import DataError
from chainrule.text.formats.pairs import Pairs, hold_pairs, open_pairs, part_of, prefixed
from chainrule.text.readers import Texts, lines_in
from chainrule.text.sources import TextSource

EN = ["a dog", "two cats", "", "one bird"]
DE = ["ein Hund", "zwei Katzen", "nichts", "ein Vogel"]


def write(path: Path, content: str) -> Path:
    path.write_bytes(content.encode())
    return path


def text(lines: list[str]) -> str:
    return "".join(line + "\n" for line in lines)


def lines_of(pairs: Pairs) -> tuple[list[str], list[str]]:
    return list(lines_in(pairs.source)), list(lines_in(pairs.target))


def in_blocks(lines: list[str], block: int) -> Texts:
    """A text that is read in very small blocks, so that lines span several."""
    return Texts([TextSource("text", lambda: iter([text(lines).encode()]))], block=block)


@pytest.fixture
def two_files(tmp_path: Path) -> list[Path]:
    return [write(tmp_path / "train.en", text(EN)), write(tmp_path / "train.de", text(DE))]


def test_two_files_are_source_and_target(two_files: list[Path]) -> None:
    pairs = open_pairs(two_files)
    assert lines_of(pairs) == (EN, DE)
    assert pairs.name == f"{two_files[0]}, {two_files[1]}"


def test_tab_separated_lines_are_the_same_pairs(tmp_path: Path) -> None:
    path = write(tmp_path / "train.tsv", text([f"{en}\t{de}" for en, de in zip(EN, DE, strict=True)]))
    pairs = open_pairs([path])
    assert lines_of(pairs) == (EN, DE)
    assert pairs.name == str(path)


def test_a_tab_separated_file_may_have_crlf_line_ends_more_columns_and_no_last_newline(tmp_path: Path) -> None:
    path = write(tmp_path / "TRAIN.TSV", "a\tb\r\nc\td\tnote\r\n\te\t\r\nf\tg")
    assert lines_of(open_pairs([path])) == (["a", "c", "", "f"], ["b", "d", "e", "g"])


def test_json_lines_with_any_field_names_are_the_same_pairs(tmp_path: Path) -> None:
    records = [{"en": en, "de": de, "id": 1} for en, de in zip(EN, DE, strict=True)]
    path = write(tmp_path / "train.jsonl", "\n\n".join(map(json.dumps, records)) + "\n \n")  # blank lines are skipped
    assert lines_of(open_pairs([path], fields=("en", "de"))) == (EN, DE)
    assert lines_of(open_pairs([path], fields=("de", "en"))) == (DE, EN)


def test_a_newline_inside_a_json_text_is_a_space(tmp_path: Path) -> None:
    path = write(tmp_path / "train.ndjson", json.dumps({"source": "one\ntwo", "target": "eins\n"}))
    assert lines_of(open_pairs([path])) == (["one two"], ["eins "])


def test_compressed_files_are_decompressed(tmp_path: Path, two_files: list[Path]) -> None:
    compressed = [Path(f"{path}.gz") for path in two_files]
    for path, plain in zip(compressed, two_files, strict=True):
        path.write_bytes(gzip.compress(plain.read_bytes()))
    assert lines_of(open_pairs(compressed)) == (EN, DE)
    table = tmp_path / "train.tsv.gz"
    table.write_bytes(gzip.compress(b"a\tb\nc\td\n"))
    assert hold_pairs(table)
    assert lines_of(open_pairs([table])) == (["a", "c"], ["b", "d"])


def test_several_files_of_pairs_are_concatenated(tmp_path: Path) -> None:
    first = write(tmp_path / "a.tsv", "a\tb\nc\td")  # lines never run together
    second = write(tmp_path / "b.jsonl", json.dumps({"source": "e", "target": "f"}))
    pairs = open_pairs([first, second])
    assert lines_of(pairs) == (["a", "c", "e"], ["b", "d", "f"])
    assert pairs.name == f"{first} and 1 more"


def test_files_with_both_sides_are_known_by_name() -> None:
    assert [
        name for name in ("a.tsv", "a.TSV", "a.jsonl.zst", "a.ndjson", "a.tsv.xz", "a.csv.gz") if not hold_pairs(name)
    ] == []
    assert [name for name in ("a.txt", "train.en", "tsv", "a.tsv.txt", "-", "a.gz") if hold_pairs(name)] == []


@pytest.mark.parametrize("count", [0, 1, 3])
def test_other_numbers_of_files_are_refused(count: int, two_files: list[Path]) -> None:
    with pytest.raises(DataError) as error:
        open_pairs([two_files[0]] * count)
    files = "1 file" if count == 1 else f"{count} files"
    assert str(error.value) == (
        f"got {files} for pairs of lines: expected two, source then target, or one .tsv, .csv, .jsonl or "
        "hf:NAME:SPLIT with both; name them."
    )


def test_a_line_without_a_tab_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "train.tsv", "a\tb\nno tab here\nc\td\n")
    for side in open_pairs([path]):
        with pytest.raises(DataError) as error:
            list(lines_in(side))
        assert str(error.value) == (
            f"{path}, line 2: no tab in it; expected source, tab, target; repair the line or leave it out."
        )
    write(path, "a\tb\nc")
    with pytest.raises(DataError) as error:
        list(lines_in(open_pairs([path]).target))
    assert str(error.value).startswith(f"{path}, last line: no tab in it;")


def test_a_missing_field_is_named_with_the_option_that_names_another(tmp_path: Path) -> None:
    path = write(tmp_path / "train.jsonl", '{"source": "a", "target": "b"}\n{"source": "c", "goal": "d"}\n')
    pairs = open_pairs([path])
    assert list(lines_in(pairs.source)) == ["a", "c"]
    with pytest.raises(DataError) as error:
        list(lines_in(pairs.target))
    assert str(error.value) == (
        f"{path}, line 2: no text in the field 'target' (found source, goal); name the right one with "
        "--set data.target_field=NAME."
    )


def test_a_line_that_is_not_json_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "train.jsonl", '{"source": "a", "target": "b"}\nc\td\n')
    with pytest.raises(DataError, match="line 2: not JSON"):
        list(lines_in(open_pairs([path]).source))


def test_missing_and_empty_files_are_errors(tmp_path: Path, two_files: list[Path]) -> None:
    for paths in ([tmp_path / "train.tsv"], [two_files[0], tmp_path / "train.da"]):
        with pytest.raises(DataError) as error:
            open_pairs(paths)
        assert str(error.value).startswith(f"there is no file '{paths[-1]}'")
    for name in ("none.tsv", "none.jsonl"):
        with pytest.raises(DataError) as error:
            list(lines_in(open_pairs([write(tmp_path / name, "")]).source))
        assert str(error.value) == f"{tmp_path / name} is empty: expected text; give a file with at least one line."


# Parts and prefixes


@pytest.mark.parametrize("block", [1, 2, 3, 5, 1 << 20])
@pytest.mark.parametrize("lines", [EN, ["", "", "x"], ["one long line"], ["a", ""]])
def test_every_source_that_is_not_empty_is_prefixed(lines: list[str], block: int) -> None:
    pairs = Pairs(in_blocks(lines, block), in_blocks(lines, block))
    changed = prefixed(pairs, "task: ")
    assert list(lines_in(changed.source)) == ["task: " + line if line else "" for line in lines]
    assert list(lines_in(changed.target)) == lines
    assert b"".join(piece.data for piece in changed.source.blocks()).endswith(b"\n")


def test_a_prefix_adds_no_newline_at_the_end() -> None:
    bare = Texts([TextSource("text", lambda: iter([b"a\nb"]))])
    assert b"".join(block.data for block in prefixed(Pairs(bare, bare), "> ").source.blocks()) == b"> a\n> b"


@pytest.mark.parametrize("block", [1, 4, 1 << 20])
@pytest.mark.parametrize(("begin", "end"), [(0, None), (1, None), (0, 2), (2, 3), (3, 9), (0, 4)])
def test_a_part_has_the_same_lines_of_both_sides(begin: int, end: int | None, block: int) -> None:
    part = part_of(Pairs(in_blocks(EN, block), in_blocks(DE, block)), begin, end)
    assert lines_of(part) == (EN[begin:end], DE[begin:end])
    assert part.source.name == f"text (from line {begin + 1})"


def test_a_part_beyond_the_end_is_empty(two_files: list[Path]) -> None:
    with pytest.raises(DataError, match=r"\(from line 10\) is empty"):
        list(lines_in(part_of(open_pairs(two_files), 9).target))


def test_a_part_of_a_prefixed_text_is_prefixed(two_files: list[Path]) -> None:
    assert lines_of(part_of(prefixed(open_pairs(two_files), "> "), 1, 4)) == (["> two cats", "", "> one bird"], DE[1:])
