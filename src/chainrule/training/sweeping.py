"""From a text to vectors of its words: the training of word2vec, with its budget, its checkpoints and its log.

A training is a number of chunks (`vectors/sweeps.py`), learned from for a second at a time; in between it tells how it
goes, saves, and sees whether it is to stop. With one thread a training that was stopped and taken up again comes to the
very vectors of an unbroken one, unless the budget is of minutes, since then the clock has a say in the learning rate.

Legend: V words, D width of the rows in memory, which are filled up with zeros.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from chainrule.base.devices import PeakMemory, give_back_memory, physical_cores
from chainrule.checkpoint.folder import RunFolder
from chainrule.config import RunConfig, TokenizerConfig, parse
from chainrule.engines.word2vec.sweeps import Sweeper, Totals, Vocabulary, first_weights, make_tables
from chainrule.errors import ConfigError, DataError, RunError
from chainrule.models.word2vec import Word2Vec, Word2VecConfig
from chainrule.tasks.language_model import TextCorpus
from chainrule.training.budget import Clock, progress
from chainrule.training.loop import Standing, Update

if TYPE_CHECKING:
    from chainrule.training.fit import Listener

OF_WORDS = ("word", "jieba", "char")
"""Tokenisers that leave out what is rare."""

STRETCH = 1.0
"""Seconds of learning between two looks at the clock."""


def word2vec_tokenizer(config: RunConfig) -> TokenizerConfig:
    """The tokeniser of a run of word2vec: words, if nothing else is asked for, cut where the model says.

    What cannot be asked of word2vec is refused here, before any text is read.
    """
    model, given = _options(config), config.tokenizer
    _refuse(config)
    kind = given.kind or "word"
    if kind not in OF_WORDS:
        if "min_count" in config.model.options and not config.init:
            raise ConfigError(
                f"model.min_count is {model.min_count}, but the tokeniser {kind} leaves nothing out; leave it out, or "
                "use --tokenizer word"
            )
        return given
    if given.min_count not in (None, model.min_count):
        raise ConfigError(
            f"tokenizer.min_count is {given.min_count} and model.min_count is {model.min_count}; they are the same "
            "thing, so set model.min_count alone"
        )
    return given.model_copy(update={"kind": kind, "min_count": model.min_count})


def _refuse(config: RunConfig) -> None:
    if config.training.steps:
        raise ConfigError(
            "training.steps counts the steps of an optimiser, and word2vec has none; give --epochs or --minutes"
        )
    if config.init:
        raise ConfigError("word2vec cannot start from another run; leave --init out, or go on with that run itself")


def check_words(config: RunConfig, corpus: TextCorpus) -> Vocabulary:
    """The words that a corpus has; a text with none, or with one alone, is refused."""
    tokenizer, counts_I = corpus.tokenizer, np.array(corpus.train.counts_V)
    counts_I[[token for token in (tokenizer.eos, tokenizer.unk) if token is not None]] = 0
    ids_V = np.flatnonzero(counts_I)
    if len(ids_V) < 2:
        raise DataError(
            f"only {len(ids_V)} word(s) of the text come {_options(config).min_count} times or more; word2vec learns "
            "from words that stand together, give it more text or a lower model.min_count"
        )
    return Vocabulary(ids_V, counts_I[ids_V], tokenizer.vocab_size, tokenizer.eos)


def fit_vectors(
    *,
    config: RunConfig,
    corpus: TextCorpus,
    folder: RunFolder,
    listener: Listener,
    stopping: Callable[[], bool] = lambda: False,
) -> tuple[bool, dict[str, Any]]:
    """Learn vectors into a run's folder, or go on -> whether it came to its end, and what it came to."""
    give_back_memory()  # what tokenising took, of which training needs nothing
    fitting = Fitting(config, corpus, folder, listener.update, stopping)
    finished = fitting.run()
    return finished, fitting.result()


def _options(config: RunConfig) -> Word2VecConfig:
    return parse(Word2VecConfig, config.model.options, "model")


