"""Reading: every kind of source gives its exact bytes, and every bad one its message."""

from __future__ import annotations

import builtins
import gzip
import io
import json
import lzma
import sys
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from chainrule.errors import DataError
from chainrule.text import Piece, Texts, open_texts, text_of
from chainrule.text.sources import TextSource


def content(texts: Texts) -> bytes:
    return b"".join(block.data for block in texts.blocks())


def in_blocks(data: bytes, block: int, chunk: int = 7) -> Texts:
    """A text that is read in small chunks and split into small blocks."""
    chunks = [data[start : start + chunk] for start in range(0, len(data), chunk)]
    return Texts([TextSource("text", lambda: iter(chunks))], block=block)


COMPRESSORS = {
    "a.txt": lambda data: data,
    "a.txt.gz": gzip.compress,
    "a.txt.xz": lzma.compress,
    "a.txt.zst": zstandard.compress,
}


@pytest.mark.parametrize("name", COMPRESSORS)
def test_a_file_can_be_read_repeatedly(tmp_path: Path, name: str) -> None:
    data = "one\r\n\ufefftwo\nthree é".encode() * 1000
    (tmp_path / name).write_bytes(COMPRESSORS[name](data))
    texts = open_texts([tmp_path / name])
    assert content(texts) == content(texts) == data
    assert texts.size == len(data)
    assert texts.fingerprint() == text_of(data).fingerprint()
    assert texts.fingerprint() != text_of(data + b"x").fingerprint()


def test_zstd_of_two_frames(tmp_path: Path) -> None:
    (tmp_path / "a.zst").write_bytes(zstandard.compress(b"one\n") + zstandard.compress(b"two\n"))
    assert content(open_texts([tmp_path / "a.zst"])) == b"one\ntwo\n"


def test_folder_is_read_in_order_without_hidden_files(tmp_path: Path) -> None:
    for name, data in {"b.txt": "b", "a/z.txt": "z\n", "a/.hidden": "h", ".git/x": "g", "c.txt": "c"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(data)
    texts = open_texts([tmp_path])
    assert content(texts) == b"z\nb\nc"  # a newline is supplied between files, none after the last
    assert texts.name == f"{tmp_path}/a/z.txt and 2 more"


def test_standard_input_can_be_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"one\ntwo")))
    texts = open_texts(["-"])
    assert texts.size == 7
    assert content(texts) == content(texts) == b"one\ntwo"


@pytest.mark.parametrize("name", ["a.jsonl", "a.ndjson", "a.jsonl.gz"])
def test_json_lines(tmp_path: Path, name: str) -> None:
    lines = "\n".join(json.dumps({"body": body}) for body in ["one", "two\nlines", "é"]) + "\n\n"
    data = lines.encode()
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    assert content(open_texts([tmp_path / name], field="body")) == "one\ntwo\nlines\né\n".encode()


def test_data_set_saved_to_disk(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    table = datasets.Dataset.from_dict({"text": ["one", "two\nlines"], "label": [0, 1]})
    datasets.DatasetDict({"train": table}).save_to_disk(tmp_path / "set")
    assert content(open_texts([f"hf:{tmp_path}/set:train"])) == b"one\ntwo\nlines\n"
    with pytest.raises(DataError) as caught:
        content(open_texts([f"hf:{tmp_path}/set:train"], field="body"))
    assert str(caught.value) == (
        f"hf:{tmp_path}/set:train: no field 'body' (found text, label); name the right one with --field."
    )
    with pytest.raises(DataError) as caught:
        content(open_texts([f"hf:{tmp_path}/set:train"], field="label"))
    assert str(caught.value) == (
        f"hf:{tmp_path}/set:train: got int; expected text in every record; leave the others out."
    )
    with pytest.raises(
        DataError, match=r"^cannot read 'hf:.*:test' \(.*\): check the name, the split and the network\.$"
    ):
        content(open_texts([f"hf:{tmp_path}/set:test"]))


def test_data_set_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: object, **more: object) -> object:
        if name == "datasets":
            raise ImportError(name)
        return real(name, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(DataError) as caught:
        content(open_texts(["hf:wikitext:train"]))
    assert str(caught.value) == (
        "reading 'hf:wikitext:train' needs the datasets library: pip install 'chainrule[datasets]'."
    )


def test_data_set_without_a_split() -> None:
    with pytest.raises(DataError) as caught:
        open_texts(["hf:wikitext"])
    assert str(caught.value) == (
        "got 'hf:wikitext': expected hf:NAME:SPLIT or hf:NAME/CONFIG:SPLIT; name the split, as in :train."
    )


@given(st.binary(max_size=300), st.integers(8, 40), st.integers(1, 50))
def test_blocks_and_pieces_lose_nothing(data: bytes, block: int, chunk: int) -> None:
    texts = in_blocks(data or b"x", block, chunk)
    blocks = list(texts.blocks())
    assert b"".join(found.data for found in blocks) == (data or b"x")
    assert all(0 < len(found.data) <= block for found in blocks)
    assert [found.offset for found in blocks] == [sum(len(b.data) for b in blocks[:n]) for n in range(len(blocks))]
    glued = b"".join(piece.text + b"\n" * piece.ends_line for piece in texts.pieces())
    assert glued == (data or b"x")


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1), st.integers(8, 20))
def test_blocks_never_cut_a_character(text: str, block: int) -> None:
    assert "".join(in_blocks(text.encode(), block).strings()) == text


