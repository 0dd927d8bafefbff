"""From a configuration to a trained run: text, tokens, model, training, in that order.

`fit` is all of `chainrule train`. Called again with the same options it goes on where it stopped.
"""

from __future__ import annotations

import math
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from chainrule.config import (
    DataConfig,
    NamedSection,
    RunConfig,
    TokenizerConfig,
    TrainingConfig,
    parse,
    parse_bytes,
)
from chainrule.counting.room import SCRATCH
from chainrule.data.batches import Batches, BlockBatches, StreamBatches
from chainrule.data.store import TokenStore, open_store
from chainrule.errors import ConfigError, DataError
from chainrule.evaluation.perplexity import Likelihood, evaluate_tokens
from chainrule.machine import PeakMemory, choose_device, physical_cores
from chainrule.registry import MODELS, OBJECTIVES, OUTPUTS
from chainrule.runs import OF_TRAINING, RunFolder, build_model, count_parameters
from chainrule.text.readers import Texts, open_texts
from chainrule.text.split import hold_out
from chainrule.text.tokenizers import Tokenizer, train_tokenizer
from chainrule.training.loop import Hooks, Trainer, Update
from chainrule.training.presets import choose_tokenizer, resolve
from chainrule.training.processes import Processes
from chainrule.types import Vocabulary

# Options that may differ when a run is taken up again: they say how long and where, not what.
FREE = ("minutes", "steps", "epochs", "device", "threads", "memory", "save_seconds", "log_steps", "compile")


VALIDATION_SHARE = 0.1
"""Of a budget of minutes, that validations may take while it lasts."""

LEAST_VALIDATION = 8192
"""Tokens, whatever they take."""


@dataclass
class Listener:
    """Who wants to know how it goes. Every method may be replaced; nothing is said by default."""

    note: Callable[[str], None] = lambda text: None
    tokenized: Callable[[int, int], None] = lambda done, whole: None
    update: Callable[[Update], None] = lambda update: None


@dataclass
class Corpus:
    """A text to train on and one to validate with, as tokens of one tokeniser."""

    tokenizer: Tokenizer
    options: TokenizerConfig  # that the tokeniser was fitted with
    train: TokenStore
    valid: TokenStore


@dataclass
class Fitted:
    """What `fit` gives back."""

    folder: RunFolder
    finished: bool
    result: dict[str, Any] = field(default_factory=dict)


def fit(config: RunConfig, out: str | Path, listener: Listener | None = None) -> Fitted:
    """Train what `config` describes into the folder `out`, or go on with it, or find it done."""
    listener = listener or Listener()
    folder = RunFolder(out)
    processes = Processes.join()
    request = _request(config)
    _same_request(folder, request)
    counted = is_counted(config)
    done = folder.read_result()
    if done and (folder.has_model() if counted else done["budget"] == _budget(config)):
        more = "" if counted else ", or a larger budget to train on"
        listener.note(f"{out} is finished already; choose another --out{more}")
        return Fitted(folder, True, done)
    _check_names(config)
    asked = _budget(config)
    torch.set_num_threads(config.training.threads or physical_cores())
    with processes.one_after_another():
        corpus = _corpus(config, folder, listener)
    _same_text(folder, corpus)
    if counted:
        return _count(config, corpus, folder, request, listener)
    config = _resolve(config, corpus, folder)
    device = choose_device(config.training.device)
    torch.manual_seed(config.seed + processes.rank)
    model = _model(config, corpus).to(device)
    memory = PeakMemory()
    trainer = _trainer(config, corpus, model, folder, listener, device, processes)
    if processes.leads:  # not before everything is known to fit: a mistake leaves no folder that stands in the way
        _begin(folder, config, corpus, request)
    with _stop_signals() as stopping:
        trainer.hooks.stopping = stopping
        finished = trainer.fit()
    result = _result(trainer) | {"budget": asked, "peak_memory": memory.bytes}
    if finished and processes.leads:
        folder.write_result(result)
    return Fitted(folder, finished, result)


