"""One text to train on and one to validate with, as tokens of one tokeniser."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from chainrule.base.grammar import plural
from chainrule.checkpoint.folder import RunFolder
from chainrule.config import DataConfig, RunConfig, TrainingConfig
from chainrule.data.held_out import hold_out_text
from chainrule.data.store import TokenStore, open_store
from chainrule.errors import DataError
from chainrule.tasks.task import Corpus, Listener, ValidationData, look_like_pairs, saved_tokenizers
from chainrule.text.readers import Texts, open_texts
from chainrule.text.splitting import some_lines
from chainrule.text.tokenizers.fit import fit_tokenizer
from chainrule.types import Vocabulary


@dataclass
class TextCorpus(Corpus):
    """Tokens to train on and to validate with. Subclasses make batches and a validator."""

    train: TokenStore
    valid: TokenStore
    held_out: bool = True  # whether `valid` is a part of the training data; False: given
    split: dict[str, str] | None = None  # fingerprints of the parts of a text that was counted whole

    @property
    def vocabulary(self) -> Vocabulary:
        size = self.tokenizer.vocab_size
        pieces = tuple(map(self.tokenizer.piece, range(size)))
        return Vocabulary(size, self.tokenizer.eos, np.asarray(self.train.counts_V), pieces=pieces)

    @property
    def tokens(self) -> int:
        return len(self.train)

    @property
    def validation_data(self) -> ValidationData | None:
        if self.valid is self.train:
            return None
        oov = None if self.tokenizer.unk is None else self.valid.oov
        return ValidationData(self.held_out, self.valid.bytes, "byte", len(self.valid), oov)

    @property
    def fingerprints(self) -> dict[str, str]:
        return self.split or {"data": self.train.fingerprint, "valid": self.valid.fingerprint}


def steps_in_text(training: TrainingConfig, tokens: int) -> float:
    """The number of optimiser steps that read a text of some tokens once."""
    assert training.batch_size is not None
    assert training.length is not None
    return tokens / (training.batch_size * training.length * training.accumulate)


C = TypeVar("C", bound=TextCorpus)


def open_text_corpus(
    kind: type[C], config: RunConfig, folder: RunFolder, listener: Listener, *, whole: bool = False
) -> C:
    """The text of a run as a corpus of a kind; `whole`: hold nothing out."""
    texts, valid = training_texts(config.data, whole=whole)
    if valid is texts and not whole:
        listener.note(f"{texts.name} is a single line and cannot be split: validating on the training text itself")
    if (saved := saved_tokenizers(config, folder)) is None:
        tokenizer, options = fit_tokenizer(config.tokenizer, texts, listener.note)
    else:
        tokenizer, options = saved.tokenizer, saved.config
    store = open_store(texts, tokenizer, progress=listener.tokenized)
    if len(store) < 2:
        raise DataError(f"{texts.name} has {plural(len(store), 'token')}; training needs at least 2, give more text.")
    valid_store = store if valid is texts else open_store(valid, tokenizer)
    return kind(tokenizer, options, store, valid_store, not config.data.valid)


def training_texts(data: DataConfig, *, whole: bool = False) -> tuple[Texts, Texts]:
    """The text to train on, and the text to validate with: the given one, else the end of the first.

    A text of one line, and a `whole` one, is its own validation text.
    """
    texts = open_texts(data.train, field=data.field)
    if data.lines:
        texts = some_lines(texts, 0, data.lines)
    _refuse_blank(texts)
    if data.valid:
        valid = validation_text(data)
        _refuse_blank(valid)
        return texts, valid
    return (None if whole else hold_out_text(texts, data.held_out)) or (texts, texts)


def validation_text(data: DataConfig) -> Texts:
    """The text to validate with, as `training_texts` gives it."""
    if not data.valid:
        return training_texts(data)[1]
    valid = open_texts(data.valid, field=data.field)
    return some_lines(valid, 0, data.valid_lines) if data.valid_lines else valid


def _refuse_blank(texts: Texts) -> None:
    if not any(block.data.strip() for block in texts.blocks()):
        raise DataError(f"{texts.name} has blank lines only: expected text; give a file with at least one word.")


def refuse_pairs(paths: Sequence[str], model: str) -> None:
    """Refuse the two sides of pairs where one text is read: they are unlikely to be meant as one."""
    if look_like_pairs(paths):
        raise DataError(
            f"{' and '.join(paths)} look like pairs, but {model} reads one text; choose a translator (--model "
            "seq2seq-attention), or give one side, or both joined in one .txt file"
        )
