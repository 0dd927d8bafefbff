"""Counting: the whole fitting of an n-gram model is one pass over the text.

If the validation text is held out of the text, it is measured with a model of the rest, and the model that is kept
counts all of the text: an n-gram model has no other use for held-out text, except where its smoothing is fitted on it.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from chainrule.base.devices import PeakMemory, physical_cores, release_memory, return_large_blocks
from chainrule.base.grammar import plural
from chainrule.checkpoint.build import load_model, model_options, save_model
from chainrule.checkpoint.folder import TRAINING_SECTIONS, RunFolder
from chainrule.config import NamedSection, RunConfig, parse_bytes
from chainrule.engines.ngram.scratch import SCRATCH_PREFIX
from chainrule.engines.ngram.smoothing import fits_on_validation
from chainrule.errors import ConfigError
from chainrule.evaluation.text import evaluate
from chainrule.registry import FITTINGS, MODELS
from chainrule.tasks.task import Listener, Task
from chainrule.tasks.text_corpus import TextCorpus, open_text_corpus
from chainrule.training.fitting.fitting import (
    BUDGET,
    Fitted,
    Fitting,
    Job,
    budget_of,
    refuse_sections,
)

STOPPED = "all of the text was counted"


class Counting(Fitting):
    """Count the n-grams of a text and smooth them."""

    name = "counting"
    extends = False
    training_options = (*BUDGET, "memory", "count_all", "threads", "device")

    def check(self, config: RunConfig) -> None:
        refuse_sections(config, "is counted")
        super().check(config)
        if config.model.options.get("smoothing") == "imported":
            raise ConfigError(
                "the smoothing 'imported' marks a model that another program estimated; choose one that can be "
                "estimated, such as modified-kneser-ney"
            )

    def prepare(self, config: RunConfig, task: Task, folder: RunFolder, note: Callable[[str], None]) -> RunConfig:
        if config.training.memory:  # before the text is read for the first time
            return_large_blocks()
        return super().prepare(config, task, folder, note)

    def fit(self, job: Job) -> Fitted:
        corpus, folder = job.corpus, job.folder
        assert isinstance(corpus, TextCorpus)
        if given := [f"--{name}" for name, value in budget_of(job.config).items() if value]:
            job.listener.note(f"ignoring {' and '.join(given)}: n-grams are counted in one pass")
        for leftover in folder.path.glob(f"{SCRATCH_PREFIX}*"):  # of a killed process
            shutil.rmtree(leftover, ignore_errors=True)
        interrupted = folder.exists()
        job.begin(self._options(job.config, corpus)[0], unused=TRAINING_SECTIONS)
        memory, began = PeakMemory(), time.perf_counter()
        further = {}
        if self._counts_all(job, corpus):
            if interrupted:  # its tokeniser may know the held-out text
                corpus = open_text_corpus(type(corpus), job.config, _fresh(folder), Listener())
            further, corpus = self._measure(job, corpus), self._whole(job, corpus)
            job.corpus = corpus
        counting = time.perf_counter()
        config, options = self._options(job.config, corpus)
        model = self._estimate(job, options, corpus, job.listener.note)
        job.identify(config, unused=TRAINING_SECTIONS)
        save_model(folder, model)
        ended = time.perf_counter()
        result = job.end(
            {
                "steps": 0,
                "seconds": round(ended - began, 2),
                "train_seconds": round(ended - counting, 2),
                "tokens": len(corpus.train),
                "parameters": model.parameter_count,
                "tokens_per_second": round(len(corpus.train) / (ended - counting), 1),
                "ngrams": model.table.sizes,
                "budget": budget_of(config),
                "peak_memory": memory.bytes,
                "stopped": STOPPED,
                **further,
            }
        )
        del model  # mapped from its file below, its arrays take no memory of this process
        return Fitted(folder, True, result, load_model(folder, corpus.tokenizer), corpus)

    def _counts_all(self, job: Job, corpus: TextCorpus) -> bool:
        """Whether the text that is held out is counted too, once it has been measured."""
        if not corpus.held_out or corpus.valid is corpus.train:
            return False
        size = f"the last {plural(corpus.valid.bytes, 'byte')} of the text"
        if fits_on_validation(model_options(job.config).smoothing):
            job.listener.note(f"{size} are not counted: the weights of the smoothing are fitted on them")
            return False
        if not job.config.training.count_all:
            job.listener.note(f"{size} are held out and not counted (training.count_all = false)")
            return False
        job.listener.note(f"{size} are measured with the counts of the rest, then all of the text is counted")
        return True

    def _whole(self, job: Job, corpus: TextCorpus) -> TextCorpus:
        """All of the text, in tokens of a tokeniser that is fitted to all of it."""
        whole = open_text_corpus(type(corpus), job.config, _fresh(job.folder), Listener(), whole=True)
        stores = {"data": corpus.train, "valid": corpus.valid}
        return replace(whole, split={name: store.fingerprint_with(whole.tokenizer) for name, store in stores.items()})

    def _measure(self, job: Job, corpus: TextCorpus) -> dict[str, Any]:
        """The figures of the held-out text, for a model of the rest of the text."""
        note = Listener().note  # what it would say is noted of all of the text
        model = self._estimate(job, self._options(job.config, corpus)[1], corpus, note)
        valid, validation = evaluate(model, corpus.valid, corpus.tokenizer), corpus.validation_data
        assert validation is not None
        return {"valid": valid.to_dict(), "validation": validation.to_dict()}

    def _options(self, config: RunConfig, corpus: TextCorpus) -> tuple[RunConfig, Any]:
        """The configuration with every choice made, and the options of the model."""
        options = model_options(config)
        if options.across_lines is None:
            options = options.model_copy(update={"across_lines": not corpus.tokenizer.word_tokens})
        chosen = NamedSection(name=config.model.name, **options.model_dump(mode="json"))
        return config.model_copy(update={"model": chosen, "tokenizer": corpus.tokenizer_config}), options

    def _estimate(self, job: Job, options: Any, corpus: TextCorpus, note: Callable[[str], None]) -> Any:
        training = job.config.training
        release_memory()  # what tokenising allocated
        return MODELS.get(job.config.model.name).make.estimate(
            options,
            corpus.vocabulary,
            corpus.train.tokens,
            corpus.valid.tokens,
            memory=parse_bytes(training.memory, "training.memory") if training.memory else None,
            scratch=job.folder.path,
            threads=training.threads or physical_cores(),
            note=note,
        )


def _fresh(folder: RunFolder) -> RunFolder:
    """A folder that does not exist: its run has no tokeniser yet."""
    return RunFolder(folder.path / "none")


FITTINGS.register("counting")(Counting())
