"""The tokeniser of a text: which kind, if none is given, and its training."""

from __future__ import annotations

from collections.abc import Callable

from chainrule.config import TokenizerConfig
from chainrule.text.readers import Texts
from chainrule.text.tokenizers import Tokenizer, train_tokenizer
from chainrule.text.tokenizers.vocabulary import UNK_PIECE

SAMPLE = 100_000
"""Bytes at the beginning of a text from which the kind is chosen."""


def fit_tokenizer(
    config: TokenizerConfig, texts: Texts, note: Callable[[str], None], side: str = ""
) -> tuple[Tokenizer, TokenizerConfig]:
    """A tokeniser fitted to a text, or read from a file, and the options it was fitted with."""
    chosen = choose_tokenizer(config, sample_of(texts), texts.size)
    note(f"tokeniser{side}: {chosen.kind}")
    options = {"split": chosen.split} if chosen.kind == "word" else {}
    tokenizer = train_tokenizer(
        str(chosen.kind), texts, vocab_size=chosen.vocab_size, min_count=chosen.min_count or 1, **options
    )
    return tokenizer, chosen.model_copy(update={"vocab_size": tokenizer.vocab_size})


def sample_of(texts: Texts) -> str:
    """The beginning of a text."""
    return next(texts.blocks()).data[:SAMPLE].decode(errors="replace")


def choose_tokenizer(config: TokenizerConfig, sample: str, size: int) -> TokenizerConfig:
    """The options with kind and min_count filled in, for a text of `size` bytes that begins with `sample`."""
    prepared = UNK_PIECE in sample  # the text is already split into words, with rare ones replaced
    if config.kind is not None:
        kind = config.kind
    elif prepared:
        kind = "word"
    else:
        kind = "char" if _share_of_chinese(sample) > 0.3 or size < 300_000 else "bpe"
    # Words seen once are treated as unknown: a model that never saw <unk> in training would give it no probability.
    once = kind in ("word", "jieba") and not prepared and config.vocab_size is None
    return config.model_copy(update={"kind": kind, "min_count": config.min_count or (2 if once else 1)})


def _share_of_chinese(sample: str) -> float:
    return sum("\u3400" <= letter <= "\u9fff" for letter in sample) / max(1, len(sample))
