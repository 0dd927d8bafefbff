"""Gradient steps: a network is fitted by the training loop."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from chainrule.base.devices import PeakMemory, choose_device, physical_cores
from chainrule.checkpoint.build import COUNTS, WeightsError, build_model, load_weights
from chainrule.checkpoint.folder import RunFolder
from chainrule.config import NamedSection, RunConfig, parse
from chainrule.errors import ConfigError
from chainrule.registry import FITTINGS, OBJECTIVES
from chainrule.tasks.presets import resolve
from chainrule.tasks.task import Corpus, CorpusSize
from chainrule.training.fitting.fitting import Fitted, Fitting, Job, budget_of
from chainrule.training.init.embedding import start_from
from chainrule.training.init.pretrained import open_pretrained
from chainrule.training.loop import Hooks, Trainer
from chainrule.training.resume import FREE, check_resumable
from chainrule.training.signals import stop_signals
from chainrule.training.threads import ThreadChooser
from chainrule.training.workers import can_share
from chainrule.types import Objective, Vocabulary


class GradientSteps(Fitting):
    """Minimise an objective by gradient steps."""

    name = "gradients"
    distributed = True

    def fit(self, job: Job) -> Fitted:
        asked = budget_of(job.config)
        check_resumable(job.folder, job.listener.note)
        config = _resolve(job.config, job)
        device = choose_device(config.training.device)
        torch.manual_seed(config.seed)
        model = _initial_model(config, job.corpus.vocabulary, job.folder)
        if config.init_embedding and not job.folder.has_checkpoint():
            start_from(
                model, config.init_embedding, job.corpus.tokenizer, job.corpus.source_tokenizer, job.listener.note
            )
        model = model.to(device)
        memory = PeakMemory()
        trainer = _trainer(config, job, model, device)
        if job.processes.is_main:  # not before everything is known to fit: a mistake leaves no folder behind
            job.begin(config)
        with stop_signals() as stopping:
            trainer.hooks.stopping = stopping
            finished = trainer.fit()
        result = _result(trainer) | {"budget": asked, "peak_memory": memory.bytes, "stopped": trainer.stopped}
        if finished and job.processes.is_main:
            result = job.end(result)
        whole = job.processes.is_main and trainer.placement.keeps_whole
        trained = model.eval() if finished and whole else None
        return Fitted(job.folder, finished, result, trained, job.corpus)


def _resolve(config: RunConfig, job: Job) -> RunConfig:
    """Every option; those of a resumed run stay as they were, except for the free ones."""
    if job.folder.exists():
        saved = job.folder.read_config()
        free = {name: getattr(config.training, name) for name in FREE}
        if not any(budget_of(config).values()):
            free |= budget_of(saved)
        return saved.model_copy(update={"training": saved.training.model_copy(update=free)})
    corpus = job.corpus
    if corpus.model_options:
        options = {**config.model.options, **corpus.model_options}
        config = config.model_copy(update={"model": NamedSection(name=config.model.name, **options)})
    config = resolve(config, job.task, CorpusSize(corpus.tokens, corpus.tokenizer.vocab_size))
    return config.model_copy(update={"tokenizer": corpus.tokenizer_config})


def _initial_model(config: RunConfig, vocabulary: Vocabulary, folder: RunFolder) -> nn.Module:
    """A fresh model, with the weights of the run or of the pretrained encoder from which it starts, if any."""
    if not config.init:
        model = build_model(config, vocabulary)
        # A checkpoint has all weights; without one, a run that was stopped early begins like a new one.
        if (name := config.model.options.get("pretrained")) and not folder.has_checkpoint():
            open_pretrained(name).fill(model.pretrained.encoder)  # type: ignore[union-attr, arg-type]
        return model
    weights = RunFolder.open(config.init).read_weights()
    # Output layers depend on the word counts, so those of the first training are kept with its weights.
    if COUNTS in weights and len(weights[COUNTS]) == vocabulary.size:
        vocabulary = replace(vocabulary, counts_V=weights[COUNTS].numpy())
    model = build_model(config, vocabulary)
    try:
        load_weights(model, weights)
    except WeightsError:
        raise ConfigError(
            f"the weights of {config.init} do not fit this {config.model.name}; start from a run of the same shape, "
            "without changing its model options"
        ) from None
    return model


def _trainer(config: RunConfig, job: Job, model: Any, device: torch.device) -> Trainer:
    job.task.check_window(config, model.window)
    trainer = Trainer(
        model=model,
        objective=_objective(config, job.corpus),
        batches=job.corpus.batches(config),
        config=config.training,
        folder=job.folder,
        hooks=Hooks(validate=job.corpus.validator(config, job.processes), show=job.listener.update),
        carries=job.task.carries_state(config) and model.window is None,
        device=device,
        processes=job.processes,
    )
    if device.type == "cpu":
        cores = physical_cores()
        trainer.threads = ThreadChooser.for_training(config.training, cores, can_fork=can_share(trainer.stepper))
    return trainer


def _objective(config: RunConfig, corpus: Corpus) -> Objective:
    make = OBJECTIVES.get(config.objective.name).make
    objective: Objective = make(parse(make.Config, config.objective.options, "objective"))
    if objective.needs_reward:
        objective.reward = corpus.reward(objective.config.reward)
    return objective


def _result(trainer: Trainer) -> dict[str, Any]:
    s = trainer.training_state
    return {
        "steps": s.step,
        "seconds": round(s.seconds, 2),
        "train_seconds": round(s.train_seconds, 2),
        "tokens": s.tokens,
        "parameters": trainer.model.parameter_count,
        "tokens_per_second": round(s.tokens / s.train_seconds, 1) if s.train_seconds else None,
        "best_step": s.best_step,
    }


FITTINGS.register("gradients")(GradientSteps())
