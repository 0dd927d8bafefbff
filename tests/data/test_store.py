"""The token store: what it holds, when it is used again, and what breaks it."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chainrule.data import store as store_module
from chainrule.data.store import TokenStore, default_cache, open_store
from chainrule.errors import DataError, DiskError
from chainrule.text import Texts, Tokenizer, text_of, train_tokenizer
from chainrule.text.residue import ResidueMeter
from chainrule.text.sources import Source

TEXT = " the cat <unk> sat \nthe dog\n\nno newline"


@pytest.fixture
def words() -> Tokenizer:
    return train_tokenizer("word", text_of("the cat sat on the mat\n"))


def forbid(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on nothing may be tokenised."""

    def refuse(*_: object) -> None:
        raise AssertionError("tokenised again")

    monkeypatch.setattr(store_module, "_write", refuse)


def test_what_it_holds(words: Tokenizer, tmp_path: Path) -> None:
    store = open_store(text_of(TEXT), words, cache=tmp_path)
    expected = [token for line in TEXT.split("\n") for token in [*words.encode(line), words.eos]][:-1]
    assert store.tokens.tolist() == expected
    assert store.tokens.dtype == np.uint8
    assert not store.tokens.flags.writeable
    assert store.counts_V.tolist() == np.bincount(expected, minlength=words.vocab_size).tolist()
    assert (len(store), store.bytes, store.lines, store.oov) == (len(expected), len(TEXT), 3, 3)
    meter = ResidueMeter(words)
    meter.add(TEXT, words.encode_block(TEXT))
    meter.finish()
    assert store.residue_bits == meter.bits > 0


def test_used_again_when_nothing_changed(words: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = open_store(text_of(TEXT), words, cache=tmp_path)
    other_text = open_store(text_of(TEXT + "!"), words, cache=tmp_path)
    other_words = open_store(text_of(TEXT), train_tokenizer("char", text_of(TEXT)), cache=tmp_path)
    assert len({first.fingerprint, other_text.fingerprint, other_words.fingerprint}) == 3
    forbid(monkeypatch)
    again = open_store(text_of(TEXT), words, cache=tmp_path)
    assert again.tokens.tolist() == first.tokens.tolist()
    assert vars(again).keys() == vars(first).keys()
    assert (again.oov, again.residue_bits, again.fingerprint) == (first.oov, first.residue_bits, first.fingerprint)


def _truncate(folder: Path) -> None:
    os.truncate(folder / "tokens.bin", 3)


def _flip(folder: Path) -> None:
    data = bytearray((folder / "tokens.bin").read_bytes())
    data[2] ^= 1
    (folder / "tokens.bin").write_bytes(data)


def _edit(folder: Path) -> None:
    about = json.loads((folder / "store.json").read_text())
    (folder / "store.json").write_text(json.dumps({**about, "tokens": 1}))


DAMAGES = {
    "truncated tokens": _truncate,
    "a flipped bit": _flip,
    "another count": _edit,
    "no tokens": lambda folder: (folder / "tokens.bin").unlink(),
    "no counts": lambda folder: (folder / "counts.npy").unlink(),
    "empty counts": lambda folder: (folder / "counts.npy").write_bytes(b""),
    "cut JSON": lambda folder: (folder / "store.json").write_text('{"version": 1,'),
    "JSON without fields": lambda folder: (folder / "store.json").write_text("{}"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_store_is_rebuilt(words: Tokenizer, tmp_path: Path, damage: str) -> None:
    whole = open_store(text_of(TEXT), words, cache=tmp_path)
    expected = whole.tokens.tolist()
    DAMAGES[damage](whole.folder)
    assert open_store(text_of(TEXT), words, cache=tmp_path).tokens.tolist() == expected
    assert [path.name for path in tmp_path.iterdir()] == [whole.folder.name]


def test_full_disk_leaves_nothing(words: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(np, "save", full)
    with pytest.raises(DiskError, match=r"disk is full.*free some space"):
        open_store(text_of(TEXT), words, cache=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_failing_text_leaves_nothing(words: Tokenizer, tmp_path: Path) -> None:
    bad = Texts([Source("bad.txt", lambda: iter([b"fine\n" * 300_000, b"\xff"]))])
    with pytest.raises(DataError, match=r"^bad\.txt: byte 1500000 is 0xff; expected UTF-8 text"):
        open_store(bad, words, cache=tmp_path)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(DataError, match=r"^text is empty: expected text"):
        open_store(text_of(""), words, cache=tmp_path)


def test_width_follows_the_vocabulary(tmp_path: Path) -> None:
    for number, width in [(254, 1), (255, 2), (70_000, 4)]:
        texts = text_of(" ".join(f"w{n}" for n in range(number)))
        store = open_store(texts, train_tokenizer("word", texts), cache=tmp_path)
        assert store.tokens.dtype == np.dtype(f"<u{width}")
        assert len(np.unique(store.tokens)) == number


def test_text_without_tokens(words: Tokenizer, tmp_path: Path) -> None:
    for _ in range(2):
        store = open_store(text_of("   "), words, cache=tmp_path)
        assert (len(store), store.tokens.tolist(), store.lines, store.bytes) == (0, [], 0, 3)
        assert store.residue_bits > 0


def test_progress_tells_bytes(words: Tokenizer, tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    texts = text_of("the cat é\n" * 120_000)
    open_store(texts, words, cache=tmp_path, progress=lambda done, total: told.append((done, total)))
    assert len(told) > 1
    assert told == sorted(told)
    assert told[-1] == (texts.size, texts.size)


def test_default_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CHAINRULE_CACHE", str(tmp_path / "own"))
    assert default_cache() == tmp_path / "own"
    monkeypatch.delenv("CHAINRULE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache() == tmp_path / "chainrule"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_cache() == tmp_path / ".cache" / "chainrule"


def test_cache_that_cannot_be_written(words: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("CHAINRULE_CACHE", str(tmp_path / "file" / "cache"))
    store = open_store(text_of(TEXT), words)
    folder = store.folder
    assert store.tokens.tolist() == words.encode_block(TEXT).tolist()
    assert tmp_path not in folder.parents
    del store
    assert not folder.exists()


@given(text=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=80))
@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.parametrize("kind", ["char", "byte", "word"])
def test_any_text(kind: str, text: str, tmp_path: Path) -> None:
    tokenizer = train_tokenizer(kind, text_of(text))
    store: TokenStore = open_store(text_of(text), tokenizer, cache=tmp_path)
    assert store.tokens.tolist() == tokenizer.encode_block(text).tolist()
    assert (store.bytes, store.lines, store.oov) == (len(text.encode()), text.count("\n"), 0)
    if kind != "word":
        assert tokenizer.decode(store.tokens) == text
