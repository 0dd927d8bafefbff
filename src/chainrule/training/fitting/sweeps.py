"""Sweeps over the words of a text: the training of word2vec, with its budget, its checkpoints and its log.

A training is a number of chunks (engines/word2vec/sweeps.py). After every second of learning it reports progress, saves
if that is due, and checks whether to stop. With one thread, a training that was stopped and resumed gives the same
vectors as an unbroken one, unless the budget is in minutes: then the clock affects the learning rate.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from chainrule.base.devices import PeakMemory, physical_cores, release_memory, return_large_blocks
from chainrule.base.grammar import plural
from chainrule.checkpoint.build import load_model, model_options, save_model
from chainrule.checkpoint.folder import RunFolder
from chainrule.config import NamedSection, RunConfig, TokenizerConfig
from chainrule.engines.word2vec.sweeps import Sweeper, SweepTotals, WordList, initial_weights, make_tables
from chainrule.errors import ConfigError, DataError, RunError
from chainrule.models.word2vec import Word2Vec, Word2VecConfig
from chainrule.registry import FITTINGS, TOKENIZERS
from chainrule.tasks.task import Task
from chainrule.tasks.text_corpus import TextCorpus
from chainrule.training.budget import Clock, progress, spent_budget
from chainrule.training.checkpoint_state import TrainingState
from chainrule.training.fitting.fitting import (
    BUDGET,
    Fitted,
    Fitting,
    Job,
    budget_of,
    refuse_sections,
)
from chainrule.training.loop import Update
from chainrule.training.signals import stop_signals
from chainrule.training.trackers.mirror import Mirror

STRETCH = 1.0
"""Seconds of learning between two checks of the clock."""

UNUSED = ("output", "objective")
"""Sections of config.toml that do not apply."""

MOST_CHUNKS = 1 << 62
"""The end of a training that only the clock ends."""

SAVED = ("step", "tokens", "train_seconds", "seconds", "log_length")
"""Fields of the training state that are saved with the vectors."""


class Sweeps(Fitting):
    """Learn word vectors by passes over a text."""

    name = "sweeps"
    training_options = (*BUDGET, "threads", "device", "save_seconds", "log_steps", "log")

    def check(self, config: RunConfig) -> None:
        refuse_sections(config, "is trained by its own sweeps")
        if config.training.steps:
            raise ConfigError(
                "training.steps counts optimiser steps, and word2vec has none; give --epochs or --minutes"
            )
        if config.init:
            raise ConfigError("word2vec cannot start from another run; leave --init out, or resume that run itself")
        super().check(config)

    def prepare(self, config: RunConfig, task: Task, folder: RunFolder, note: Callable[[str], None]) -> RunConfig:
        return_large_blocks()  # before the text is read for the first time
        config = super().prepare(config, task, folder, note)
        return config.model_copy(update={"tokenizer": _tokenizer_options(config)})

    def fit(self, job: Job) -> Fitted:
        config, corpus, folder = job.config, job.corpus, job.folder
        assert isinstance(corpus, TextCorpus)
        options = model_options(config).model_dump(mode="json", exclude_none=True)
        chosen = NamedSection(name=config.model.name, **options)
        config = config.model_copy(update={"model": chosen, "tokenizer": corpus.tokenizer_config})
        word_list(config, corpus)  # refuses a text without words before a folder is made
        job.begin(config, unused=UNUSED)
        release_memory()  # what tokenising allocated
        with stop_signals() as stopping:
            epochs = epochs_of(job.config)
            training = Word2VecTraining(config, corpus, folder, job.listener.update, stopping, epochs)
            finished = training.run()
        result = training.result()
        del training  # mapped from its file below, the vectors take no memory of this process
        if finished:
            result = job.end(result)
        return Fitted(folder, finished, result, load_model(folder, corpus.tokenizer), corpus)


def _tokenizer_options(config: RunConfig) -> TokenizerConfig:
    """Words by default; `model.min_count` is the tokeniser's."""
    options, given = model_options(config), config.tokenizer
    kind = given.kind or "word"
    if kind not in TOKENIZERS.names() or not TOKENIZERS.get(kind).make.drops_rare:
        if "min_count" in config.model.options:
            raise ConfigError(
                f"model.min_count is {options.min_count}, but the tokeniser {kind} keeps rare tokens; leave it out, or "
                "use --tokenizer word"
            )
        return given
    if given.min_count not in (None, options.min_count):
        raise ConfigError(
            f"tokenizer.min_count is {given.min_count} and model.min_count is {options.min_count}, but they are one "
            "setting; set model.min_count only"
        )
    return given.model_copy(update={"kind": kind, "min_count": options.min_count})


