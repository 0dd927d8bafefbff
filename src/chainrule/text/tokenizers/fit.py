"""The tokeniser of a text: which kind, if none is given, and its training.

A text is taken as already split into words if it contains `<unk>` and its punctuation stands alone (at most 1% of its
words end in a comma, semicolon, colon, exclamation or question mark), as in the Penn Treebank and WikiText. Only then
does `<unk>` choose the tokeniser.
"""

from __future__ import annotations

from collections.abc import Callable

from chainrule.config import TokenizerConfig
from chainrule.registry import TOKENIZERS
from chainrule.text.readers import Texts
from chainrule.text.tokenizers import Tokenizer, train_tokenizer
from chainrule.text.tokenizers.vocabulary import UNK_PIECE

SAMPLE = 100_000
"""Bytes at the beginning of a text from which the kind is chosen."""

SMALL = 300_000
"""Bytes below which subwords are not worth it."""

PUNCTUATION = (",", ";", ":", "!", "?")
MAX_GLUED = 0.01
"""Share of words that end in punctuation, at most, in a text that is already split into words."""

PREPARED = "the text has <unk> and its punctuation stands alone, so it is already split into words"


def fit_tokenizer(
    config: TokenizerConfig, texts: Texts, note: Callable[[str], None], side: str = "", reason: str = ""
) -> tuple[Tokenizer, TokenizerConfig]:
    """A tokeniser fitted to a text, or read from a file, and the options it was fitted with.

    `note` receives its kind, why it was chosen (`reason`, if the caller chose it), and what it does with `<unk>`.
    """
    sample = sample_of(texts)
    chosen = choose_tokenizer(config, sample, texts.size)
    if config.kind is None:
        reason = _reason(sample, texts.size)
    note(f"tokeniser{side}: {_described(chosen)}{f' ({reason})' if reason else ''}{_unk_note(chosen, sample)}")
    options = {"split": chosen.split, "unk": chosen.unk} if chosen.kind == "word" else {}
    tokenizer = train_tokenizer(
        str(chosen.kind), texts, vocab_size=chosen.vocab_size, min_count=chosen.min_count or 1, **options
    )
    return tokenizer, chosen.model_copy(update={"vocab_size": tokenizer.vocab_size})


def sample_of(texts: Texts) -> str:
    """The beginning of a text."""
    return next(texts.blocks()).data[:SAMPLE].decode(errors="replace")


def choose_tokenizer(config: TokenizerConfig, sample: str, size: int) -> TokenizerConfig:
    """The options with kind, min_count and unk filled in, for a text of `size` bytes that begins with `sample`."""
    prepared = is_prepared(sample)
    if config.kind is not None:
        kind = config.kind
    elif prepared:
        kind = "word"
    else:
        kind = "char" if _is_chinese(sample) or size < SMALL else "bpe"
    chosen = {"kind": kind, "min_count": config.min_count or default_min_count(kind, prepared, config.vocab_size)}
    if kind == "word" and config.unk is None:
        chosen["unk"] = "text" if config.split == "unicode" and not prepared else "token"
    return config.model_copy(update=chosen)


def default_min_count(kind: str, prepared: bool, vocab_size: int | None) -> int:
    """2 for words whose number is not limited: a model that never saw <unk> in training would give it no probability.

    `prepared`: whether rare words of the text are already replaced by `<unk>`.
    """
    return 2 if kind in ("word", "jieba") and not prepared and vocab_size is None else 1


def is_prepared(sample: str) -> bool:
    """Whether a text is already split into words, with rare ones replaced by `<unk>`."""
    words = sample.split()
    glued = sum(word.endswith(PUNCTUATION) and len(word) > 1 for word in words)
    return UNK_PIECE in sample and glued <= MAX_GLUED * len(words)


def _is_chinese(sample: str) -> bool:
    return sum("\u3400" <= letter <= "\u9fff" for letter in sample) > 0.3 * max(1, len(sample))


# Notes


def _reason(sample: str, size: int) -> str:
    """Why the kind was chosen for a text."""
    if is_prepared(sample):
        return PREPARED
    if _is_chinese(sample):
        return "the text is Chinese"
    return f"the text has {'less' if size < SMALL else 'more'} than {SMALL // 1000} kB"


def _described(chosen: TokenizerConfig) -> str:
    if chosen.kind != "word":
        return str(chosen.kind)
    return f"word, split at {'white space' if chosen.split == 'space' else 'word boundaries'}"


def _unk_note(chosen: TokenizerConfig, sample: str) -> str:
    """What happens to `<unk>` in a text that contains it, for the kinds that are fitted to the text."""
    if UNK_PIECE not in sample or chosen.kind not in TOKENIZERS.names():
        return ""
    token = chosen.kind == "jieba" or (chosen.kind == "word" and chosen.unk == "token")
    return f"; <unk> in the text is {'the token of unknown words' if token else 'text like any other'}"
