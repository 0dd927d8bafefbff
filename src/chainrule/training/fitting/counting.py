"""Counting: the whole fitting of an n-gram model is one pass over the text."""

from __future__ import annotations

import shutil
import time

from chainrule.base.devices import PeakMemory, physical_cores
from chainrule.checkpoint.build import load_model, model_options, save_model
from chainrule.checkpoint.folder import TRAINING_SECTIONS
from chainrule.config import NamedSection, RunConfig, parse_bytes
from chainrule.engines.ngram.scratch import SCRATCH_PREFIX
from chainrule.errors import ConfigError
from chainrule.registry import FITTINGS, MODELS
from chainrule.tasks.text_corpus import TextCorpus
from chainrule.training.fitting.fitting import (
    BUDGET,
    Fitted,
    Fitting,
    Job,
    budget_of,
    refuse_sections,
)


class Counting(Fitting):
    """Count the n-grams of a text and smooth them."""

    name = "counting"
    extends = False
    training_options = (*BUDGET, "memory", "threads", "device")

    def check(self, config: RunConfig) -> None:
        refuse_sections(config, "is counted")
        super().check(config)
        if config.model.options.get("smoothing") == "imported":
            raise ConfigError(
                "the smoothing 'imported' marks a model that another program estimated; choose one that can be "
                "estimated, such as modified-kneser-ney"
            )

    def fit(self, job: Job) -> Fitted:
        config, corpus, folder = job.config, job.corpus, job.folder
        assert isinstance(corpus, TextCorpus)
        make, options = MODELS.get(config.model.name).make, model_options(config)
        if options.across_lines is None:
            options = options.model_copy(update={"across_lines": not corpus.tokenizer.word_tokens})
        chosen = NamedSection(name=config.model.name, **options.model_dump(mode="json"))
        config = config.model_copy(update={"model": chosen, "tokenizer": corpus.tokenizer_config})
        job.begin(config, unused=TRAINING_SECTIONS)
        if given := [f"--{name}" for name, value in budget_of(config).items() if value]:
            job.listener.note(f"ignoring {' and '.join(given)}: n-grams are counted in one pass")
        for leftover in folder.path.glob(f"{SCRATCH_PREFIX}*"):  # of a killed process
            shutil.rmtree(leftover, ignore_errors=True)
        memory, began = PeakMemory(), time.perf_counter()
        model = make.estimate(
            options,
            corpus.vocabulary,
            corpus.train.tokens,
            corpus.valid.tokens,
            memory=parse_bytes(config.training.memory) if config.training.memory else None,
            scratch=folder.path,
            threads=config.training.threads or physical_cores(),
            note=job.listener.note,
        )
        save_model(folder, model)
        seconds = time.perf_counter() - began
        result = {
            "steps": 0,
            "seconds": round(seconds, 2),
            "train_seconds": round(seconds, 2),
            "tokens": len(corpus.train),
            "parameters": model.parameter_count,
            "tokens_per_second": round(len(corpus.train) / seconds, 1),
            "ngrams": model.table.sizes,
            "budget": budget_of(config),
            "peak_memory": memory.bytes,
        }
        folder.write_result(result)
        del model  # mapped from its file below, its arrays take no memory of this process
        return Fitted(folder, True, result, load_model(folder, corpus.tokenizer), corpus)


FITTINGS.register("counting")(Counting())
