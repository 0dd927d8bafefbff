"""The tokeniser of a text: which kind is chosen, and what it is fitted with."""

from __future__ import annotations

from typing import Any

import pytest

from chainrule.config import TokenizerConfig
from chainrule.errors import ConfigError
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
    assert notes == ["tokeniser of the source: char (the text has less than 300 kB)"]
    assert (tokenizer.kind, options.kind, options.min_count) == ("char", "char", 1)
    assert options.vocab_size == tokenizer.vocab_size == len({*ENGLISH} - {"\n"}) + 2


def test_words_are_split_as_asked() -> None:
    config = TokenizerConfig(kind="word", split="unicode", min_count=1)
    tokenizer, options = fit_tokenizer(config, text_of("well, well"), lambda note: None)
    assert [tokenizer.piece(token) for token in tokenizer.encode("well, well")] == ["well", ",", "well"]
    assert options.split == "unicode"


PREPARED = " mr. <unk> is chairman , and president of the company\n" * 50
RAW = "Thou art a villain, sir, and a <unk>!\n" * 50


def test_unk_chooses_the_tokeniser_only_where_punctuation_stands_alone() -> None:
    assert choose_tokenizer(TokenizerConfig(), PREPARED, 10**6).kind == "word"
    assert choose_tokenizer(TokenizerConfig(), RAW, 10**6).kind == "bpe"
    mixed = PREPARED + RAW  # some rows of prepared text among others
    assert choose_tokenizer(TokenizerConfig(), mixed, 10**6).kind == "bpe"


@pytest.mark.parametrize(
    ("text", "given", "note"),
    [
        (
            PREPARED,
            {},
            "tokeniser: word, split at white space (the text has <unk> and its punctuation stands alone, so it is "
            "already split into words); <unk> in the text is the token of unknown words",
        ),
        (
            RAW,
            {},
            "tokeniser: char (the text has less than 300 kB); <unk> in the text is text like any other",
        ),
        (
            RAW,
            {"kind": "word", "split": "unicode"},
            "tokeniser: word, split at word boundaries; <unk> in the text is text like any other",
        ),
        (
            RAW,
            {"kind": "word"},
            "tokeniser: word, split at white space; <unk> in the text is the token of unknown words",
        ),
        (ENGLISH, {"kind": "word"}, "tokeniser: word, split at white space"),
    ],
)
def test_the_note_states_why_and_what_becomes_of_unk(text: str, given: dict[str, Any], note: str) -> None:
    notes: list[str] = []
    fit_tokenizer(TokenizerConfig(**given), text_of(text), notes.append)
    assert notes == [note]


def test_unk_in_a_raw_text_is_not_the_unknown_token() -> None:
    config = TokenizerConfig(kind="word", split="unicode", min_count=1)
    tokenizer, options = fit_tokenizer(config, text_of(RAW), lambda note: None)
    assert options.unk == "text"
    assert [tokenizer.piece(token) for token in tokenizer.encode("a <unk>")] == ["a", "␣<", "￭unk", ">"]
    assert tokenizer.unk not in tokenizer.encode("a <unk>!")
    assert tokenizer.decode(tokenizer.encode("a <unk>!")) == "a <unk>!"
    assert type(tokenizer).from_state(tokenizer.state(), {}).encode("a <unk>") == tokenizer.encode("a <unk>")
    prepared, options = fit_tokenizer(config, text_of(PREPARED), lambda note: None)
    assert options.unk == "token"
    assert prepared.encode("<unk>") == [prepared.unk]
    assert "unk" not in prepared.state()


def test_unk_as_text_needs_the_unicode_split() -> None:
    with pytest.raises(ConfigError, match=r"add --set tokenizer.split=unicode"):
        fit_tokenizer(TokenizerConfig(kind="word", unk="text"), text_of(RAW), lambda note: None)
