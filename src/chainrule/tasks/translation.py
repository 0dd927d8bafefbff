"""Translation: p(y | x) of pairs of lines, with one vocabulary or two, in batches of about equal length."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chainrule.base.processes import ALONE, Processes
from chainrule.base.progress import Progress
from chainrule.checkpoint.build import model_options
from chainrule.checkpoint.folder import RunFolder
from chainrule.config import DataConfig, RunConfig, TokenizerConfig
from chainrule.data.batches import Batches
from chainrule.data.held_out import first_held_out_pair
from chainrule.data.in_memory import Columns
from chainrule.data.pair_checks import check_pairs
from chainrule.data.pairs import FilteredPairs, PairBatches, PairStore, filter_pairs, pair_stores
from chainrule.data.store import open_store
from chainrule.evaluation.metrics import make_metric
from chainrule.evaluation.pairs import mean_loss, translate_greedily
from chainrule.evaluation.rewards import make_reward
from chainrule.evaluation.validation_budget import affordable_items, seconds_per_validation, tokens_per_validation
from chainrule.registry import OBJECTIVES, TASKS
from chainrule.tasks.presets import RATES, TUNING_RATES, preferred_optimizer
from chainrule.tasks.task import Corpus, CorpusSize, Listener, Task, ValidationData, Validator, saved_tokenizers
from chainrule.text.formats.pairs import Pairs, count_pairs, hold_pairs, open_pairs, part_of, prefixed
from chainrule.text.readers import join_texts
from chainrule.text.tokenizers import Tokenizer
from chainrule.text.tokenizers.base import FILE
from chainrule.text.tokenizers.fit import fit_tokenizer
from chainrule.types import Vocabulary

LEAST_PAIRS = 64
"""Pairs translated in a validation by BLEU, however long they take."""

Indices = NDArray[np.int64]


@dataclass
class PairCorpus(Corpus):
    """Pairs to train on and to validate with."""

    pairs: Pairs  # to train on
    train: PairStore
    filtered: FilteredPairs  # which of `train` are used
    valid_pairs: Pairs  # to validate with, as texts without prefix
    valid: PairStore
    valid_P: Indices
    held_out_share: float

    @property
    def vocabulary(self) -> Vocabulary:
        target, (read_V, counts_V) = self.tokenizer, self._counts()
        if (read := self.source_tokenizer) is None:
            return Vocabulary(target.vocab_size, target.eos, counts_V, read_V=read_V)
        return Vocabulary(target.vocab_size, target.eos, counts_V, Vocabulary(read.vocab_size, read.eos, read_V))

    def _counts(self) -> list[NDArray[np.int64]]:
        """Occurrences of each token of the source and of the target in the pairs that are not held out, V each."""
        counts = [np.asarray(store.counts_V) for store in (self.train.source, self.train.target)]
        if self.valid is not self.train:
            return counts
        held_out_P = np.arange(first_held_out_pair(len(self.train), self.held_out_share), len(self.train))
        rows = (self.train.source_rows, self.train.target_rows)
        sides = zip(counts, rows, strict=True)
        return [side_V - np.bincount(row.tokens_of(held_out_P), minlength=len(side_V)) for side_V, row in sides]

    @property
    def validation_data(self) -> ValidationData:
        tokens = oov = 0
        tokenizers = (self.source_tokenizer or self.tokenizer, self.tokenizer)
        rows = (self.valid.source_rows, self.valid.target_rows)
        for tokenizer, side in zip(tokenizers, rows, strict=True):
            tokens_N = side.tokens_of(self.valid_P)
            tokens += len(tokens_N)
            oov += 0 if tokenizer.unk is None else int(np.count_nonzero(tokens_N == tokenizer.unk))
        known = all(tokenizer.unk is None for tokenizer in tokenizers)
        return ValidationData(self.valid is self.train, len(self.valid_P), "pair", tokens, None if known else oov)

    @property
    def tokens(self) -> int:
        return int((self.train.target_rows.lengths_P[self.filtered.indices_P] + 1).sum())

    @property
    def fingerprints(self) -> dict[str, str]:
        return {"data": self.train.fingerprint, "valid": self.valid.fingerprint}

    def batches(self, config: RunConfig) -> Batches:
        assert config.training.max_tokens is not None
        return PairBatches(
            self.train,
            self.filtered.indices_P,
            config.training.max_tokens,
            seed=config.seed,
        )

    def validator(self, config: RunConfig, processes: Processes = ALONE) -> Validator:
        t = config.training
        assert t.max_tokens is not None
        steps = self.tokens / (t.max_tokens * t.accumulate)
        most = tokens_per_validation(t, epoch_tokens=self.tokens, steps_per_epoch=steps)
        indices_P = _first_tokens(self.valid, self.valid_P, most)
        longest = int(max(rows.lengths_P[indices_P].max() for rows in (self.valid.source_rows, self.valid.target_rows)))
        batches = PairBatches(self.valid, indices_P, max(t.max_tokens, longest + 1), seed=0, shuffled=False)
        seconds = seconds_per_validation(t.minutes, t.validations)
        translated_P = indices_P[: t.valid_pairs]
        count: int | None = None

        def validate(model: Any) -> dict[str, float]:
            nonlocal count
            own = processes.own(range(batches.per_epoch))
            figures = {"loss": mean_loss(model, (batches.batch(index)[0] for index in own), processes)}
            if t.select == "bleu":
                if count is None:
                    count = affordable_items(
                        lambda pairs: self.bleu(model, translated_P[:pairs], processes),
                        len(translated_P),
                        least=LEAST_PAIRS,
                        seconds=seconds,
                        processes=processes,
                    )
                figures["bleu"] = self.bleu(model, translated_P[:count], processes)
            return figures

        return validate

    def bleu(self, model: Any, indices_P: Indices, processes: Processes = ALONE) -> float:
        """BLEU of the greedy translations of some validation pairs, which the processes share."""
        sources = [self.valid.source_rows.row(index).tolist() for index in processes.own(indices_P.tolist())]
        eos = (self.source_tokenizer or self.tokenizer).eos
        outputs = translate_greedily(model, sources, source_eos=eos, eos=self.tokenizer.eos)
        outputs = processes.join_own(outputs, len(indices_P))
        references = [self.valid.target_rows.row(index).tolist() for index in indices_P.tolist()]
        hypotheses, given = self._texts(outputs), [self._texts(references)]
        return float(make_metric("bleu", given).official.corpus_score(hypotheses, given).score)

    def reward(self, name: str) -> Callable[[Any, Any], Any]:
        """A reward of token rows given reference rows, computed on their texts."""
        of_texts = make_reward(name)
        return lambda outputs, references: of_texts(self._texts(outputs), self._texts(references))

    def _texts(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """Token rows as lines; tokens that the tokeniser does not know (sentinels) are dropped."""
        size = self.tokenizer.vocab_size
        return [self.tokenizer.decode(token for token in row if token < size) for row in rows]


@TASKS.register("translation", kind="seq2seq")
class Translation(Task):
    """Pairs of lines; the model writes the second given the first."""

    metrics = ("loss", "bleu")
    rewarded = True
    scores_text = True
    options = frozenset(
        {
            "training.max_tokens",
            "data.prefix",
            "data.max_length",
            "data.max_ratio",
            "decoding.num_beams",
            "decoding.length_penalty",
        }
    )

    def fits(self, paths: Sequence[str]) -> bool:
        return len(paths) == 2 or all(map(hold_pairs, paths))

    def columns(self, data: DataConfig) -> Columns:
        both = (data.source_field, data.target_field)
        return Columns(both, both)

    def open(self, config: RunConfig, folder: RunFolder, listener: Listener) -> PairCorpus:
        data = config.data
        pairs = read_pairs(config, data.train, data.lines)
        tokenizer, source, options = _tokenizers(config, folder, pairs, listener)
        store = open_pair_store(config, pairs, source or tokenizer, tokenizer, listener.tokenized)
        indices_P = np.arange(len(store))
        if data.valid:
            valid_pairs = read_pairs(config, data.valid, data.valid_lines)
            valid = open_pair_store(config, valid_pairs, source or tokenizer, tokenizer)
            valid_P = np.arange(len(valid))
            warnings = [*check_pairs(pairs, store), *check_pairs(valid_pairs, valid, pairs)]
        else:
            begin = first_held_out_pair(len(store), data.held_out)
            valid_pairs, valid = part_of(pairs, begin), store
            indices_P, valid_P = indices_P[:begin], indices_P[begin:]
            warnings = check_pairs(pairs, store)
        for warning in warnings:
            listener.note(f"warning: {warning}")
        # `context` includes the eos of a line.
        readable = None if (context := model_options(config).context) is None else context - 1
        longest = min((length for length in (data.max_length, readable) if length is not None), default=None)
        filtered = filter_pairs(store, indices_P, max_length=longest, max_ratio=data.max_ratio)
        if filtered.summary:
            listener.note(filtered.summary)
        valid_P = filter_pairs(valid, valid_P, max_length=readable, max_ratio=None).indices_P
        return PairCorpus(
            tokenizer,
            options,
            pairs,
            store,
            filtered,
            valid_pairs,
            valid,
            valid_P,
            data.held_out,
            source_tokenizer=source,
        )

    def with_encoder_tokenizer(self, options: TokenizerConfig, tokenizer: str) -> TokenizerConfig:
        return options.model_copy(update={"source": options.source or tokenizer, "joint": False})

    def training_defaults(self, config: RunConfig, size: CorpusSize, model: dict[str, Any]) -> dict[str, Any]:
        rewarded = OBJECTIVES.get(config.objective.name).make.needs_reward
        optimizer = config.training.optimizer or ("adamw" if rewarded else preferred_optimizer(config))
        # Some hundred batches per epoch, so that short trainings take enough steps.
        max_tokens = 1024 if rewarded or size.tokens < 300_000 else 2048
        rates = TUNING_RATES if rewarded else RATES  # rewards improve a trained model
        return {"max_tokens": max_tokens, "optimizer": optimizer, "lr": rates[optimizer]}


def _tokenizers(
    config: RunConfig, folder: RunFolder, pairs: Pairs, listener: Listener
) -> tuple[Tokenizer, Tokenizer | None, TokenizerConfig]:
    """The tokeniser of the target, that of the source if it has its own, and the options they were fitted with."""
    if (saved := saved_tokenizers(config, folder)) is not None:
        return saved.tokenizer, saved.source, saved.config
    if not config.data.valid:  # fitted without the pairs that are held out
        pairs = part_of(pairs, 0, first_held_out_pair(count_pairs(pairs), config.data.held_out))
    source_text, target_text = with_prefix(config, pairs)
    if config.tokenizer.joint and config.tokenizer.source is None:
        tokenizer, options = fit_tokenizer(config.tokenizer, join_texts(source_text, target_text), listener.note)
        return tokenizer, None, options
    source, _ = fit_tokenizer(_source_options(config.tokenizer), source_text, listener.note, " of the source")
    target_options = config.tokenizer.model_copy(update={"joint": False})
    tokenizer, options = fit_tokenizer(target_options, target_text, listener.note, " of the target")
    return tokenizer, source, options


def _source_options(options: TokenizerConfig) -> TokenizerConfig:
    """The options of the source's tokeniser; for a folder they name its tokenizer.json."""
    if options.source is None:
        return options
    path = Path(options.source)
    return options.model_copy(update={"kind": str(path / FILE) if path.is_dir() else options.source})


