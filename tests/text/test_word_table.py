"""The kernels find the words of `str.split`, and count and look them up exactly."""

from __future__ import annotations

import sys
from collections import Counter
from itertools import chain

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from chainrule.base.lazy import LazyKernels
from chainrule.text import text_of, train_tokenizer
from chainrule.text.tokenizers.vocabulary import EOS, UNK, count_parts, most_frequent
from chainrule.text.tokenizers.word import WordTokenizer
from chainrule.text.tokenizers.word_kernels import MIN_PLACES
from chainrule.text.tokenizers.word_table import TokenIndex, WordCounts, count_block, count_words

SPACES = "".join(filter(str.isspace, map(chr, range(sys.maxunicode + 1))))
NO_SPACES = "\0\x08\x0e\x1b\x21\x84\x86\xa1\u1681\u180e\u1fff\u200b\u2027\u202a\u2030\u205e\u2060\u2fff\u3001\ufeff"
PARTS = st.sampled_from(
    [*SPACES, *NO_SPACES, "\n", "<unk>", "<eos>", "the", "a" * 8, "a" * 9, "ab" * 8, "ab" * 9, "白日依山盡"]
)
TEXTS = st.lists(PARTS | st.text(st.characters(exclude_categories=["Cs"]), max_size=12), max_size=30).map("".join)
BLOCKS = st.lists(st.lists(st.sampled_from("abcdefg\n"), max_size=8).map(" ".join), max_size=6)


def split_ids(tokenizer: WordTokenizer, text: str) -> list[int]:
    """The ids of a text by `str.split` and a dictionary."""
    index = {part: number for number, part in enumerate(tokenizer.parts, start=2)} | {"<unk>": UNK}
    lines = [[index.get(word, UNK) for word in line.split()] for line in text.split("\n")]
    return list(chain.from_iterable([*line, EOS] for line in lines))[:-1]


@given(text=TEXTS, other=TEXTS)
@example(text=SPACES.join("xyz"), other=NO_SPACES)
def test_any_text_equals_str_split(text: str, other: str) -> None:
    expected = Counter(text.split())
    assert count_words([text], max_types=10**6, threads=1) == expected
    tokenizer = WordTokenizer(most_frequent(expected, vocab_size=None, min_count=1))
    for given_text in (text, other, text + other):
        ids = tokenizer.encode_block(given_text)
        assert ids.dtype == np.int32
        assert ids.tolist() == split_ids(tokenizer, given_text)
        assert tokenizer.encode_bytes(given_text.encode()).tolist() == ids.tolist()


@given(text=TEXTS)
def test_encoding_finds_the_words(text: str) -> None:
    LazyKernels.load_all()
    tokenizer = WordTokenizer(text.split()[::2])
    encoded = tokenizer.encode_words(text)
    assert encoded.ids.tolist() == split_ids(tokenizer, text)
    assert encoded.words is not None
    lines = text.split("\n")
    tokens = [word.encode() for line in lines for word in [*line.split(), "\n"]][:-1]
    assert encoded.words.where(encoded.ids >= 0) == tokens
    unknown = [one for one, token in zip(tokens, encoded.ids, strict=True) if token == UNK]
    assert encoded.words.where(encoded.ids == UNK) == unknown


def test_every_character() -> None:
    codes = [*range(0x10000), *range(0x10000, sys.maxunicode + 1, 101)]  # and a sample of those with four bytes
    blocks = ["".join(f"a{chr(code)}b " for code in codes[start::8]) for start in range(8)]
    found = count_words(blocks, max_types=10**6, threads=1)
    assert found == Counter(chain.from_iterable(map(str.split, blocks)))
    assert found["a"] == found["b"] == len(SPACES) == 29


@given(blocks=BLOCKS, max_types=st.integers(1, 8), threads=st.sampled_from([1, 2]))
def test_memory_is_bounded_as_for_other_parts(blocks: list[str], max_types: int, threads: int) -> None:
    assert count_words(blocks, max_types=max_types, threads=threads) == count_parts(
        map(str.split, blocks), max_types=max_types
    )