def _check_names(config: RunConfig) -> None:
    """A misspelt name or option is told before any text is read."""
    for where, registry in (("model", MODELS), ("output", OUTPUTS), ("objective", OBJECTIVES)):
        section = getattr(config, where)
        entry = registry.get(section.name)
        if entry.about.get("made_by") == "mix":
            raise ConfigError(
                f"a {entry.name} is not trained but made of runs: chainrule mix RUN RUN --valid TEXT --out RUN"
            )
        parse(entry.make.Config, section.options, where)
    choose_device(config.training.device)
    if is_counted(config):
        _refuse_training_options(config)
    elif config.training.memory is not None:
        raise ConfigError(
            f"training.memory bounds the counting of n-grams; {config.model.name} streams its text anyway"
        )


def is_counted(config: RunConfig) -> bool:
    """Whether the model is counted rather than trained by gradients."""
    return MODELS.get(config.model.name).about.get("made_by") == "counting"


def _refuse_training_options(config: RunConfig) -> None:
    """What a counted model has no use for must not be asked of it."""
    for section, usual in (("output", "softmax"), ("objective", "likelihood")):
        given = getattr(config, section)
        if given.name != usual or given.options:
            raise ConfigError(
                f"{config.model.name} is counted, not trained, and has no {section} to choose; leave --{section} out"
            )
    if config.model.options.get("smoothing") == "imported":
        raise ConfigError(
            "the smoothing 'imported' is that of a file which another program made; choose one that can be estimated, "
            "such as modified-kneser-ney"
        )


# Counting


def _count(config: RunConfig, corpus: Corpus, folder: RunFolder, request: dict[str, Any], listener: Listener) -> Fitted:
    """All of the training of a counted model."""
    make = MODELS.get(config.model.name).make
    options = parse(make.Config, config.model.options, "model")
    if options.across_lines is None:
        options = options.model_copy(update={"across_lines": corpus.tokenizer.kind not in ("word", "jieba")})
    chosen = NamedSection(name=config.model.name, **options.model_dump(mode="json"))
    config = config.model_copy(update={"model": chosen, "tokenizer": corpus.options})
    _begin(folder, config, corpus, request)
    if any(_budget(config).values()):
        listener.note(f"{config.model.name} is counted in one pass over the text; it takes what it takes")
    for left_behind in folder.path.glob(f"{SCRATCH}*"):  # by a kill
        shutil.rmtree(left_behind, ignore_errors=True)
    memory, began = PeakMemory(), time.perf_counter()
    model = make.estimate(
        options,
        Vocabulary(corpus.tokenizer.vocab_size, corpus.tokenizer.eos, np.asarray(corpus.train.counts_V)),
        corpus.train.tokens,
        corpus.valid.tokens,
        memory=parse_bytes(config.training.memory) if config.training.memory else None,
        scratch=folder.path,
        threads=config.training.threads or physical_cores(),
        note=listener.note,
    )
    folder.write_model(model)
    seconds = time.perf_counter() - began
    result = {
        "steps": 0,
        "seconds": round(seconds, 2),
        "train_seconds": round(seconds, 2),
        "tokens": len(corpus.train),
        "parameters": count_parameters(model),
        "tokens_per_second": round(len(corpus.train) / seconds, 1),
        "ngrams": model.table.sizes,
        "budget": _budget(config),
        "peak_memory": memory.bytes,
    }
    folder.write_result(result)
    return Fitted(folder, True, result)


# Text to tokens


def _corpus(config: RunConfig, folder: RunFolder, listener: Listener) -> Corpus:
    texts, valid = training_texts(config.data)
    if valid is texts:
        listener.note(f"{texts.name} is one line, nothing can be held out: validating on the training text itself")
    tokenizer, options = _tokenizer(config, texts, folder, listener)
    store = open_store(texts, tokenizer, progress=listener.tokenized)
    corpus = Corpus(tokenizer, options, store, open_store(valid, tokenizer))
    if len(corpus.train) < 2:
        raise DataError(f"{texts.name} has {len(corpus.train)} token(s); training needs at least 2, give it more text.")
    return corpus


