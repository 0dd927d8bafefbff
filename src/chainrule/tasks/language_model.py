"""Language modelling: p(x) = Π p(x_t | x_<t) of one text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from chainrule.base.processes import ALONE, Processes
from chainrule.checkpoint.folder import RunFolder
from chainrule.config import RunConfig, TrainingConfig
from chainrule.data.batches import Batches, BlockBatches, StreamBatches
from chainrule.errors import ConfigError
from chainrule.evaluation.perplexity import Likelihood, evaluate_shared
from chainrule.evaluation.validation_budget import (
    LEAST_TOKENS,
    affordable_items,
    seconds_per_validation,
    tokens_per_validation,
)
from chainrule.registry import MODELS, TASKS
from chainrule.tasks.presets import RATES, preferred_optimizer, text_rows
from chainrule.tasks.task import CorpusSize, Listener, Task, Validator
from chainrule.tasks.text_corpus import TextCorpus, open_text_corpus, refuse_pairs, steps_in_text


@dataclass
class LanguageCorpus(TextCorpus):
    """A text in contiguous rows with carried state, or in random blocks."""

    def batches(self, config: RunConfig) -> Batches:
        t = config.training
        assert t.batch_size is not None
        assert t.length is not None
        kind = StreamBatches if t.batching == "stream" else BlockBatches
        return kind(
            self.train.tokens,
            t.batch_size,
            t.length,
            eos=self.tokenizer.eos,
            seed=config.seed,
        )

    def validator(self, config: RunConfig, processes: Processes = ALONE) -> Validator:
        most = tokens_per_validation(
            config.training, epoch_tokens=self.tokens, steps_per_epoch=steps_in_text(config.training, self.tokens)
        )
        return _validator(self.valid.tokens[:most], self.tokenizer.eos, config.training, processes)


def _validator(tokens: Any, eos: int, training: TrainingConfig, processes: Processes) -> Validator:
    """Scores many short tracks: a validation only ranks the weights of one run, and has to be fast."""
    count: int | None = None
    seconds = seconds_per_validation(training.minutes, training.validations)

    def validate(model: Any) -> dict[str, float]:
        nonlocal count
        if count is None:
            count = affordable_items(
                lambda items: _evaluate_fast(model, tokens[:items], eos, processes),
                len(tokens),
                least=LEAST_TOKENS,
                seconds=seconds,
                warm_up=256,
                processes=processes,
            )
        nats, scored = _evaluate_fast(model, tokens[:count], eos, processes)
        return {"loss": nats / scored}

    return validate


def _evaluate_fast(model: Any, tokens: Any, eos: int, processes: Processes) -> Likelihood:
    return evaluate_shared(model, tokens, eos=eos, tracks=max(1, min(64, len(tokens) // 256)), processes=processes)


@TASKS.register("lm", kind="lm")
class LanguageModelling(Task):
    """One text; the model predicts each token from those before it."""

    scores_text = True
    options = frozenset({"training.batching", "training.batch_size", "training.length"})

    def open(self, config: RunConfig, folder: RunFolder, listener: Listener) -> LanguageCorpus:
        refuse_pairs(config.data.train, config.model.name)
        return open_text_corpus(LanguageCorpus, config, folder, listener)

    def check_window(self, config: RunConfig, window: int | None) -> None:
        length = config.training.length
        if window is not None and length is not None and length > window:
            raise ConfigError(
                f"training.length is {length}, but {config.model.name} reads at most model.context = {window} tokens; "
                "reduce the one or increase the other"
            )

    def carries_state(self, config: RunConfig) -> bool:
        return config.training.batching == "stream"

    def training_defaults(self, config: RunConfig, size: CorpusSize, model: dict[str, Any]) -> dict[str, Any]:
        make = MODELS.get(config.model.name).make
        blocks = "context" in make.Config.model_fields and not make.prefers.streams_context
        rows = text_rows(config, size, model, batching="blocks" if blocks else "stream")
        optimizer = preferred_optimizer(config)
        return {**rows, "optimizer": optimizer, "lr": RATES[optimizer]}
