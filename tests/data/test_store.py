"""The token store: its content, when it is reused, and damaged files."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chainrule.base.cache import default_cache
from chainrule.data import store as store_module
from chainrule.data.store import TokenStore, open_store
from chainrule.errors import ConfigError, DataError, DiskError
from chainrule.text import Texts, Tokenizer, open_texts, text_of, train_tokenizer
from chainrule.text.coding.residue_meter import ResidueMeter
from chainrule.text.sources import TextSource

TEXT = " the cat <unk> sat \nthe dog\n\nno newline"


@pytest.fixture
def words() -> Tokenizer:
    return train_tokenizer("word", text_of("the cat sat on the mat\n"))


def forbid(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Make any further use of these names of the store module fail."""

    def refuse(*_: object) -> None:
        raise AssertionError("done again")

    for name in names:
        monkeypatch.setattr(store_module, name, refuse)


def test_content(words: Tokenizer, tmp_path: Path) -> None:
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


def test_reused_when_nothing_changed(words: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = open_store(text_of(TEXT), words, cache=tmp_path)
    other_text = open_store(text_of(TEXT + "!"), words, cache=tmp_path)
    other_words = open_store(text_of(TEXT), train_tokenizer("char", text_of(TEXT)), cache=tmp_path)
    assert len({first.fingerprint, other_text.fingerprint, other_words.fingerprint}) == 3
    assert first.residue_bits > 0
    forbid(monkeypatch, "_write", "_encode_blocks", "ResidueMeter")
    again = open_store(text_of(TEXT), words, cache=tmp_path)
    assert again.tokens.tolist() == first.tokens.tolist()
    assert (again.oov, again.residue_bits, again.fingerprint) == (first.oov, first.residue_bits, first.fingerprint)


def test_residue_is_measured_on_first_use(words: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        forbid(patched, "ResidueMeter")
        store = open_store(text_of(TEXT), words, cache=tmp_path)
    assert not (store.folder / "residue.json").exists()
    assert store.oov == 3
    assert json.loads((store.folder / "residue.json").read_text()) == {"oov": 3, "bits": store.residue_bits}


def test_nothing_is_measured_where_tokens_lose_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forbid(monkeypatch, "ResidueMeter")
    store = open_store(text_of(TEXT), train_tokenizer("byte", text_of(TEXT)), cache=tmp_path)
    assert (store.oov, store.residue_bits) == (0, 0.0)


@pytest.mark.parametrize(
    "damaged", ["", "{", "[1, 2]", '{"oov": 3}', '{"oov": "3", "bits": 1.0}', '{"oov": 3, "bits": null}']
)
def test_damaged_residue_is_measured_again(words: Tokenizer, tmp_path: Path, damaged: str) -> None:
    store = open_store(text_of(TEXT), words, cache=tmp_path)
    expected = (store.oov, store.residue_bits)
    (store.folder / "residue.json").write_text(damaged)
    again = open_store(text_of(TEXT), words, cache=tmp_path)
    assert (again.oov, again.residue_bits) == expected


def test_text_that_changed_before_the_residue_was_measured(words: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    store = open_store(open_texts([path]), words, cache=tmp_path / "cache")
    path.write_text(TEXT.replace("dog", "cat"))
    with pytest.raises(DataError) as caught:
        store.oov  # noqa: B018
    assert str(caught.value) == (
        f"{path} has changed since it was tokenised: expected the same text; run the command again."
    )
    assert not (store.folder / "residue.json").exists()


def test_threads_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [f"word{number % 5000} and <unk> number {number}  {'é' * (number % 3)}" for number in range(50_000)]
    made = []
    for threads in (1, 3):
        monkeypatch.setenv("OMP_NUM_THREADS", str(threads))
        texts = text_of("\n".join(lines))
        tokenizer = train_tokenizer("word", texts, min_count=2)
        store = open_store(texts, tokenizer, cache=tmp_path / str(threads))
        made.append((tokenizer.fingerprint, store.tokens.tobytes(), store.oov, store.residue_bits))
    assert made[0] == made[1]
    assert made[0][2] > 0


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
    bad = Texts([TextSource("bad.txt", lambda: iter([b"fine\n" * 300_000, b"\xff"]))])
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


def test_progress_counts_bytes(words: Tokenizer, tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []
    texts = text_of("the cat é\n" * 120_000)
    open_store(texts, words, cache=tmp_path, progress=lambda done, total: calls.append((done, total)))
    assert len(calls) > 1
    assert calls == sorted(calls)
    assert calls[-1] == (texts.size, texts.size)


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


# The size of the cache


def test_the_cache_is_limited_and_the_texts_unused_for_longest_go_first(
    tmp_path: Path, words: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [text_of(f"{word}\n" * 300) for word in ("the", "cat", "sat")]
    first, second = (open_store(text, words, cache=tmp_path) for text in texts[:2])
    size = sum(file.stat().st_size for file in first.folder.iterdir())
    for age, store in ((50, first), (90, second)):
        os.utime(store.folder, (0, 1_000_000 - age))
    open_store(texts[0], words, cache=tmp_path)  # used again
    monkeypatch.setenv("CHAINRULE_CACHE_SIZE", str(int(2.5 * size)))
    third = open_store(texts[2], words, cache=tmp_path)
    assert (first.folder.exists(), second.folder.exists(), third.folder.exists()) == (True, False, True)
    assert second.tokens[:3].tolist() == words.encode_block("cat\n" * 3).tolist()[:3]  # still mapped
    monkeypatch.setenv("CHAINRULE_CACHE_SIZE", "1")
    alone = open_store(texts[1], words, cache=tmp_path)
    assert [path.parent for path in tmp_path.glob("*/tokens.bin")] == [alone.folder]  # that in use stays
    assert not [path for path in tmp_path.iterdir() if path.name.endswith(".tmp")]


def test_a_text_that_another_process_evicts_is_written_again(
    tmp_path: Path, words: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(text_of(TEXT), words, cache=tmp_path)
    before, read = store.tokens.tolist(), store_module._read_info
    evicted: list[Path] = []

    def read_and_evict(folder: Path, len_counts: int) -> object:
        info = read(folder, len_counts)
        if not evicted:
            evicted.append(folder.rename(tmp_path / "gone"))
        return info

    monkeypatch.setattr(store_module, "_read_info", read_and_evict)
    assert open_store(text_of(TEXT), words, cache=tmp_path).tokens.tolist() == before


def test_a_limit_that_is_no_size_is_refused(tmp_path: Path, words: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHAINRULE_CACHE_SIZE", "much")
    with pytest.raises(ConfigError, match="CHAINRULE_CACHE_SIZE is 'much'; expected a number of bytes"):
        open_store(text_of(TEXT), words, cache=tmp_path)
