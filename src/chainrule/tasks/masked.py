"""Masked words: the model predicts hidden words of a text from all the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from chainrule.base.processes import ALONE, Processes
from chainrule.checkpoint.build import model_options
from chainrule.checkpoint.folder import RunFolder
from chainrule.config import RunConfig, parse
from chainrule.data.masks import MaskedBatches
from chainrule.data.store import TokenStore
from chainrule.errors import ConfigError
from chainrule.evaluation.masked import make_masking, masked_validator
from chainrule.evaluation.validation_budget import seconds_per_validation, tokens_per_validation
from chainrule.registry import OBJECTIVES, TASKS
from chainrule.tasks.presets import TUNING_RATES, preferred_optimizer, text_rows
from chainrule.tasks.task import CorpusSize, Listener, Task, Validator, span_of
from chainrule.tasks.text_corpus import TextCorpus, open_text_corpus, refuse_pairs, steps_in_text

RATES = {"adamw": 1e-3, "sgd": 1.0, "muon": 0.006}
"""Learning rates; a post-norm encoder needs lower ones than other models."""


@dataclass
class MaskedCorpus(TextCorpus):
    """Blocks of a text with hidden words."""

    def batches(self, config: RunConfig) -> MaskedBatches:
        return self._batches(config, self.train, config.seed)

    def validator(self, config: RunConfig, processes: Processes = ALONE) -> Validator:
        t = config.training
        seconds = seconds_per_validation(t.minutes, t.validations)
        steps = steps_in_text(t, self.tokens)
        most = tokens_per_validation(t, epoch_tokens=self.tokens, steps_per_epoch=steps)
        return masked_validator(self._batches(config, self.valid, 0), most, seconds, processes)

    def _batches(self, config: RunConfig, store: TokenStore, seed: int) -> MaskedBatches:
        t = config.training
        assert t.batch_size is not None
        assert t.length is not None
        shape = model_options(config)
        options = parse(OBJECTIVES.get(config.objective.name).make.Config, config.objective.options, "objective")
        return MaskedBatches(
            store.tokens,
            t.batch_size,
            t.length,
            masking=make_masking(self.tokenizer, mask=shape.mask, first=shape.first, **options.model_dump()),
            eos=self.tokenizer.eos,
            seed=seed,
            first=shape.first,
        )


@TASKS.register("masked", kind="embedding")
class MaskedWords(Task):
    """One text; the model reads it whole and predicts the words that are hidden in it."""

    options = frozenset({"training.batching", "training.batch_size", "training.length"})

    def open(self, config: RunConfig, folder: RunFolder, listener: Listener) -> MaskedCorpus:
        refuse_pairs(config.data.train, config.model.name)
        return open_text_corpus(MaskedCorpus, config, folder, listener)

    def check_window(self, config: RunConfig, window: int | None) -> None:
        length = config.training.length
        if window is not None and length is not None and length > window:
            positions = config.model.options.get("positions")
            raise ConfigError(
                f"training.length is {length}, but with model.positions = {positions} {config.model.name} reads at "
                f"most {window} tokens; reduce the one or increase the other"
            )

    def model_defaults(self, config: RunConfig, size: CorpusSize, width: int, dropout: float) -> dict[str, Any]:
        sizes = super().model_defaults(config, size, width, dropout)
        return {**sizes, "width": width, "positions": span_of(size)}

    def training_defaults(self, config: RunConfig, size: CorpusSize, model: dict[str, Any]) -> dict[str, Any]:
        rows = text_rows(config, size, model, batching="blocks", span=_text_positions(model))
        tuning = config.init is not None
        optimizer = config.training.optimizer or ("adamw" if tuning else preferred_optimizer(config))
        return {**rows, "optimizer": optimizer, "lr": (TUNING_RATES if tuning else RATES)[optimizer]}


def _text_positions(model: dict[str, Any]) -> int:
    """The positions that a text can take: RoBERTa skips those up to its padding token, and `first` takes one."""
    skipped = model.get("pad", 0) + 1 if model.get("kind") == "roberta" else 0
    return max(1, int(model["positions"]) - skipped - (model.get("first") is not None))
