"""Answers about large files: kept while nothing writes them, and never after."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from chainrule.base import known_files
from chainrule.base.cache import default_cache
from chainrule.base.known_files import joined, state_of
from chainrule.data import store as store_module
from chainrule.data.store import open_store
from chainrule.errors import DataError
from chainrule.text import open_texts, train_tokenizer
from chainrule.text import sources as sources_module
from chainrule.text.readers import MEASURED
from chainrule.text.splitting import cut_text

LINES = "the cat sat\non the mat\nand slept\n" * 20


@pytest.fixture(autouse=True)
def every_file_is_large_and_settled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CHAINRULE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(known_files, "LARGE", 0)
    monkeypatch.setattr(known_files, "SETTLED", -1)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(LINES)
    return path


def forbid_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> Iterator[bytes]:
        raise AssertionError(f"{path} was read again")
        yield b""

    monkeypatch.setattr(sources_module, "_exact_chunks", refuse)


def rewrite(path: Path, content: bytes) -> None:
    """Other bytes in the same inode, with the time of the earlier ones."""
    time.sleep(0.02)  # the clock of the file system has ticks
    before = path.stat()
    with path.open("r+b") as file:
        file.write(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_mtime_ns == before.st_mtime_ns


def test_a_text_is_measured_once(text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = open_texts([text])
    expected = first.size, first.fingerprint()
    forbid_reading(monkeypatch)
    again = open_texts([text])
    assert (again.size, again.fingerprint()) == expected == (len(LINES), expected[1])
    with pytest.raises(AssertionError, match="read again"):
        open_texts([text], exact=True).fingerprint()
    with pytest.raises(AssertionError, match="read again"):
        open_texts([text, text]).fingerprint()


def test_a_written_file_is_read_again(text: Path) -> None:
    before = open_texts([text]).fingerprint()
    rewrite(text, b"T")
    changed = open_texts([text]).fingerprint()
    assert changed != before
    rewrite(text, b"t")
    assert open_texts([text]).fingerprint() == before


def test_a_file_with_another_reading_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text('{"text": "one", "other": "two"}\n')
    found = {field: open_texts([path], field=field).size for field in ("text", "other")}
    assert found == {"text": 4, "other": 4}
    prints = {open_texts([path], field=field).fingerprint() for field in ("text", "other")}
    assert len(prints) == 2
    plain = path.rename(tmp_path / "records.txt")
    assert open_texts([plain]).size == len('{"text": "one", "other": "two"}\n')


def test_parts_of_a_text_are_measured_once(text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = cut_text(open_texts([text]), 300)
    assert parts is not None
    expected = [(part.size, part.fingerprint()) for part in parts]
    assert expected[0][0] == LINES.rfind("\n", 0, 300) + 1
    assert expected[0][0] + expected[1][0] == len(LINES)
    forbid_reading(monkeypatch)
    again = cut_text(open_texts([text]), 300)
    assert again is not None
    assert [(part.size, part.fingerprint()) for part in again] == expected


def test_small_and_unsettled_files_leave_no_notes(text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_files, "SETTLED", 3600)
    assert state_of(text) is None
    assert state_of(text, settled=True) is not None
    assert open_texts([text]).state is None
    assert joined([state_of(text, settled=True), None]) is None
    monkeypatch.setattr(known_files, "SETTLED", -1)
    monkeypatch.setattr(known_files, "LARGE", len(LINES) + 1)
    open_texts([text]).fingerprint()
    cache = default_cache()
    assert cache is not None
    assert not (cache / known_files.FOLDER).exists()
    with pytest.raises(DataError, match="no file"):
        open_texts([text.with_name("missing")])
    assert state_of(text.parent) is None


def test_a_damaged_note_is_ignored(text: Path) -> None:
    expected = open_texts([text]).fingerprint()
    state = open_texts([text]).state
    assert state is not None
    assert state.recall(MEASURED) == f"{len(LINES)} {expected}"
    state.note(MEASURED, f"{len(LINES)} {expected[1:]}")
    assert open_texts([text]).fingerprint() == expected
    assert state.recall(MEASURED) == f"{len(LINES)} {expected}"


def test_the_tokens_of_a_store_are_checked_once(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = train_tokenizer("word", open_texts([text]))
    store = open_store(open_texts([text]), words, cache=tmp_path)
    expected = store.tokens.tolist()
    checksum, read = store_module._checksum, list[Path]()

    def counted(path: Path, *options: object) -> int:
        read.append(path)
        return checksum(path, *options)  # type: ignore[arg-type]

    monkeypatch.setattr(store_module, "_checksum", counted)
    assert open_store(open_texts([text]), words, cache=tmp_path).tokens.tolist() == expected
    assert not read, "the process that wrote the tokens noted their checksum"
    rewrite(store.folder / store_module.TOKENS, bytes([1, 1, 1, 1]))
    assert open_store(open_texts([text]), words, cache=tmp_path).tokens.tolist() == expected
    assert len(read) == 1, "damaged tokens are written again"
    time.sleep(0.02)
    os.utime(store.folder / store_module.TOKENS)
    for _ in range(2):
        assert open_store(open_texts([text]), words, cache=tmp_path).tokens.tolist() == expected
    assert len(read) == 2, "a touched file is read once"
