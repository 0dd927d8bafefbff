"""Masking against its definition: how many tokens, in which ways, and whole words against a loop over the text."""

from __future__ import annotations

import math
from collections import Counter
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch

from chainrule.data.batches import BlockBatches
from chainrule.data.masks import Draws, MaskedBatches, Masking, word_boundaries
from chainrule.errors import ConfigError, DataError
from chainrule.text import text_of, train_tokenizer
from chainrule.text.tokenizers import Tokenizer
from chainrule.text.tokenizers.huggingface import HuggingFaceTokenizer

EOS, MASK, V = 1, 50, 50


def masking(**options: Any) -> Masking:
    return Masking(**{"mask": MASK, "vocab_size": V, "special": (EOS,), **options})


def masking_of(tokenizer: Tokenizer, **options: Any) -> Masking:
    return Masking(tokenizer.vocab_size, tokenizer.vocab_size, (tokenizer.eos,), **options)


def some_text(rows: int, length: int, seed: int = 0) -> np.ndarray:
    """Tokens 0 to 49, in lines of about ten."""
    rng = np.random.default_rng(seed)
    return np.where(rng.random((rows, length)) < 0.1, EOS, rng.integers(2, V, (rows, length)))


def within(times: int, of: int, chance: float) -> bool:
    """Whether a count is within five standard deviations of the binomial mean."""
    return abs(times - of * chance) < 5 * math.sqrt(of * chance * (1 - chance))


@pytest.mark.parametrize(("rate", "mask_share", "random_share"), [(0.15, 0.8, 0.1), (0.4, 0.5, 0.3), (0.1, 0.0, 1.0)])
def test_shares_are_as_configured(rate: float, mask_share: float, random_share: float) -> None:
    tokens = some_text(400, 300)
    made = masking(rate=rate, mask_share=mask_share, random_share=random_share)
    read, chosen = made.apply(tokens, Draws.of(np.random.default_rng(1), *tokens.shape))
    words = tokens != EOS
    assert not chosen[~words].any()
    assert within(chosen.sum(), words.sum(), rate)
    masked, other = chosen & (read == MASK), chosen & (read != MASK) & (read != tokens)
    assert within(masked.sum(), chosen.sum(), mask_share) or mask_share in (0, 1)
    assert masked.any() == (mask_share > 0)
    # One draw in 48 is the token itself.
    assert within(other.sum(), chosen.sum(), random_share * 47 / 48)
    assert (read == tokens)[~chosen].all()


def test_a_random_token_is_any_but_eos_and_the_mask() -> None:
    tokens = np.full((200, 500), 7)
    made = masking(rate=0.5, mask_share=0.0, random_share=1.0, mask=9)
    read, chosen = made.apply(tokens, Draws.of(np.random.default_rng(2), *tokens.shape))
    seen = Counter(read[chosen].tolist())
    assert set(seen) == set(range(V)) - {EOS, 9}
    expected = chosen.sum() / 48
    chi_square = sum((times - expected) ** 2 / expected for times in seen.values())
    assert chi_square < 47 + 5 * math.sqrt(2 * 47)  # its mean and five deviations


def test_every_row_with_a_word_has_one_chosen() -> None:
    tokens = np.full((500, 3), EOS)
    tokens[::2, 1] = 5  # every other row has one word, the rest none
    chosen = masking(rate=0.01).choose(tokens, np.random.default_rng(3).random(tokens.shape))
    assert (chosen.any(1) == (np.arange(500) % 2 == 0)).all()
    assert chosen[::2, 1].all()


# Whole words


def naive_words(pieces: list[str], kind: str) -> list[int]:
    """The index of the word that each piece belongs to, by a loop."""
    numbers: list[int] = []
    for place, piece in enumerate(pieces):
        before = pieces[place - 1] if place else "<eos>"
        fresh = {
            "sp": piece.startswith("▁") or before == "</s>" or piece == "</s>",
            "char": " " in (piece, before) or "<eos>" in (piece, before),
            "wordpiece": not piece.startswith("##"),
        }[kind]
        numbers.append(numbers[-1] + bool(fresh) if numbers else 0)
    return numbers


def wordpiece() -> Tokenizer:
    """A small WordPiece tokeniser, like that of BERT."""
    words = ["[UNK]", "[SEP]", "[MASK]", "[CLS]", "the", "cat", "##s", "play", "##ing", "and", "##ed", "un", "##play"]
    made = tokenizers.Tokenizer(
        tokenizers.models.WordPiece({word: number for number, word in enumerate(words)}, unk_token="[UNK]")
    )
    made.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    return HuggingFaceTokenizer(made.to_str().encode())


ENGLISH = "the cats are playing and unplayed, the cat is not playing the catalogue again and again\n" * 30


