"""Byte-order marks are no part of a text, in any reader; compressing keeps them."""

from __future__ import annotations

import codecs
import gzip
from pathlib import Path

import numpy as np
import pytest

import chainrule as cr
from chainrule.config import read_toml
from chainrule.errors import DataError
from chainrule.interop.arpa.reader import read_arpa_content
from chainrule.interop.word2vec import read_vectors
from chainrule.text.encodings import as_utf8
from chainrule.text.formats.labels import LabelledFiles
from chainrule.text.formats.pairs import open_pairs
from chainrule.text.formats.tags import TaggedFiles
from chainrule.text.readers import lines_in, open_texts
from chainrule.training.init.embedding import width_of

BOM = codecs.BOM_UTF8


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("size", [1, 2, 3, 5, 100])
@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (BOM + b"ab\n", b"ab\n"),
        (BOM, b""),
        (b"", b""),
        (b"ab" + BOM + b"\n", b"ab" + BOM + b"\n"),
        (BOM + BOM + b"a", BOM + b"a"),
        ("\ufeffé\n😀".encode("utf-16le"), "é\n😀".encode()),
        ("\ufeffé\n😀".encode("utf-16be"), "é\n😀".encode()),
        (b"\xff\xfe\x00\xd8\x00\xd8binary", b"\xff\xfe\x00\xd8\x00\xd8binary"),
    ],
)
def test_marks_are_removed_however_the_bytes_are_cut(content: bytes, expected: bytes, size: int) -> None:
    if content[:2] == b"\xff\xfe" and b"binary" in content and size < 6:
        pytest.skip("whether it is UTF-16 is decided on the first chunk")
    chunks = [content[start : start + size] for start in range(0, len(content), size)]
    assert b"".join(as_utf8(chunks, "text")) == expected


def test_utf16_that_ends_within_a_character_is_an_error() -> None:
    with pytest.raises(DataError, match=r"^text begins like UTF-16, but is not"):
        list(as_utf8(["ab\n".encode("utf-16"), b"x"], "text"))


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_every_reader_of_text_skips_the_mark(encoding: str, tmp_path: Path) -> None:
    first, second = (write(tmp_path / name, "one\ntwo\n".encode(encoding)) for name in ("a.txt", "b.txt"))
    assert list(lines_in(open_texts([first, second]))) == ["one", "two", "one", "two"]
    packed = write(tmp_path / "c.txt.gz", gzip.compress("one\n".encode(encoding)))
    assert list(lines_in(open_texts([packed]))) == ["one"]
    records = write(tmp_path / "d.jsonl", '{"text": "one"}\n'.encode(encoding))
    assert list(lines_in(open_texts([records]))) == ["one"]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_every_reader_of_labels_pairs_and_columns_skips_the_mark(encoding: str, tmp_path: Path) -> None:
    for name, content in (
        ("a.tsv", "wiki\tone\nplay\ttwo\n"),
        ("b.tsv", "label\ttext\nwiki\tone\nplay\ttwo\n"),
        ("c.csv", "wiki,one\nplay,two\n"),
        ("d.jsonl", '{"label": "wiki", "text": "one"}\n{"label": "play", "text": "two"}\n'),
    ):
        files = LabelledFiles([write(tmp_path / name, content.encode(encoding))])
        assert files.labels().names == ("play", "wiki"), name
    pairs = open_pairs([write(tmp_path / "p.tsv", "a\tb\n".encode(encoding))])
    assert [list(lines_in(side)) for side in pairs] == [["a"], ["b"]]
    sentence = next(TaggedFiles([write(tmp_path / "t.conll", "Ada N\n".encode(encoding))]).sentences())
    assert sentence.words == ["Ada"]


def test_toml_arpa_and_vectors_skip_the_mark(tmp_path: Path) -> None:
    assert read_toml(write(tmp_path / "a.toml", BOM + b"seed = 3\n")) == {"seed": 3}
    arpa = b"\\data\\\nngram 1=3\n\n\\1-grams:\n-1 <unk>\n-1 </s>\n-0.2 cat\n\n\\end\\\n"
    assert read_arpa_content(write(tmp_path / "a.arpa", BOM + arpa)).words == ["cat"]
    vectors = write(tmp_path / "v.txt", BOM + b"1 2\ncat 0.5 1\n")
    assert read_vectors(vectors).words == ["cat"]
    assert np.allclose(read_vectors(vectors).vectors_VD, [[0.5, 1]])
    assert width_of(str(vectors)) == 2


def test_utf16_without_a_mark_is_refused_with_its_conversion(tmp_path: Path) -> None:
    for encoding in ("utf-16le", "utf-16be"):
        path = write(tmp_path / "a.tsv", "wiki\tone\n".encode(encoding))
        with pytest.raises(DataError, match=f"iconv -f {encoding} -t utf-8"):
            list(lines_in(open_texts([path])))
        with pytest.raises(DataError, match=f"iconv -f {encoding} -t utf-8"):
            LabelledFiles([path]).labels()


def test_compressing_keeps_the_mark(tmp_path: Path) -> None:
    text = write(tmp_path / "a.txt", BOM + b"the cat sat on the mat\n" * 40)
    run = cr.train(text, model="ngram", tokenizer="char", out=tmp_path / "run")
    assert "\ufeff" not in run.tokenizer.parts
    run.compress(text, tmp_path / "a.cr")
    run.decompress(tmp_path / "a.cr", tmp_path / "b.txt")
    assert (tmp_path / "b.txt").read_bytes() == text.read_bytes()


def test_a_missing_file_suggests_similar_names_only(tmp_path: Path) -> None:
    for name in ("bin.txt", "train.en", "wiki.train.tokens"):
        write(tmp_path / name, b"a\n")
    with pytest.raises(DataError, match="check the name and the folder"):
        open_texts([tmp_path / "missing.txt"])
    for wrong, right in (("tran.en", "train.en"), ("train.de", "train.en"), ("wiki.trian.tokens", "wiki.train.tokens")):
        with pytest.raises(DataError, match=f"did you mean '{tmp_path / right}'"):
            open_texts([tmp_path / wrong])


def test_a_file_of_blank_lines_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "blank.txt", b"\n \n\t\n")
    with pytest.raises(DataError, match="has blank lines only: expected text"):
        cr.train(path, model="ngram", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