def read_pairs(config: RunConfig, paths: Sequence[str], lines: int | None = None) -> Pairs:
    """The pairs of some files, or the first `lines` of them, without prefix."""
    pairs = open_pairs(paths, fields=(config.data.source_field, config.data.target_field))
    return part_of(pairs, 0, lines) if lines else pairs


def with_prefix(config: RunConfig, pairs: Pairs) -> Pairs:
    """Pairs as the model reads them: the prefix before every source."""
    return prefixed(pairs, config.data.prefix) if config.data.prefix else pairs


def open_pair_store(
    config: RunConfig, pairs: Pairs, source: Tokenizer, target: Tokenizer, progress: Progress | None = None
) -> PairStore:
    """Pairs as tokens, the prefix of the run included."""
    pairs = with_prefix(config, pairs)
    stores = open_store(pairs.source, source, progress=progress), open_store(pairs.target, target, progress=progress)
    return pair_stores(*stores, eos=(source.eos, target.eos), names=(pairs.source.name, pairs.target.name))


def _first_tokens(store: PairStore, indices_P: Indices, max_tokens: int) -> Indices:
    """The first pairs whose targets have at most `max_tokens` tokens in total, at least one pair."""
    sums_P = np.cumsum(store.target_rows.lengths_P[indices_P] + 1)
    return indices_P[: max(1, int(np.searchsorted(sums_P, max_tokens, "right")))]
