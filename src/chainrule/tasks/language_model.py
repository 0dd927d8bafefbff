"""What a training reads: the text or the pairs as tokens, the batches made of them, and how it is validated.

`open_corpus` tells from the configuration which it is. A corpus knows its tokeniser; the tokeniser is fitted to the
text, or is that of the run that is taken up again or started from.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from chainrule.base.processes import Processes
from chainrule.base.progress import Progress
from chainrule.checkpoint.folder import RunFolder
from chainrule.config import DataConfig, RunConfig, TokenizerConfig, TrainingConfig, parse
from chainrule.data.batches import Batches, BlockBatches, StreamBatches
from chainrule.data.masks import MaskedBatches
from chainrule.data.spans import SpanBatches
from chainrule.data.store import TokenStore, open_store
from chainrule.errors import ConfigError, DataError
from chainrule.evaluation.masked import masked_validator, masking_of
from chainrule.evaluation.pairs import loss_of_batches
from chainrule.evaluation.perplexity import Likelihood, evaluate_tokens
from chainrule.registry import MODELS, OBJECTIVES
from chainrule.tasks.presets import choose_tokenizer
from chainrule.text.formats.pairs import TAB_SUFFIX, hold_pairs
from chainrule.text.readers import Texts, open_texts
from chainrule.text.sources import kind_of
from chainrule.text.splitting import hold_out, some_lines
from chainrule.text.tokenizers import Tokenizer, train_tokenizer
from chainrule.types import Vocabulary

VALIDATION_SHARE = 0.1
"""Of a budget of minutes, that validations may take while it lasts."""

LEAST_VALIDATION = 8192
"""Tokens, whatever they take."""

Validator = Callable[[Any], dict[str, float]]
"""A model measured: its `loss` in nats a token, and whatever else it may be chosen by."""


@dataclass
class Listener:
    """Who wants to know how a corpus is made. Nothing is said by default."""

    note: Callable[[str], None] = lambda text: None
    tokenized: Progress = lambda done, whole: None


class Corpus(Protocol):
    """Training and validation data of one run."""

    tokenizer: Tokenizer
    options: TokenizerConfig  # that the tokeniser was fitted with

    @property
    def vocabulary(self) -> Vocabulary: ...

    @property
    def tokens(self) -> int:
        """That a model learns to predict in one epoch."""
        ...

    @property
    def signature(self) -> dict[str, str]: ...

    def save(self, folder: Path) -> None:
        """Put the tokenisers into a run's folder."""
        ...

    def batches(self, config: RunConfig, processes: Processes) -> Batches: ...

    def validator(self, config: RunConfig) -> Validator: ...


def reads(config: RunConfig) -> str:
    """What a run is trained on: text, pairs of lines, spans or masks hidden in a text, or labels of lines."""
    made = str(getattr(OBJECTIVES.get(config.objective.name).make, "reads", "text"))
    translates = MODELS.get(config.model.name).about["task"] == "seq2seq"
    return "pairs" if made == "text" and translates else made


def reads_pairs(config: RunConfig) -> bool:
    """Whether a run is trained on pairs of lines."""
    return reads(config) == "pairs"


def reads_spans(config: RunConfig) -> bool:
    """Whether pairs are made of one text by hiding parts of it."""
    return reads(config) == "spans"


def refuse_pairs(paths: Sequence[str], model: str) -> None:
    """A language model reads one text; what looks like the two sides of pairs was hardly meant as one."""
    if look_like_pairs(paths):
        raise DataError(
            f"{' and '.join(paths)} look like pairs, but {model} is a language model and reads one text; choose a "
            "translator (--model seq2seq-attention), or give one side, or both joined in one .txt file"
        )


def form_for(model: str, paths: Sequence[str]) -> str:
    """The form of a model that fits the data: `at` of pairs is `seq2seq-at`, `hybrid` of one text is `hybrid-lm`."""
    about = MODELS.get(model).about
    if not paths or "counterpart" not in about:
        return model
    translates = about["task"] == "seq2seq"
    fits = len(paths) == 2 or all(map(hold_pairs, paths)) if translates else not look_like_pairs(paths)
    return model if fits else about["counterpart"]


def look_like_pairs(paths: Sequence[str]) -> bool:
    """train.en and train.de, or pairs.tsv."""
    alike = len(paths) == 2 and _languages(Path(paths[0]), Path(paths[1]))
    return alike or any(kind_of(Path(path)) == TAB_SUFFIX for path in paths)


def _languages(first: Path, second: Path) -> bool:
    """train.en and train.de."""
    return (
        first.stem == second.stem
        and all(path.suffix[1:].isalpha() and len(path.suffix) == 3 for path in (first, second))
        and first != second
    )