def training_texts(data: DataConfig) -> tuple[Texts, Texts]:
    """What to train on and to validate with: another text, or the end of the same, or the same if it is one line."""
    texts = open_texts(data.train, field=data.field)
    if data.valid:
        return texts, open_texts(data.valid, field=data.field)
    return hold_out(texts, data.held_out) or (texts, texts)


def _tokenizer(
    config: RunConfig, texts: Texts, folder: RunFolder, listener: Listener
) -> tuple[Tokenizer, TokenizerConfig]:
    """The run's tokeniser, fitted or read, and the options it was fitted with."""
    if folder.exists() and (folder.path / "tokenizer.json").exists():
        return folder.read_tokenizer(), folder.read_config().tokenizer
    sample = next(texts.blocks()).data[:100_000].decode(errors="replace")
    chosen = choose_tokenizer(config.tokenizer, sample, texts.size)
    listener.note(f"tokeniser: {chosen.kind}")
    options = {"split": chosen.split} if chosen.kind == "word" else {}
    tokenizer = train_tokenizer(
        str(chosen.kind), texts, vocab_size=chosen.vocab_size, min_count=chosen.min_count or 1, **options
    )
    return tokenizer, chosen.model_copy(update={"vocab_size": tokenizer.vocab_size})


# The model and its surroundings


def _resolve(config: RunConfig, corpus: Corpus, folder: RunFolder) -> RunConfig:
    if folder.exists():  # taken up again: what was chosen stays chosen, the budget may be new
        saved = folder.read_config()
        free = {name: getattr(config.training, name) for name in FREE}
        if not any(_budget(config).values()):
            free |= _budget(saved)
        return saved.model_copy(update={"training": saved.training.model_copy(update=free)})
    make = MODELS.get(config.model.name).make
    options = set(make.Config.model_fields)
    windowed = "context" in options
    config = resolve(
        config, tokens=len(corpus.train), vocabulary=corpus.tokenizer.vocab_size, windowed=windowed, options=options
    )
    return config.model_copy(update={"tokenizer": corpus.options})


def _model(config: RunConfig, corpus: Corpus) -> nn.Module:
    vocabulary = Vocabulary(corpus.tokenizer.vocab_size, corpus.tokenizer.eos, np.asarray(corpus.train.counts_V))
    return build_model(config, vocabulary)


def _trainer(
    config: RunConfig,
    corpus: Corpus,
    model: nn.Module,
    folder: RunFolder,
    listener: Listener,
    device: torch.device,
    processes: Processes,
) -> Trainer:
    _check_length(config, model)
    objective = OBJECTIVES.get(config.objective.name).make
    hooks = Hooks(validate=_validator(config, corpus), show=listener.update)
    return Trainer(
        model=model,
        objective=objective(parse(objective.Config, config.objective.options, "objective")),
        batches=_batches(config, corpus, processes),
        config=config.training,
        folder=folder,
        hooks=hooks,
        carries=config.training.batching == "stream" and getattr(model, "window", None) is None,
        device=device,
        processes=processes,
    )


def _check_length(config: RunConfig, model: nn.Module) -> None:
    window, length = getattr(model, "window", None), config.training.length
    if window is not None and length is not None and length > window:
        raise ConfigError(
            f"training.length is {length}, but {config.model.name} sees at most model.context = {window} tokens; "
            "shorten the one or lengthen the other"
        )


def _batches(config: RunConfig, corpus: Corpus, processes: Processes) -> Batches:
    t = config.training
    assert t.batch_size is not None
    assert t.length is not None
    kind = StreamBatches if t.batching == "stream" else BlockBatches
    return kind(
        corpus.train.tokens,
        t.batch_size,
        t.length,
        eos=corpus.tokenizer.eos,
        seed=config.seed,
        rank=processes.rank,
        world=processes.world,
    )


