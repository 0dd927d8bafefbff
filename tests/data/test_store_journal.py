"""A first pass over a large text that was killed continues with the pieces that it had written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from chainrule.base.cache import LIMIT
from chainrule.data import store_journal
from chainrule.data.store import open_store
from chainrule.text import Texts, Tokenizer, open_texts, text_of, train_tokenizer

BLOCKS = 7


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Texts:
    """A text of seven blocks, in pieces of two."""
    monkeypatch.setattr(store_journal, "LARGE", 0)
    monkeypatch.setattr(store_journal, "PIECE_BLOCKS", 2)
    path = tmp_path / "text.txt"
    path.write_text("".join(f"the cat sat on {number} mats\n" for number in range(130_000)))
    return open_texts([path])


class Killed(BaseException):
    """Ends a process at a block."""


def encoding(monkeypatch: pytest.MonkeyPatch, tokenizer: Tokenizer, last: int = 1000) -> list[int]:
    """The blocks that are encoded from now on; the process is killed at one of them."""
    done: list[int] = []
    plain = type(tokenizer).encode_block

    def encode(block: str) -> Any:
        if len(done) == last:
            raise Killed
        done.append(len(block))
        return plain(tokenizer, block)

    monkeypatch.setattr(tokenizer, "encode_block", encode)
    return done


def kill(texts: Texts, tokenizer: Tokenizer, cache: Path, at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write a store, and be killed at a block."""
    with monkeypatch.context() as patch:
        encoding(patch, tokenizer, last=at)
        with pytest.raises(Killed):
            open_store(texts, tokenizer, cache=cache)


@pytest.mark.parametrize("killed_at", [0, 1, 5])
def test_a_killed_first_pass_is_continued(
    texts: Texts, killed_at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = train_tokenizer("word", text_of("the cat sat on mats\n"))
    monkeypatch.setattr(words, "concurrent", False, raising=False)
    assert len(list(words.blocks(texts))) == BLOCKS
    whole = open_store(texts, words, cache=tmp_path / "whole")
    kill(texts, words, tmp_path / "cache", killed_at, monkeypatch)
    (pieces,) = [*(tmp_path / "cache").glob(store_journal.PATTERN)] or [None]
    assert len(list(pieces.iterdir()) if pieces else []) == killed_at // 2
    done, progress = encoding(monkeypatch, words), list[tuple[int, int]]()
    store = open_store(texts, words, cache=tmp_path / "cache", progress=lambda *state: progress.append(state))
    assert len(done) == BLOCKS - killed_at // 2 * 2
    assert store.tokens.tobytes() == whole.tokens.tobytes()
    assert store.counts_V.tolist() == whole.counts_V.tolist()
    assert (store.lines, store.fingerprint) == (whole.lines, whole.fingerprint)
    assert progress[-1] == (texts.size, texts.size)
    assert not list((tmp_path / "cache").glob(store_journal.PATTERN))


def test_a_damaged_piece_is_encoded_again(texts: Texts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = train_tokenizer("word", text_of("the cat sat on mats\n"))
    monkeypatch.setattr(words, "concurrent", False, raising=False)
    whole = open_store(texts, words, cache=tmp_path / "whole").tokens.tobytes()
    kill(texts, words, tmp_path / "cache", 6, monkeypatch)
    (pieces,) = (tmp_path / "cache").glob(store_journal.PATTERN)
    for number, change in ((0, lambda data: b"\1" + data[1:]), (1, lambda data: data[:3])):
        (pieces / str(number)).write_bytes(change((pieces / str(number)).read_bytes()))
    done = encoding(monkeypatch, words)
    assert open_store(texts, words, cache=tmp_path / "cache").tokens.tobytes() == whole
    assert len(done) == BLOCKS - 2


def test_pieces_of_an_abandoned_pass_are_evicted(texts: Texts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = train_tokenizer("word", text_of("the cat sat on mats\n"))
    monkeypatch.setattr(words, "concurrent", False, raising=False)
    kill(texts, words, tmp_path, 4, monkeypatch)
    assert list(tmp_path.glob(store_journal.PATTERN))
    monkeypatch.setenv(LIMIT, "1K")
    open_store(text_of("the cat\n"), words, cache=tmp_path)
    assert not list(tmp_path.glob(store_journal.PATTERN))