# One text


@dataclass
class TextCorpus:
    """A text to train on and one to validate with, as tokens of one tokeniser."""

    tokenizer: Tokenizer
    options: TokenizerConfig
    train: TokenStore
    valid: TokenStore

    @property
    def vocabulary(self) -> Vocabulary:
        read = self.tokenizer
        pieces = tuple(map(read.piece, range(read.vocab_size)))
        return Vocabulary(read.vocab_size, read.eos, np.asarray(self.train.counts_V), pieces=pieces)

    @property
    def tokens(self) -> int:
        return len(self.train)

    @property
    def signature(self) -> dict[str, str]:
        return {
            "data": self.train.fingerprint,
            "valid": self.valid.fingerprint,
            "tokenizer": f"{self.tokenizer.kind}#{self.tokenizer.fingerprint}",
        }

    def save(self, folder: Path) -> None:
        self.tokenizer.save(folder)

    def batches(self, config: RunConfig, processes: Processes) -> Batches:
        t, eos = config.training, self.tokenizer.eos
        assert t.batch_size is not None
        assert t.length is not None
        if reads_spans(config):
            return self._spans(config, self.train, processes)
        if reads(config) == "masks":
            return self._masks(config, self.train, config.seed, processes)
        kind = StreamBatches if t.batching == "stream" else BlockBatches
        return kind(
            self.train.tokens,
            t.batch_size,
            t.length,
            eos=eos,
            seed=config.seed,
            rank=processes.rank,
            world=processes.world,
        )

    def _spans(self, config: RunConfig, store: TokenStore, processes: Processes) -> SpanBatches:
        t = config.training
        assert t.batch_size is not None
        assert t.length is not None
        objective = OBJECTIVES.get(config.objective.name).make
        options = parse(objective.Config, config.objective.options, "objective")
        model = MODELS.get(config.model.name).make
        return SpanBatches(
            store.tokens,
            t.batch_size,
            t.length,
            eos=self.tokenizer.eos,
            seed=config.seed,
            rank=processes.rank,
            world=processes.world,
            noise=options.noise,
            mean_span=options.mean_span,
            first_sentinel=self.tokenizer.vocab_size,
            sentinels=parse(model.Config, config.model.options, "model").sentinels,
        )

    def _masks(self, config: RunConfig, store: TokenStore, seed: int, processes: Processes) -> MaskedBatches:
        t = config.training
        assert t.batch_size is not None
        assert t.length is not None
        objective, model = OBJECTIVES.get(config.objective.name).make, MODELS.get(config.model.name).make
        shape = parse(model.Config, config.model.options, "model")
        options = parse(objective.Config, config.objective.options, "objective").model_dump()
        return MaskedBatches(
            store.tokens,
            t.batch_size,
            t.length,
            masking=masking_of(self.tokenizer, mask=shape.mask, first=shape.first, **options),
            eos=self.tokenizer.eos,
            seed=seed,
            rank=processes.rank,
            world=processes.world,
            first=shape.first,
        )

    def validator(self, config: RunConfig) -> Validator:
        if reads(config) == "masks":
            t = config.training
            seconds = None if t.minutes is None else seconds_to_validate(t)
            return masked_validator(self._masks(config, self.valid, 0, Processes()), t.valid_tokens, seconds)
        if reads_spans(config):
            batches = self._spans(config, self.valid, Processes())
            most = max(
                1, min(batches.per_epoch, config.training.valid_tokens // (batches.batch(0)[0].targets_BT.numel()))
            )
            return lambda model: {"loss": loss_of_batches(model, (batches.batch(index)[0] for index in range(most)))}
        return _text_validator(self.valid.tokens[: config.training.valid_tokens], self.tokenizer.eos, config.training)


def open_text_corpus(config: RunConfig, folder: RunFolder, listener: Listener) -> TextCorpus:
    """The text of a run, tokenised."""
    if not reads_spans(config):  # which may well be of two languages
        refuse_pairs(config.data.train, config.model.name)
    whole = MODELS.get(config.model.name).about.get("made_by") == "sweeps"  # nothing of it is validated
    texts, valid = training_texts(config.data, whole=whole)
    if valid is texts and not whole:
        listener.note(f"{texts.name} is one line, nothing can be held out: validating on the training text itself")
    found = kept_tokenizers(config, folder)
    if found is None:
        tokenizer, options = fit_tokenizer(config.tokenizer, texts, listener.note)
    else:
        tokenizer, options = found.tokenizer, found.options
    store = open_store(texts, tokenizer, progress=listener.tokenized)
    corpus = TextCorpus(tokenizer, options, store, open_store(valid, tokenizer))
    if len(corpus.train) < 2:
        raise DataError(f"{texts.name} has {len(corpus.train)} token(s); training needs at least 2, give it more text.")
    return corpus


def training_texts(data: DataConfig, *, whole: bool = False) -> tuple[Texts, Texts]:
    """What to train on and to validate with: another text, or the end of the same, or the same if it is one line.

    `whole`: nothing is to be held out.
    """
    texts = open_texts(data.train, field=data.field)
    if data.lines:
        texts = some_lines(texts, 0, data.lines)
    if data.valid:
        valid = open_texts(data.valid, field=data.field)
        return texts, some_lines(valid, 0, data.valid_lines) if data.valid_lines else valid
    return (None if whole else hold_out(texts, data.held_out)) or (texts, texts)


def _text_validator(tokens: Any, eos: int, training: TrainingConfig) -> Validator:
    """Many short tracks: a validation only ranks the weights of one run, and is to be quick."""
    affordable: int | None = None

    def validate(model: Any) -> dict[str, float]:
        nonlocal affordable
        if affordable is None:
            affordable = _affordable(model, tokens, eos, training)
        total, count = _evaluate_quickly(model, tokens[:affordable], eos)
        return {"loss": total / count}

    return validate


def _affordable(model: Any, tokens: Any, eos: int, training: TrainingConfig) -> int:
    """How many tokens a validation may have so that all of them take at most a tenth of a budget of minutes."""
    if training.minutes is None or len(tokens) <= LEAST_VALIDATION:
        return len(tokens)
    _evaluate_quickly(model, tokens[:256], eos)  # what is done for the first time takes longer
    began = time.perf_counter()
    _evaluate_quickly(model, tokens[:LEAST_VALIDATION], eos)
    rate = LEAST_VALIDATION / (time.perf_counter() - began)
    # A power of two, so that a run which is taken up again mostly finds the same.
    affordable = 1 << int(math.log2(max(1, rate * seconds_to_validate(training))))
    return max(LEAST_VALIDATION, min(len(tokens), affordable))


def seconds_to_validate(training: TrainingConfig) -> float:
    """What each validation may take of a budget of minutes."""
    assert training.minutes is not None
    return 60 * training.minutes / training.validations * VALIDATION_SHARE


def _evaluate_quickly(model: Any, tokens: Any, eos: int) -> Likelihood:
    return evaluate_tokens(model, tokens, eos=eos, tracks=max(1, min(64, len(tokens) // 256)))


# Tokenisers


@dataclass(frozen=True)
class Tokenizers:
    """Of a run: the one of its text, or of its target, and the one of its source if that is another."""

    tokenizer: Tokenizer
    source: Tokenizer | None
    options: TokenizerConfig


def kept_tokenizers(config: RunConfig, folder: RunFolder) -> Tokenizers | None:
    """The tokenisers of the run that is taken up again, else of the one it starts from, else None."""
    for place in (folder, RunFolder(config.init) if config.init else None):
        if place is not None and place.exists() and (place.path / "tokenizer.json").exists():
            return Tokenizers(place.read_tokenizer(), place.read_source_tokenizer(), place.read_config().tokenizer)
    if config.init:
        RunFolder(config.init).read_tokenizer()  # which says what is wrong with it
    return None


def fit_tokenizer(
    config: TokenizerConfig, texts: Texts, note: Callable[[str], None], side: str = ""
) -> tuple[Tokenizer, TokenizerConfig]:
    """A tokeniser fitted to a text, or read from a file, and the options it was fitted with."""
    sample = next(texts.blocks()).data[:100_000].decode(errors="replace")
    chosen = choose_tokenizer(config, sample, texts.size)
    note(f"tokeniser{side}: {chosen.kind}")
    options = {"split": chosen.split} if chosen.kind == "word" else {}
    tokenizer = train_tokenizer(
        str(chosen.kind), texts, vocab_size=chosen.vocab_size, min_count=chosen.min_count or 1, **options
    )
    return tokenizer, chosen.model_copy(update={"vocab_size": tokenizer.vocab_size})


def check_length(config: RunConfig, window: int | None) -> None:
    """Rows of a text must fit the window of the model."""
    length = config.training.length
    if window is not None and length is not None and length > window:
        name, places = config.model.name, config.model.options.get("positions")
        sees = (
            f"with model.positions = {places} {name} reads at most {window}"
            if reads(config) == "masks"
            else f"{name} sees at most model.context = {window}"
        )
        raise ConfigError(f"training.length is {length}, but {sees} tokens; shorten the one or lengthen the other")