def epochs_of(config: RunConfig) -> float | None:
    """The number of passes over the text; None: as many as the given minutes allow."""
    given = config.training.epochs or config.model.options.get("epochs")
    return None if config.training.minutes and not given else float(given or model_options(config).epochs)


def word_list(config: RunConfig, corpus: TextCorpus) -> WordList:
    """The words that get vectors; there must be at least two."""
    tokenizer, counts_I = corpus.tokenizer, np.array(corpus.train.counts_V)
    counts_I[[token for token in (tokenizer.eos, tokenizer.unk) if token is not None]] = 0
    ids_V = np.flatnonzero(counts_I)
    if len(ids_V) < 2:
        raise DataError(
            f"only {plural(len(ids_V), 'word')} of the text {'occurs' if len(ids_V) == 1 else 'occur'} at least "
            f"{model_options(config).min_count} times; word2vec learns from words that occur together, give more "
            "text or a lower model.min_count"
        )
    return WordList(ids_V, counts_I[ids_V], tokenizer.vocab_size, tokenizer.eos)


@dataclass
class Word2VecTraining:
    """One training of word vectors, resumed from its folder if that has vectors."""

    config: RunConfig
    corpus: TextCorpus
    folder: RunFolder
    show: Callable[[Update], None]
    stopping: Callable[[], bool]
    epochs: float | None  # None: only the minutes end the training
    state: TrainingState = field(default_factory=TrainingState)
    loss: float = math.nan  # nats per prediction, over the last stretch

    def __post_init__(self) -> None:
        self.memory = PeakMemory()
        self.mirror = Mirror(self.config.training.log, self.folder)
        self.options: Word2VecConfig = model_options(self.config)
        self.training = self.config.training.model_copy(update={"epochs": self.epochs})
        self.threads = self.options.workers or self.training.threads or physical_cores()
        self.words = word_list(self.config, self.corpus)
        plan = self.options.plan(self.config.seed)
        self.weights = initial_weights(plan, len(self.words.ids_V), self.options.vector_size)
        tables = make_tables(plan, self.words)
        self.sweeper = Sweeper(plan, self.corpus.train.tokens, self.words, tables, self.weights)
        self.end = MOST_CHUNKS if self.epochs is None else math.ceil(self.epochs * self.sweeper.chunks)

    # The whole

    def run(self) -> bool:
        """Learn until the budget is spent -> True, or until asked to stop -> False. The folder then has the vectors."""
        self._resume()
        self.sweeper.warm_up()
        with self.mirror:
            return self._learn()

    def _learn(self) -> bool:
        self.clock = Clock(self.state.seconds)
        saved = time.monotonic()
        while self._used(self.state.step) < 1:
            self._stretch()
            stop = self.stopping()
            if stop or time.monotonic() - saved > self.training.save_seconds:
                self._save()
                saved = time.monotonic()
            if stop:
                return False
        self._save()
        return True

    def _used(self, step: int) -> float:
        """The share of the budget that is used before a chunk."""
        share = progress(
            self.training,
            step=step,
            steps_per_epoch=self.sweeper.chunks,
            seconds=self.clock.seconds if self.training.minutes else 0.0,
        )
        return 1.0 if step >= self.end else share

    def _rate(self, step: int) -> float:
        """The learning rate of a chunk: a line from alpha to min_alpha over the budget."""
        alpha, least = self.options.alpha, self.options.min_alpha
        return alpha - (alpha - least) * self._used(step)

    def _stretch(self) -> None:
        """Learn for about a second."""
        began = time.monotonic()

        def going() -> bool:
            spent = self.training.minutes and self.clock.seconds >= 60 * self.training.minutes
            return not spent and time.monotonic() - began < STRETCH and not self.stopping()

        step, totals = self.sweeper.sweep(self.state.step, self.end, self._rate, self.threads, going)
        self._account(step, totals, time.monotonic() - began)

    def _account(self, step: int, totals: SweepTotals, seconds: float) -> None:
        s = self.state
        s.step, s.tokens, s.train_seconds = step, s.tokens + totals.words, s.train_seconds + seconds
        s.seconds = self.clock.seconds
        if not totals.measured:
            return
        self.loss = totals.loss / totals.measured
        if not math.isfinite(self.loss):
            raise ConfigError(
                f"the loss became {self.loss} after {s.tokens:,} words: model.alpha = {self.options.alpha:g} is too "
                f"high; train into another --out with a lower one: --set model.alpha={self.options.alpha / 3:.2g}"
            )
        used, rate = self._used(step), self._rate(step)
        record = {"step": step, "tokens": s.tokens, "seconds": round(s.seconds, 3), "loss": self.loss, "lr": rate}
        s.log_length = self.folder.log(record)
        self.mirror.send(record)
        self.show(Update(s, used, self.loss, rate, s.seconds / used * (1 - used) if used else math.inf))

    # Saving and resuming

    def _save(self) -> None:
        """The vectors as they are, to use and to go on from: one file, so that a kill leaves the last one whole."""
        self.state.seconds = self.clock.seconds
        save_model(self.folder, self._model())

    def _resume(self) -> None:
        if not self.folder.has_model():
            self.folder.cut_log(0)
            return
        saved = Word2Vec.load(self.options, self.folder.model_path)
        progress, shapes = saved.training_progress, [rows.shape for rows in self.weights]
        if progress is None or [rows.shape for rows in saved.weights] != shapes:
            raise RunError(
                f"{self.folder.model_path} is not of this training; restore the run's own file, or choose another --out"
            )
        for rows_VD, saved_VD in zip(self.weights, saved.weights, strict=True):
            rows_VD[:] = saved_VD
        self.loss = math.nan if progress["loss"] is None else progress["loss"]
        self.state = TrainingState(**{name: progress[name] for name in SAVED})
        self.folder.cut_log(self.state.log_length)

    def _model(self) -> Word2Vec:
        progress = {name: getattr(self.state, name) for name in SAVED}
        progress |= {"loss": None if math.isnan(self.loss) else self.loss, "seed": self.config.seed}
        words = self.words
        return Word2Vec(self.options, self.weights, words.ids_V, words.counts_V, words.size, progress)

    def result(self) -> dict[str, Any]:
        """What the training came to."""
        s = self.state
        return {
            "steps": 0,
            "seconds": round(s.seconds, 2),
            "train_seconds": round(s.train_seconds, 2),
            "tokens": s.tokens,
            "parameters": self._model().parameter_count,
            "tokens_per_second": round(s.tokens / s.train_seconds, 1) if s.train_seconds else None,
            "words": len(self.words.ids_V),
            "loss": None if math.isnan(self.loss) else round(self.loss, 4),
            "budget": budget_of(self.config),
            "stopped": spent_budget(
                self.training, step=s.step, steps_per_epoch=self.sweeper.chunks, seconds=self.clock.seconds
            ),
            "peak_memory": self.memory.bytes,
        }


FITTINGS.register("sweeps")(Sweeps())
