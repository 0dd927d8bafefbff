"""The corpus of a translator: pairs of lines as tokens of one vocabulary or two, in batches of about equal length."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chainrule.base.processes import Processes
from chainrule.base.progress import Progress
from chainrule.checkpoint.folder import RunFolder
from chainrule.config import RunConfig, TokenizerConfig, TrainingConfig
from chainrule.data.batches import Batches
from chainrule.data.pairs import Kept, PairBatches, PairStore, keep_pairs, pair_stores
from chainrule.data.store import open_store
from chainrule.errors import DataError
from chainrule.evaluation.pairs import loss_of_batches, translate_greedily
from chainrule.evaluation.rewards import make_reward
from chainrule.evaluation.significance import make_metric
from chainrule.tasks.language_model import Listener, Validator, fit_tokenizer, kept_tokenizers, seconds_to_validate
from chainrule.text.formats.pairs import Pairs, open_pairs, part_of, prefixed
from chainrule.text.readers import join_texts, lines_in
from chainrule.text.tokenizers import Tokenizer
from chainrule.text.tokenizers.base import FILE
from chainrule.types import Vocabulary

LEAST_PAIRS = 64
"""Translated in a validation by BLEU, whatever they take."""

MOST_HELD_OUT = 2000
"""Pairs held out for validation at most, when none are given for it."""


@dataclass
class PairCorpus:
    """Pairs to train on and to validate with."""

    tokenizer: Tokenizer  # of the target
    source_tokenizer: Tokenizer | None  # None: the same
    options: TokenizerConfig
    train: PairStore
    kept: Kept  # which of them
    valid: PairStore
    valid_P: NDArray[np.int64]

    @property
    def vocabulary(self) -> Vocabulary:
        target, read_V = self.tokenizer, np.asarray(self.train.source.counts_V)
        counts_V = np.asarray(self.train.target.counts_V)
        if (read := self.source_tokenizer) is None:
            return Vocabulary(target.vocab_size, target.eos, counts_V, read_V=read_V)
        return Vocabulary(target.vocab_size, target.eos, counts_V, Vocabulary(read.vocab_size, read.eos, read_V))

    @property
    def tokens(self) -> int:
        return int((self.train.target_rows.lengths_P[self.kept.numbers_P] + 1).sum())

    @property
    def signature(self) -> dict[str, str]:
        signature = {
            "data": self.train.fingerprint,
            "valid": self.valid.fingerprint,
            "tokenizer": f"{self.tokenizer.kind}#{self.tokenizer.fingerprint}",
        }
        if self.source_tokenizer is not None:
            signature["source_tokenizer"] = f"{self.source_tokenizer.kind}#{self.source_tokenizer.fingerprint}"
        return signature

    def save(self, folder: Path) -> None:
        self.tokenizer.save(folder)
        if self.source_tokenizer is not None:
            self.source_tokenizer.save(folder / "source")

    def batches(self, config: RunConfig, processes: Processes) -> Batches:
        assert config.training.max_tokens is not None
        return PairBatches(
            self.train,
            self.kept.numbers_P,
            config.training.max_tokens,
            seed=config.seed,
            rank=processes.rank,
            world=processes.world,
        )

    def validator(self, config: RunConfig) -> Validator:
        t = config.training
        assert t.max_tokens is not None
        numbers_P = _first_tokens(self.valid, self.valid_P, t.valid_tokens)
        longest = int(max(rows.lengths_P[numbers_P].max() for rows in (self.valid.source_rows, self.valid.target_rows)))
        batches = PairBatches(self.valid, numbers_P, max(t.max_tokens, longest + 1), seed=0, shuffled=False)
        chosen_P: NDArray[np.int64] | None = None

        def validate(model: Any) -> dict[str, float]:
            nonlocal chosen_P
            figures = {"loss": loss_of_batches(model, (batches.batch(index)[0] for index in range(batches.per_epoch)))}
            if t.select == "bleu":
                if chosen_P is None:
                    chosen_P = self._affordable(model, numbers_P[: t.valid_pairs], t)
                figures["bleu"] = self.bleu(model, chosen_P)
            return figures

        return validate

    def _affordable(self, model: Any, numbers_P: NDArray[np.int64], training: TrainingConfig) -> NDArray[np.int64]:
        """As many pairs as all validations can translate in a tenth of a budget of minutes."""
        if training.minutes is None or len(numbers_P) <= LEAST_PAIRS:
            return numbers_P
        began = time.perf_counter()
        self.bleu(model, numbers_P[:LEAST_PAIRS])
        rate = LEAST_PAIRS / (time.perf_counter() - began)
        affordable = 1 << int(math.log2(max(1, rate * seconds_to_validate(training))))
        return numbers_P[: max(LEAST_PAIRS, affordable)]

    def bleu(self, model: Any, numbers_P: NDArray[np.int64]) -> float:
        """BLEU of the greedy translations of some validation pairs."""
        sources = [self.valid.source_rows.row(number).tolist() for number in numbers_P.tolist()]
        eos = (self.source_tokenizer or self.tokenizer).eos
        outputs = translate_greedily(model, sources, source_eos=eos, eos=self.tokenizer.eos)
        references = [self.valid.target_rows.row(number).tolist() for number in numbers_P.tolist()]
        written, given = self.texts(outputs), [self.texts(references)]
        return float(make_metric("bleu", given).official.corpus_score(written, given).score)

    def texts(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """Token rows as lines; what the tokeniser does not know (sentinels) is left out."""
        size = self.tokenizer.vocab_size
        return [self.tokenizer.decode(token for token in row if token < size) for row in rows]

    def reward(self, name: str) -> Any:
        """A reward of token rows against token rows, by the texts that they stand for."""
        of_texts = make_reward(name)
        return lambda outputs, references: of_texts(self.texts(outputs), self.texts(references))


def open_pair_corpus(config: RunConfig, folder: RunFolder, listener: Listener, context: int | None) -> PairCorpus:
    """The pairs of a run, tokenised and filtered; `context` is the most tokens the model can read."""
    data = config.data
    pairs = training_pairs(config, data.train, data.lines)
    kept = kept_tokenizers(config, folder)
    if kept is not None:
        tokenizer, source, options = kept.tokenizer, kept.source, kept.options
    elif config.tokenizer.joint and config.tokenizer.source is None:
        (tokenizer, options), source = fit_tokenizer(config.tokenizer, join_texts(*pairs), listener.note), None
    else:
        source, _ = fit_tokenizer(_of_source(config.tokenizer), pairs.source, listener.note, " of the source")
        of_target = config.tokenizer.model_copy(update={"joint": False})
        tokenizer, options = fit_tokenizer(of_target, pairs.target, listener.note, " of the target")
    store = open_pair_store(pairs, source or tokenizer, tokenizer, listener.tokenized)
    numbers_P = np.arange(len(store))
    if data.valid:
        valid = open_pair_store(training_pairs(config, data.valid, data.valid_lines), source or tokenizer, tokenizer)
        valid_P = np.arange(len(valid))
    else:
        begin = first_held_out(len(store), data.held_out)
        valid, (numbers_P, valid_P) = store, (numbers_P[:begin], numbers_P[begin:])
    readable = None if context is None else context - 1  # `eos` comes on top
    longest = min((length for length in (data.max_length, readable) if length is not None), default=None)
    kept_pairs = keep_pairs(store, numbers_P, max_length=longest, max_ratio=data.max_ratio)
    if kept_pairs.sentence:
        listener.note(kept_pairs.sentence)
    valid_P = keep_pairs(valid, valid_P, max_length=readable, max_ratio=None).numbers_P
    return PairCorpus(tokenizer, source, options, store, kept_pairs, valid, valid_P)


def _of_source(options: TokenizerConfig) -> TokenizerConfig:
    """The options of the source's tokeniser; of a folder its tokenizer.json is meant, whoever made it."""
    if options.source is None:
        return options
    path = Path(options.source)
    return options.model_copy(update={"kind": str(path / FILE) if path.is_dir() else options.source})


