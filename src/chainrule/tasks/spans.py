"""Span corruption: a translator learns from one text to restore the spans that were removed from it."""

from __future__ import annotations

from dataclasses import dataclass

from chainrule.base.processes import ALONE, Processes
from chainrule.checkpoint.build import model_options
from chainrule.checkpoint.folder import RunFolder
from chainrule.config import RunConfig, parse
from chainrule.data.spans import SpanBatches
from chainrule.data.store import TokenStore
from chainrule.errors import ConfigError
from chainrule.evaluation.pairs import mean_loss
from chainrule.registry import MODELS, OBJECTIVES, TASKS
from chainrule.tasks.language_model import LanguageModelling
from chainrule.tasks.task import Listener, Validator
from chainrule.tasks.text_corpus import TextCorpus, open_text_corpus


@dataclass
class SpanCorpus(TextCorpus):
    """Blocks of a text, each as a pair: the text with gaps, and what was in the gaps."""

    def batches(self, config: RunConfig) -> SpanBatches:
        return self._batches(config, self.train)

    def validator(self, config: RunConfig, processes: Processes = ALONE) -> Validator:
        batches = self._batches(config, self.valid)
        targets = batches.batch(0)[0].targets_BT.numel()
        count = max(1, min(batches.per_epoch, config.training.valid_tokens // targets))
        own = processes.own(range(count))
        return lambda model: {"loss": mean_loss(model, (batches.batch(index)[0] for index in own), processes)}

    def _batches(self, config: RunConfig, store: TokenStore) -> SpanBatches:
        t = config.training
        assert t.batch_size is not None
        assert t.length is not None
        options = parse(OBJECTIVES.get(config.objective.name).make.Config, config.objective.options, "objective")
        return SpanBatches(
            store.tokens,
            t.batch_size,
            t.length,
            eos=self.tokenizer.eos,
            seed=config.seed,
            noise=options.noise,
            mean_span=options.mean_span,
            first_sentinel=self.tokenizer.vocab_size,
            sentinels=model_options(config).sentinels,
        )


@TASKS.register("spans", kind="seq2seq")
class SpanCorruption(LanguageModelling):
    """One text, which may mix languages; the model restores its removed spans."""

    scores_text = False

    def open(self, config: RunConfig, folder: RunFolder, listener: Listener) -> SpanCorpus:  # type: ignore[override]
        return open_text_corpus(SpanCorpus, config, folder, listener)

    def check(self, config: RunConfig) -> None:
        super().check(config)
        if "sentinels" not in MODELS.get(config.model.name).make.Config.model_fields:
            raise ConfigError(
                f"the objective spans needs a model with sentinel tokens; {config.model.name} has none, use --model t5"
            )

    def carries_state(self, config: RunConfig) -> bool:
        return False
