"""Files of word vectors: gensim reads ours, we read those of gensim, and damaged files have their messages."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chainrule as cr
from chainrule.errors import ChainruleError, ConfigError, DataError
from chainrule.interop.word2vec import (
    export_vectors,
    import_vectors,
    looks_like_vectors,
    read_vectors,
    write_vectors,
)
from chainrule.runs.vectors import VectorRun

WORDS = ["the", "naïve", "床", "</s>", "x" * 300, "0.5"]
VECTORS = (np.random.default_rng(0).normal(0, 1, (6, 5)) * 10.0 ** np.arange(-30, 30, 12)).astype(np.float32)


def message(kind: type[ChainruleError], call: Any, *args: Any, **options: Any) -> str:
    with pytest.raises(kind) as caught:
        call(*args, **options)
    return str(caught.value)


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_written_file_is_read_back_exactly(tmp_path: Path, binary: bool, suffix: str) -> None:
    path, seen = tmp_path / f"vectors.any{suffix}", []
    write_vectors(path, WORDS, VECTORS, binary=binary, progress=lambda done, whole: seen.append((done, whole)))
    found = read_vectors(path)
    assert found.words == WORDS
    np.testing.assert_array_equal(found.vectors_VD, VECTORS)
    assert seen == [(6, 6)]
    assert looks_like_vectors(path)


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_gensim_reads_ours(tmp_path: Path, binary: bool, suffix: str) -> None:
    gensim = pytest.importorskip("gensim")
    path = tmp_path / f"vectors{suffix}"
    write_vectors(path, WORDS, VECTORS, binary=binary)
    theirs = gensim.models.KeyedVectors.load_word2vec_format(str(path), binary=binary)
    assert theirs.index_to_key == WORDS
    np.testing.assert_array_equal(theirs.vectors, VECTORS)


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_we_read_those_of_gensim(tmp_path: Path, binary: bool, suffix: str) -> None:
    gensim = pytest.importorskip("gensim")
    theirs = gensim.models.KeyedVectors(5)
    theirs.add_vectors(WORDS, VECTORS)
    path = tmp_path / f"vectors{suffix}"
    theirs.save_word2vec_format(str(path), binary=binary)
    found = read_vectors(path)
    assert found.words == WORDS
    np.testing.assert_array_equal(found.vectors_VD, VECTORS)


def test_newlines_before_words_are_ignored(tmp_path: Path) -> None:
    """word2vec.c ends each word of a binary file with a newline."""
    path = tmp_path / "vectors.bin"
    rows = [word.encode() + b" " + row.tobytes() + b"\n" for word, row in zip(WORDS, VECTORS, strict=True)]
    path.write_bytes(b"6 5\n" + b"".join(rows))
    found = read_vectors(path)
    assert found.words == WORDS
    np.testing.assert_array_equal(found.vectors_VD, VECTORS)


def test_many_words_and_duplicates(tmp_path: Path) -> None:
    path = tmp_path / "vectors.txt"
    words = [f"w{number}" for number in range(3000)]
    vectors_VD = np.arange(6000, dtype=np.float32).reshape(3000, 2)
    words[2999] = "w7"
    write_vectors(path, words, vectors_VD)
    found = read_vectors(path)
    assert found.words == words[:2999]
    np.testing.assert_array_equal(found.vectors_VD, vectors_VD[:2999])
    assert found.notes == ["1 word occurs more than once; the first vector is used"]


@pytest.mark.parametrize("word", ["New York", "", "a\nb", "\u00a0"])
@pytest.mark.parametrize("binary", [False, True])
def test_words_with_white_space_are_refused(tmp_path: Path, word: str, binary: bool) -> None:
    path = tmp_path / "vectors.txt"
    text = message(ConfigError, write_vectors, path, [word], VECTORS[:1], binary=binary)
    assert text == (
        f"the word {word!r} is empty or contains white space, which the word2vec format cannot represent; export a run "
        "whose tokens are words"
    )
    assert not path.exists()


DAMAGED = {
    b"hello\n": "{path} does not begin with a line of two numbers, words and width; expected the word2vec format",
    b"": "{path} does not begin with a line of two numbers, words and width; expected the word2vec format",
    b"0 5\n": "{path} has a header of 0 words of width 5; expected at least 1 of each",
    b"2 2\na 1 2\n": "{path} is truncated: it ends within word 2 of 2; copy or create it again",
    b"2 2\na 1 2\nb 1\n": "{path}, line 3 has 1 numbers; expected 2 after the word",
    b"2 2\na 1 2\nb 1 x\n": "{path}, line 3: expected a word and 2 numbers",
    b"1 2\na 1 2\nb 1 2\n": (
        "{path} continues after the 1 word that its first line promises; it is damaged, create it again"
    ),
    b"1 2\n\xff 1 2\n": "{path}: word 1 is not UTF-8; convert the file, or create it again",
    b"1 2\na \0\0\0\0\0\0\0": "{path} is truncated: it ends within word 1 of 1; copy or create it again",
    b"1 2\nabc": "{path} is truncated: it ends within word 1 of 1; copy or create it again",
    b"1 2\n" + b"a" * 70_000: "{path}: word 1 has no end; the file is damaged or its width is wrong, create it again",
    b"999999999 300\na \0": "{path} is truncated: it ends within word 1 of 999,999,999; copy or create it again",
}


@pytest.mark.parametrize("content", DAMAGED, ids=range(len(DAMAGED)))
def test_damaged_files_have_their_messages(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "vectors.txt"
    path.write_bytes(content)
    assert message(DataError, read_vectors, path) == DAMAGED[content].format(path=path)


def test_missing_and_incomplete_files_have_their_messages(tmp_path: Path) -> None:
    path = tmp_path / "vectors.txt.gz"
    assert message(DataError, read_vectors, path) == f"there is no file {path}; check the name"
    write_vectors(path, WORDS, VECTORS)
    path.write_bytes(path.read_bytes()[:-30])
    assert message(DataError, read_vectors, path) == f"{path} is not a complete gzip file; copy or create it again"
    path.write_bytes(b"6 5\n")
    assert message(DataError, read_vectors, path) == f"{path} is not a complete gzip file; copy or create it again"
    assert message(DataError, read_vectors, tmp_path) == f"{tmp_path} is a folder; expected a file of vectors"
    assert not looks_like_vectors(path)
    assert not looks_like_vectors(tmp_path / "nothing")


# Runs


def test_a_file_is_imported_and_exported(tmp_path: Path) -> None:
    path, notes = tmp_path / "vectors.txt", []
    write_vectors(path, [*WORDS, "<unk>"], np.vstack([VECTORS, VECTORS[:1]]))
    folder = import_vectors(path, tmp_path / "run", note=notes.append)
    run = cr.load(folder.path)
    assert isinstance(run, VectorRun)
    assert run.words == WORDS
    np.testing.assert_array_equal(run.vectors_VD, VECTORS)
    np.testing.assert_array_equal(run.vector("床"), VECTORS[2])
    assert run.has("the")
    assert not run.has("<unk>")
    import_vectors(path, tmp_path / "run", note=notes.append)
    assert notes == [f"{tmp_path / 'run'} is finished already; choose another --out to import it again"]
    for name in ("again.bin", "again.bin.gz", "again.txt"):
        done = export_vectors(folder.path, tmp_path / name)
        assert (done.words, done.vector_size, done.bytes) == (6, 5, (tmp_path / name).stat().st_size)
        np.testing.assert_array_equal(read_vectors(tmp_path / name).vectors_VD, VECTORS)
    assert (tmp_path / "again.bin").read_bytes() == gzip.decompress((tmp_path / "again.bin.gz").read_bytes())
    assert len((tmp_path / "again.bin").read_bytes()) == 4 + sum(len(word.encode()) + 1 + 4 * 5 for word in WORDS)
    assert (tmp_path / "again.txt").read_text().startswith("6 5\nthe ")


def test_another_file_does_not_overwrite_a_run(tmp_path: Path) -> None:
    path, out = tmp_path / "vectors.txt", tmp_path / "run"
    write_vectors(path, WORDS, VECTORS)
    import_vectors(path, out)
    write_vectors(path, WORDS[:2], VECTORS[:2])
    assert message(ConfigError, import_vectors, path, out) == (
        f"{out} is not empty and was not made by this command; choose another place"
    )
    assert (
        message(DataError, import_vectors, tmp_path / "no", out)
        == f"there is no file {tmp_path / 'no'}; check the name"
    )


def test_the_embedding_of_any_model_is_exported(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("the cat sat on the mat\na dog sat on a log\n" * 40)
    settings = {"model": {"embedding": 6, "hidden": 6, "layers": 1}}
    run = cr.train(text, model="lstm", tokenizer="word", steps=2, settings=settings, out=tmp_path / "lstm")
    export_vectors(tmp_path / "lstm", tmp_path / "vectors.txt")
    found = read_vectors(tmp_path / "vectors.txt")
    assert found.words == [run.tokenizer.piece(token) for token in range(2, run.tokenizer.vocab_size)]
    np.testing.assert_array_equal(found.vectors_VD, run.model.embedding.weight.detach().numpy()[2:])
    cr.train(text, model="ngram", tokenizer="word", out=tmp_path / "ngram")
    assert message(ConfigError, export_vectors, tmp_path / "ngram", tmp_path / "v.txt") == (
        f"{tmp_path / 'ngram'} is a run of the model ngram, which has no word vectors; give a run of word2vec, or of a "
        "model with an embedding"
    )