def test_long_line_is_cut_after_a_space() -> None:
    texts = in_blocks(b"one two three\nfour fivers", block=10)
    assert list(texts.pieces()) == [
        Piece(b"one two ", False),
        Piece(b"three", True),
        Piece(b"four ", False),
        Piece(b"fivers", False),
    ]


def test_empty_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("")
    with pytest.raises(DataError) as caught:
        list(open_texts([tmp_path / "a.txt"]).pieces())
    assert str(caught.value) == f"{tmp_path}/a.txt is empty: expected text; give a file with at least one line."
    with pytest.raises(DataError) as caught:
        open_texts([])
    assert str(caught.value) == (
        "no text was given: expected a file, a folder, '-' or hf:NAME:SPLIT; name at least one."
    )


def test_missing_file_suggests_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("x")
    with pytest.raises(DataError) as caught:
        open_texts([tmp_path / "trian.txt"])
    assert str(caught.value) == f"there is no file '{tmp_path}/trian.txt': did you mean '{tmp_path}/train.txt'?"
    with pytest.raises(DataError) as caught:
        open_texts([tmp_path / "nowhere" / "other"])
    assert str(caught.value) == f"there is no file '{tmp_path}/nowhere/other': check the name and the folder."


def test_folder_without_files(tmp_path: Path) -> None:
    (tmp_path / ".hidden").write_text("x")
    with pytest.raises(DataError) as caught:
        open_texts([tmp_path])
    assert str(caught.value) == (
        f"the folder '{tmp_path}' holds no files: expected at least one text file; give another folder."
    )


def test_invalid_utf8_names_file_byte_and_value(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("fine")
    (tmp_path / "b.txt").write_bytes(b"caf\xe9 au lait\n")
    with pytest.raises(DataError) as caught:
        list(open_texts([tmp_path]).strings())
    assert str(caught.value) == (
        f"{tmp_path}/b.txt: byte 3 is 0xe9; expected UTF-8 text; "
        "convert the file (iconv -f latin1 -t utf-8) or use --tokenizer byte."
    )


@pytest.mark.parametrize("tail", [b"", b"\xff"])
def test_nul_looks_like_a_binary_file(tmp_path: Path, tail: bytes) -> None:
    (tmp_path / "a.txt").write_bytes("ab".encode("utf-16-le") + tail)
    with pytest.raises(DataError) as caught:
        list(open_texts([tmp_path / "a.txt"]).strings())
    assert str(caught.value) == (
        f"{tmp_path}/a.txt: byte 1 is NUL, so this looks like a binary or UTF-16 file; expected UTF-8 text; "
        "convert the file (iconv -f utf-16le -t utf-8) or use --tokenizer byte."
    )


def test_json_without_the_field(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    cases = {
        '{"text": "x"}\n{"title": "y", "body": "z"}\n': (
            f"{path}, line 2: no text in the field 'text' (found title, body); name the right one with --field."
        ),
        '{"text": 3}': f"{path}, line 1: no text in the field 'text' ('text' is int); name the right one with --field.",
        "[1]": f"{path}, line 1: got list; expected a JSON object with the field 'text'.",
        '{"text": "\\ud800"}': (
            f"{path}, line 1: character 0 is half of a surrogate pair; expected whole Unicode characters; "
            "repair the record or leave it out."
        ),
        '{"text": "x"': (
            f"{path}, line 1: not JSON (Expecting ',' delimiter: line 1 column 13 (char 12)); expected one object "
            "per line; repair the line, or rename a plain text file."
        ),
    }
    for data, message in cases.items():
        path.write_text(data)
        with pytest.raises(DataError) as caught:
            content(open_texts([path]))
        assert str(caught.value) == message


@pytest.mark.parametrize("name", ["a.txt.gz", "a.txt.xz", "a.txt.zst"])
def test_truncated_archive(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    compressed = COMPRESSORS[name](b"".join(b"%d squared is %d\n" % (n, n * n) for n in range(10_000)))
    path.write_bytes(compressed[: len(compressed) // 2])
    with pytest.raises(DataError) as caught:
        content(open_texts([path]))
    assert str(caught.value) == (
        f"'{path}' ends too early: expected a complete {path.suffix} file; copy or download it again."
    )


@pytest.mark.parametrize("name", ["a.txt.gz", "a.txt.xz", "a.txt.zst"])
def test_a_file_that_is_not_compressed(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(b"plain text, and quite a lot of it")
    with pytest.raises(DataError, match=r"is not a readable \.\w+ file \(.+\): expected intact compressed data; copy"):
        content(open_texts([path]))


def test_unreadable_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.txt"
    path.write_text("x")

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(builtins, "open", refuse)
    texts = open_texts([path])
    with pytest.raises(DataError) as caught:
        content(texts)
    monkeypatch.undo()
    assert str(caught.value) == f"cannot read '{path}': permission denied; allow reading it with chmod +r."
