"""Small tokenisers of every kind, trained once."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import settings

from chainrule.text import Tokenizer, text_of, train_tokenizer

settings.register_profile("untimed", deadline=None)  # the first example may load a dictionary
settings.load_profile("untimed")

SMALL = "the cat sat on the mat, and <unk> (the dog) said: don't!\n  白日依山盡 黃河入海流\nnaïve  café\t<eos>\n"
KINDS = ("word", "word-unicode", "char", "byte", "bpe", "unigram", "jieba", "huggingface", "sentencepiece")
KINDS += ("sentencepiece-char",)


def _lower_casing() -> Tokenizer:
    """A tokeniser that loses case, spacing and unknown words, and whose end token can occur in a line."""
    from chainrule.text.tokenizers.huggingface import HuggingFaceTokenizer

    vocabulary = {word: number for number, word in enumerate(["[UNK]", "[SEP]", "the", "cat", "sat", "a", "b", "##b"])}
    content = {
        "version": "1.0",
        "truncation": {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0},
        "padding": None,
        "added_tokens": [
            {
                "id": 1,
                "content": "[SEP]",
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
        ],
        "normalizer": {"type": "Lowercase"},
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": None,
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": False},
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": vocabulary,
        },
    }
    return HuggingFaceTokenizer(json.dumps(content).encode())


def _foreign() -> Tokenizer:
    """A sentencepiece model with the library's default settings, which normalise and lack most characters."""
    import io

    import sentencepiece

    from chainrule.text.tokenizers.subword import SentencePieceTokenizer

    model = io.BytesIO()
    lines = iter(["the cat sat on the mat", "a cat is a cat"] * 5)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=lines, model_writer=model, vocab_size=30, hard_vocab_limit=False, minloglevel=2
    )
    return SentencePieceTokenizer(model.getvalue())


@pytest.fixture(scope="session")
def small() -> Callable[[str], Tokenizer]:
    """The tokeniser of a kind, the same one each time."""
    made: dict[str, Tokenizer] = {}

    def make(kind: str) -> Tokenizer:
        if kind == "huggingface":
            return _lower_casing()
        if kind == "sentencepiece":
            return _foreign()
        if kind == "word-unicode":
            return train_tokenizer("word", text_of(SMALL), split="unicode")
        return train_tokenizer(kind, text_of(SMALL))

    def tokenizer(kind: str) -> Tokenizer:
        if kind not in made:
            made[kind] = make(kind)
        return made[kind]

    return tokenizer