def training_pairs(config: RunConfig, paths: Sequence[str], lines: int | None) -> Pairs:
    """The pairs of some files, or the first of them, as this run reads them."""
    pairs = open_pairs(paths, fields=(config.data.source_field, config.data.target_field))
    pairs = part_of(pairs, 0, lines) if lines else pairs
    return prefixed(pairs, config.data.prefix) if config.data.prefix else pairs


def first_held_out(pairs: int, share: float) -> int:
    """The number of the first pair that is held out."""
    if pairs < 2:
        raise DataError("there is one pair only, so none can be held out; give more pairs, or others with --valid.")
    return pairs - min(MOST_HELD_OUT, math.ceil(pairs * share))


def held_out(pairs: Pairs, share: float) -> Pairs:
    """The pairs at the end that training leaves for validation."""
    return part_of(pairs, first_held_out(sum(1 for _ in lines_in(pairs.target)), share))


def open_pair_store(pairs: Pairs, source: Tokenizer, target: Tokenizer, progress: Progress | None = None) -> PairStore:
    """Pairs as tokens."""
    stores = open_store(pairs.source, source, progress=progress), open_store(pairs.target, target, progress=progress)
    return pair_stores(*stores, eos=(source.eos, target.eos), names=(pairs.source.name, pairs.target.name))


def _first_tokens(store: PairStore, numbers_P: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """The first pairs whose targets have no more than so many tokens together, one pair at least."""
    sums_P = np.cumsum(store.target_rows.lengths_P[numbers_P] + 1)
    return numbers_P[: max(1, int(np.searchsorted(sums_P, most, "right")))]