@pytest.mark.parametrize("kind", ["sp", "char", "wordpiece"])
def test_whole_words_are_chosen_or_not_at_all(kind: str) -> None:
    if kind == "wordpiece":
        tokenizer = wordpiece()
    else:
        options = {"vocab_size": 290} if kind == "sp" else {}
        tokenizer = train_tokenizer("bpe" if kind == "sp" else "char", text_of(ENGLISH), **options)
    tokens = tokenizer.encode_block(ENGLISH).astype(np.int64)[None]
    words = np.array(naive_words([tokenizer.piece(token) for token in tokens[0].tolist()], kind))
    made = masking_of(tokenizer, rate=0.3, boundaries=word_boundaries(tokenizer))
    chosen = made.choose(tokens, np.random.default_rng(4).random(tokens.shape))[0]
    maskable = [number for number in range(words.max() + 1) if (tokens[0][words == number] != tokenizer.eos).all()]
    shares = [chosen[words == number].mean() for number in maskable]
    assert set(shares) == {0.0, 1.0}
    assert within(int(sum(shares)), len(shares), 0.3)
    assert max(Counter(words.tolist()).values()) > 2  # some words have several pieces
    assert not chosen[tokens[0] == tokenizer.eos].any()


def test_single_tokens_are_chosen_without_the_option() -> None:
    tokenizer = train_tokenizer("char", text_of(ENGLISH))
    tokens = tokenizer.encode_block(ENGLISH).astype(np.int64)[None]
    made = masking_of(tokenizer, rate=0.3)
    chosen = made.choose(tokens, np.random.default_rng(4).random(tokens.shape))[0]
    words = np.array(naive_words([tokenizer.piece(token) for token in tokens[0].tolist()], "char"))
    assert any(0 < chosen[words == number].mean() < 1 for number in range(words.max()))


@pytest.mark.parametrize(("kind", "pieces"), [("char", 1), ("byte", 3)])
def test_a_chinese_character_is_a_word(kind: str, pieces: int) -> None:
    text = "春眠不覺曉，處處聞啼鳥。夜來風雨聲，花落知多少。\n"
    tokenizer = train_tokenizer(kind, text_of(text))
    tokens = tokenizer.encode_block(text).astype(np.int64)[None]
    made = masking_of(tokenizer, rate=0.5, boundaries=word_boundaries(tokenizer))
    chosen = made.choose(tokens, np.random.default_rng(5).random(tokens.shape))[0]
    by_character = chosen[:-1].reshape(-1, pieces)
    assert (by_character.all(1) == by_character.any(1)).all()
    assert 0 < by_character.all(1).sum() < 24


def test_the_tokens_of_a_word_tokeniser_are_words() -> None:
    boundaries = word_boundaries(train_tokenizer("word", text_of("a b c a b\n")))
    assert boundaries.begins_V.all()


# Batches


def make(count: int = 900, rows: int = 4, length: int = 40, **options: Any) -> MaskedBatches:
    text = some_text(1, count, seed=6)[0].astype(np.uint16)
    known: dict[str, Any] = {"masking": masking(), "eos": EOS, "seed": 3}
    return MaskedBatches(text, rows, length, **{**known, **options})


def test_batches_are_the_blocks_of_the_text_with_tokens_masked() -> None:
    made = make()
    blocks = BlockBatches(some_text(1, 900, seed=6)[0], 4, 40, eos=EOS, seed=3)
    assert made.per_epoch == blocks.per_epoch
    for index in range(2 * made.per_epoch):
        batch, fresh = made.batch(index)
        assert fresh
        assert batch.weights_BT is not None
        assert torch.equal(batch.targets_BT, blocks.batch(index)[0].inputs_BT)
        kept = batch.weights_BT == 0
        assert torch.equal(batch.inputs_BT[kept], batch.targets_BT[kept])
        assert ((batch.weights_BT == 0) | (batch.weights_BT == 1)).all()
        assert (batch.weights_BT.sum(1) >= 1).all()


def test_a_batch_is_a_function_of_its_number() -> None:
    straight = [make().batch(index)[0] for index in range(5)]
    made = make()
    for index in (4, 0, 3, 3, 1, 2):
        assert all(map(torch.equal, made.batch(index)[0][:3], straight[index][:3]))


def test_each_row_batch_epoch_and_seed_is_masked_differently() -> None:
    def chosen(index: int, row: int = 0, **options: Any) -> list[float]:
        weights_BT = make(count=101, rows=2, length=50, **options).batch(index)[0].weights_BT
        assert weights_BT is not None
        return weights_BT[row].tolist()

    found = [chosen(0), chosen(0, row=1), chosen(1), chosen(2), chosen(0, seed=4)]
    assert all(a != b for a, b in combinations(found, 2))


def test_every_row_begins_with_the_first_token_which_is_never_chosen() -> None:
    plain, begun = make().batch(2)[0], make(first=33).batch(2)[0]
    for one, other, before in zip(begun[:3], plain[:3], (33, 33, 0), strict=True):
        assert (one[:, 0] == before).all()
        assert torch.equal(one[:, 1:], other)


def test_a_tokeniser_without_words_is_an_error() -> None:
    with pytest.raises(ConfigError) as caught:
        Masking(mask=2, vocab_size=2, special=(0, 1))
    assert str(caught.value) == (
        "the tokeniser has 2 tokens and none of them is a word to mask; train on a text with words, or choose another "
        "tokenizer"
    )


def test_a_text_of_one_token_is_an_error() -> None:
    with pytest.raises(DataError) as caught:
        make(count=1)
    assert str(caught.value) == (
        "a text of 1 token is too short to mask a token and predict it from others; give more text, also for validation"
    )
    assert make(count=2).batch(0)[0].inputs_BT.shape == (1, 1)