def _validator(config: RunConfig, corpus: Corpus) -> Callable[[Any], float]:
    """Many short tracks: a validation only ranks the weights of one run, and is to be quick."""
    tokens, eos = corpus.valid.tokens[: config.training.valid_tokens], corpus.tokenizer.eos
    affordable: int | None = None

    def validate(model: Any) -> float:
        nonlocal affordable
        if affordable is None:
            affordable = _affordable(model, tokens, eos, config.training)
        total, count = _evaluate_quickly(model, tokens[:affordable], eos)
        return total / count

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
    seconds = 60 * training.minutes / training.validations * VALIDATION_SHARE
    affordable = 1 << int(math.log2(max(1, rate * seconds)))
    return max(LEAST_VALIDATION, min(len(tokens), affordable))


def _evaluate_quickly(model: Any, tokens: Any, eos: int) -> Likelihood:
    return evaluate_tokens(model, tokens, eos=eos, tracks=max(1, min(64, len(tokens) // 256)))


# The folder


def _begin(folder: RunFolder, config: RunConfig, corpus: Corpus, request: dict[str, Any]) -> None:
    folder.remove_result()
    corpus.tokenizer.save(folder.path)
    folder.write_signature(
        {
            "data": corpus.train.fingerprint,
            "valid": corpus.valid.fingerprint,
            "tokenizer": f"{corpus.tokenizer.kind}#{corpus.tokenizer.fingerprint}",
            "seed": str(config.seed),
        }
    )
    folder.write_request(request)
    folder.write_config(config, without=OF_TRAINING if is_counted(config) else ())


def _request(config: RunConfig) -> dict[str, Any]:
    """The options as given, without the free ones."""
    request = config.model_dump(mode="json", exclude_none=True)
    request["training"] = {key: value for key, value in request["training"].items() if key not in FREE}
    return request


def _same_request(folder: RunFolder, request: dict[str, Any]) -> None:
    """The options as given must be those the run was made with."""
    before = folder.read_request() if folder.exists() else None
    if before is not None and before != request:
        different = _first_difference(before, request)
        raise ConfigError(
            f"{folder.path} was made with other options ({different}); "
            "repeat the command it was made with to go on, or choose another --out"
        )


def _same_text(folder: RunFolder, corpus: Corpus) -> None:
    """A run goes on only with the text it was begun with."""
    if folder.exists() and folder.read_signature()["data"] != corpus.train.fingerprint:
        raise DataError(
            f"the training text has changed since {folder.path} was begun; put the old text back to go on with it, "
            "or choose another --out"
        )


def _first_difference(before: dict[str, Any], now: dict[str, Any], path: str = "") -> str:
    for key in [*before, *(key for key in now if key not in before)]:
        old, new = before.get(key), now.get(key)
        if isinstance(old, dict) and isinstance(new, dict) and old != new:
            return _first_difference(old, new, f"{path}{key}.")
        if old != new:
            return f"{path}{key} was {old!r}, now {new!r}"
    return ""


def _budget(config: RunConfig) -> dict[str, Any]:
    return config.training.model_dump(include={"minutes", "steps", "epochs"})


def _result(trainer: Trainer) -> dict[str, Any]:
    s = trainer.standing
    return {
        "steps": s.step,
        "seconds": round(s.seconds, 2),
        "train_seconds": round(s.train_seconds, 2),
        "tokens": s.tokens,
        "parameters": count_parameters(trainer.model),
        "tokens_per_second": round(s.tokens / s.train_seconds, 1) if s.train_seconds else None,
        "best_step": s.best_step,
    }


@contextmanager
def _stop_signals() -> Iterator[Callable[[], bool]]:
    """Ctrl-C and a polite kill ask the training to save and stop; a second Ctrl-C ends it at once."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked.is_set
        return

    def ask(number: int, frame: object) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