@dataclass
class Fitting:
    """One training."""

    config: RunConfig
    corpus: TextCorpus
    folder: RunFolder
    show: Callable[[Update], None]
    stopping: Callable[[], bool]
    standing: Standing = field(default_factory=Standing)
    loss: float = math.nan  # nats a prediction, over the last stretch

    def __post_init__(self) -> None:
        self.memory = PeakMemory()
        self.options = _options(self.config)
        epochs = self.config.training.epochs or float(self.options.epochs)
        self.training = self.config.training.model_copy(update={"epochs": epochs})
        self.threads = self.options.workers or self.training.threads or physical_cores()
        self.words = check_words(self.config, self.corpus)
        plan = self.options.plan(self.config.seed)
        self.weights = first_weights(plan, len(self.words.ids_V), self.options.vector_size)
        tables = make_tables(plan, self.words)
        self.sweeper = Sweeper(plan, self.corpus.train.tokens, self.words, tables, self.weights)
        self.end = math.ceil(epochs * self.sweeper.chunks)

    # The whole

    def run(self) -> bool:
        """Learn until the budget is spent -> True, or until asked to stop -> False. The folder then has the vectors."""
        self._resume()
        self.sweeper.warm_up()
        self.clock = Clock(self.standing.seconds)
        saved = time.monotonic()
        while self._used(self.standing.step) < 1:
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

        step, totals = self.sweeper.go(self.standing.step, self.end, self._rate, self.threads, going)
        self._account(step, totals, time.monotonic() - began)

    def _account(self, step: int, totals: Totals, seconds: float) -> None:
        s = self.standing
        s.step, s.tokens, s.train_seconds = step, s.tokens + totals.words, s.train_seconds + seconds
        s.seconds = self.clock.seconds
        if not totals.measured:
            return
        self.loss = totals.loss / totals.measured
        if not math.isfinite(self.loss):
            raise ConfigError(
                f"the loss became {self.loss} after {s.tokens:,} words; lower model.alpha "
                f"({self.options.alpha:g} is too high), then train into another --out"
            )
        used, rate = self._used(step), self._rate(step)
        told = {"step": step, "tokens": s.tokens, "seconds": round(s.seconds, 3), "loss": self.loss, "lr": rate}
        s.log_length = self.folder.log(told)
        self.show(Update(s, used, self.loss, rate, s.seconds / used * (1 - used) if used else math.inf))

    # Saving and resuming

    def _save(self) -> None:
        """The vectors as they are, to use and to go on from: one file, so that a kill leaves the last one whole."""
        self.standing.seconds = self.clock.seconds
        self.folder.write_model(self._model())

    def _resume(self) -> None:
        if not self.folder.has_model():
            self.folder.cut_log(0)
            return
        saved = Word2Vec.load(self.options, self.folder.path / "model.safetensors")
        if saved.standing is None or [rows.shape for rows in saved.weights] != [rows.shape for rows in self.weights]:
            raise RunError(
                f"{self.folder.path / 'model.safetensors'} is not of this training; restore the run's own file, or "
                "choose another --out"
            )
        for rows_VD, saved_VD in zip(self.weights, saved.weights, strict=True):
            rows_VD[:] = saved_VD
        self.loss = math.nan if saved.standing["loss"] is None else saved.standing["loss"]
        self.standing = Standing(**{name: saved.standing[name] for name in KEPT})
        self.folder.cut_log(self.standing.log_length)

    def _model(self) -> Word2Vec:
        standing = {name: getattr(self.standing, name) for name in KEPT}
        standing |= {"loss": None if math.isnan(self.loss) else self.loss, "seed": self.config.seed}
        words = self.words
        return Word2Vec(self.options, self.weights, words.ids_V, words.counts_V, words.size, standing)

    def result(self) -> dict[str, Any]:
        """What the training came to."""
        s = self.standing
        return {
            "steps": 0,
            "seconds": round(s.seconds, 2),
            "train_seconds": round(s.train_seconds, 2),
            "tokens": s.tokens,
            "parameters": self._model().parameter_count,
            "tokens_per_second": round(s.tokens / s.train_seconds, 1) if s.train_seconds else None,
            "words": len(self.words.ids_V),
            "loss": None if math.isnan(self.loss) else round(self.loss, 4),
            "budget": self.config.training.model_dump(include={"minutes", "steps", "epochs"}),
            "peak_memory": self.memory.bytes,
        }


KEPT = ("step", "tokens", "train_seconds", "seconds", "log_length")
"""What is saved of the standing."""