@pytest.mark.parametrize("threads", [1, 3])
def test_tables_grow(threads: int) -> None:
    words = [f"{'long' * (number % 4)}{number}" for number in range(5 * MIN_PLACES)]
    blocks = [" ".join(words[start : start + 9000]) for start in range(0, len(words), 3000)]
    expected = Counter(chain.from_iterable(map(str.split, blocks)))
    assert count_words(blocks, max_types=10**6, threads=threads) == expected
    index = TokenIndex(words, missing=-1)
    assert index.encode(" ".join(words).encode()).tolist() == list(range(len(words)))
    assert index.encode(b"none 12x long long12345678").tolist() == [-1] * 4


def colliding_words() -> tuple[str, str]:
    """Two words of 16 bytes with one key, found by solving the hash for the second half of the second word."""
    odd, half = np.uint64(0x9E3779B97F4A7C15), np.uint64(32)

    def after_half(first: np.ndarray) -> np.ndarray:
        mixed = (first ^ np.uint64(16)) * odd
        return mixed ^ (mixed >> half)

    letters = np.random.default_rng(0).integers(0x21, 0x7F, (200_000, 8), np.uint8)
    firsts = letters.view("<u8")[:, 0]
    last = np.frombuffer(b"ABCDEFGH", "<u8")
    lasts = last ^ after_half(firsts[:1]) ^ after_half(firsts)
    spelled = lasts.view(np.uint8).reshape(-1, 8)
    good = 1 + int(((spelled > 0x20) & (spelled < 0x7F)).all(1)[1:].argmax())
    return (
        letters[0].tobytes().decode() + "ABCDEFGH",
        letters[good].tobytes().decode() + spelled[good].tobytes().decode(),
    )


def test_words_with_equal_hashes_are_distinguished() -> None:
    one, other = colliding_words()
    block = count_block(f"{one} {other} {one}".encode())
    assert one != other
    assert block.keys_V[0] == block.keys_V[1]
    assert block.counts_V.tolist() == [2, 1]
    counts = WordCounts()
    for text in (one, other, other):
        counts.add(count_block(text.encode()))
    assert counts.counter() == {one: 1, other: 2}
    assert TokenIndex([one], missing=7).encode(f"{one} {other}".encode()).tolist() == [0, 7]


def test_short_words_with_zeros_are_distinguished() -> None:
    words = ["a", "a\0", "a\0\0", "\0a", "a" * 8, "a" * 7 + "\0", "a" * 9]
    index = TokenIndex(words, missing=-1)
    for word in words:  # alone, so that no bytes follow that could be loaded
        assert index.encode(word.encode()).tolist() == [words.index(word)]
    assert index.encode(" ".join(words).encode()).tolist() == list(range(len(words)))


def test_incomplete_characters_are_not_white_space() -> None:
    """Bytes at the end of the text that begin like white space."""
    for data in (b"a\xc2", b"a\xe2\x80", b"a\xe3", b"\xe1\x9a"):
        assert count_block(data).counts_V.tolist() == [1]


def test_unusual_vocabularies_encode_like_single_lines() -> None:
    """Vocabularies that only a file can have: repeated parts, white space in a part, `<unk>`, half a surrogate."""
    tokenizer = WordTokenizer(["a", "b", "a", "", "\n", "c d", "<unk>", "\ud800", "x"])
    for text in ("a b c d x", "<unk> a\n\nb", "\ud800 a", "c d\n"):
        assert tokenizer.encode_block(text).tolist() == split_ids(tokenizer, text)
    assert tokenizer.encode_block("a b").tolist() == tokenizer.encode("a b") == [4, 3]


def test_unicode_split_encodes_bytes_too() -> None:
    text = "He said (softly): naïve\n白日 <unk>"
    tokenizer = train_tokenizer("word", text_of(text), split="unicode")
    assert isinstance(tokenizer, WordTokenizer)
    assert tokenizer.encode_bytes(text.encode()).tolist() == tokenizer.encode_block(text).tolist()
    assert not tokenizer.concurrent
