"""The tokeniser of a text: which kind is chosen, and what it is fitted with."""

from __future__ import annotations

from typing import Any

import pytest

from chainrule.config import TokenizerConfig
from chainrule.text import text_of
from chainrule.text.tokenizers.fit import choose_tokenizer, fit_tokenizer, sample_of

ENGLISH = "The quick brown fox jumps over the lazy dog.\n" * 100


@pytest.mark.parametrize(
    ("sample", "size", "kind", "min_count"),
    [
        (ENGLISH, 5_000_000, "bpe", 1),
        (ENGLISH, 10_000, "char", 1),
        ("九陌雲初霽，皇衢柳已新。\n" * 50, 5_000_000, "char", 1),
        (" mr. <unk> is chairman\n", 5_000_000, "word", 1),
    ],
)
def test_the_kind_depends_on_the_text(sample: str, size: int, kind: str, min_count: int) -> None:
    chosen = choose_tokenizer(TokenizerConfig(), sample, size)
    assert (chosen.kind, chosen.min_count) == (kind, min_count)


@pytest.mark.parametrize(
    ("sample", "given", "min_count"),
    [
        (ENGLISH, {"kind": "word"}, 2),
        (ENGLISH, {"kind": "jieba"}, 2),
        (ENGLISH, {"kind": "word", "vocab_size": 100}, 1),
        (ENGLISH, {"kind": "word", "min_count": 3}, 3),
        ("<unk>", {"kind": "word"}, 1),
        (ENGLISH, {"kind": "bpe"}, 1),
    ],
)
def test_words_seen_once_become_unknown_unless_the_text_has_unknown_words(
    sample: str, given: dict[str, Any], min_count: int
) -> None:
    assert choose_tokenizer(TokenizerConfig(**given), sample, 10**6).min_count == min_count


def test_the_sample_is_the_beginning_of_the_text() -> None:
    assert sample_of(text_of("é" * 60_000)) == "é" * 50_000
    assert sample_of(text_of("a\nb")) == "a\nb"


def test_a_fitted_tokeniser_comes_with_its_options() -> None:
    notes: list[str] = []
    tokenizer, options = fit_tokenizer(TokenizerConfig(), text_of(ENGLISH), notes.append, " of the source")
    assert notes == ["tokeniser of the source: char"]
    assert (tokenizer.kind, options.kind, options.min_count) == ("char", "char", 1)
    assert options.vocab_size == tokenizer.vocab_size == len({*ENGLISH} - {"\n"}) + 2


def test_words_are_split_as_asked() -> None:
    config = TokenizerConfig(kind="word", split="unicode", min_count=1)
    tokenizer, options = fit_tokenizer(config, text_of("well, well"), lambda note: None)
    assert [tokenizer.piece(token) for token in tokenizer.encode("well, well")] == ["well", ",", "well"]
    assert options.split == "unicode"
