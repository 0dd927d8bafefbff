"""From a configuration to a trained run: text, tokens, model, training, in that order.

`fit` is all of `chainrule train`. Called again with the same options it goes on where it stopped.
"""

from __future__ import annotations

import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from chainrule.base.devices import PeakMemory, choose_device, physical_cores
from chainrule.base.processes import Processes
from chainrule.checkpoint.folder import (
    COUNTS,
    OF_TRAINING,
    RunFolder,
    WeightsError,
    build_model,
    count_parameters,
    load_weights,
)
from chainrule.config import NamedSection, RunConfig, parse, parse_bytes
from chainrule.engines.ngram.scratch import SCRATCH
from chainrule.errors import ConfigError, DataError
from chainrule.registry import MODELS, OBJECTIVES
from chainrule.tasks import language_model as corpora
from chainrule.tasks.labels import open_label_corpus
from chainrule.tasks.language_model import Corpus, TextCorpus, check_length, open_text_corpus, reads, reads_pairs
from chainrule.tasks.presets import Size, resolve
from chainrule.tasks.translation import PairCorpus, open_pair_corpus
from chainrule.training.checks import check_names, is_counted, is_swept
from chainrule.training.init.embedding import start_from, with_width
from chainrule.training.init.pretrained import open_pretrained
from chainrule.training.loop import Hooks, Trainer, Update
from chainrule.training.sweeping import check_words, fit_vectors, word2vec_tokenizer
from chainrule.types import Vocabulary

# Options that may differ when a run is taken up again: they say how long and where, not what.
FREE = ("minutes", "steps", "epochs", "device", "threads", "memory", "save_seconds", "log_steps", "compile")


@dataclass
class Listener(corpora.Listener):
    """Who wants to know how it goes. Every method may be replaced; nothing is said by default."""

    update: Callable[[Update], None] = lambda update: None


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
    check_names(config)
    config = _with_pretrained(config, folder)
    if config.init_embedding and not folder.exists():
        config = with_width(config, listener.note)
    if is_swept(config):
        config = config.model_copy(update={"tokenizer": word2vec_tokenizer(config)})
    asked = _budget(config)
    torch.set_num_threads(config.training.threads or physical_cores())
    with processes.one_after_another():
        corpus = open_corpus(config, folder, listener)
    _same_text(folder, corpus)
    if counted:
        assert isinstance(corpus, TextCorpus)
        return _count(config, corpus, folder, request, listener)
    if is_swept(config):
        assert isinstance(corpus, TextCorpus)
        return _sweep(config, corpus, folder, request, listener)
    config = _resolve(config, corpus, folder)
    device = choose_device(config.training.device)
    torch.manual_seed(config.seed + processes.rank)
    model = _model(config, corpus.vocabulary, folder)
    if config.init_embedding and folder.read_checkpoint() is None:
        start_from(
            model, config.init_embedding, corpus.tokenizer, getattr(corpus, "source_tokenizer", None), listener.note
        )
    model = model.to(device)
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


# Counting and sweeping


def _sweep(
    config: RunConfig, corpus: TextCorpus, folder: RunFolder, request: dict[str, Any], listener: Listener
) -> Fitted:
    """All of the training of a model that goes over its text by itself."""
    make = MODELS.get(config.model.name).make
    chosen = NamedSection(
        name=config.model.name,
        **parse(make.Config, config.model.options, "model").model_dump(mode="json", exclude_none=True),
    )
    config = config.model_copy(update={"model": chosen, "tokenizer": corpus.options})
    check_words(config, corpus)
    _begin(folder, config, corpus, request)
    with _stop_signals() as stopping:
        finished, result = fit_vectors(
            config=config, corpus=corpus, folder=folder, listener=listener, stopping=stopping
        )
    result |= {"budget": _budget(config)}
    if finished:
        folder.write_result(result)
    return Fitted(folder, finished, result)


def _count(
    config: RunConfig, corpus: TextCorpus, folder: RunFolder, request: dict[str, Any], listener: Listener
) -> Fitted:
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
        corpus.vocabulary,
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


# The text or the pairs


def open_corpus(config: RunConfig, folder: RunFolder, listener: Listener) -> Corpus:
    """What the run is trained on, tokenised."""
    if reads(config) == "labels":
        return open_label_corpus(config, folder, listener)
    if not reads_pairs(config):
        return open_text_corpus(config, folder, listener)
    options = parse(MODELS.get(config.model.name).make.Config, config.model.options, "model")
    return open_pair_corpus(config, folder, listener, getattr(options, "context", None))


def _with_pretrained(config: RunConfig, folder: RunFolder) -> RunConfig:
    """A pretrained encoder told whole: its shape among the model's options, its tokeniser as that of what is read.

    The folder of the encoder is asked when a run is begun; later the run's own says all.
    """
    options, tokenizer = config.model.options, config.tokenizer
    if not options.get("pretrained"):
        return config
    if folder.exists():
        return config.model_copy(update={"model": folder.read_config().model})
    if config.init and "pretrained_shape" in options:
        return config
    pretrained = open_pretrained(options["pretrained"])
    options["pretrained_shape"] = pretrained.shape.model_dump(mode="json", exclude_none=True)
    if MODELS.get(config.model.name).about["task"] == "seq2seq":
        read_by = {"source": tokenizer.source or pretrained.tokenizer, "joint": False}
    else:
        read_by = {"kind": tokenizer.kind or pretrained.tokenizer}
    return config.model_copy(
        update={
            "model": NamedSection(name=config.model.name, **options),
            "tokenizer": tokenizer.model_copy(update=read_by),
        }
    )


# The model and its surroundings


def _resolve(config: RunConfig, corpus: Corpus, folder: RunFolder) -> RunConfig:
    if folder.exists():  # taken up again: what was chosen stays chosen, the budget may be new
        saved = folder.read_config()
        free = {name: getattr(config.training, name) for name in FREE}
        if not any(_budget(config).values()):
            free |= _budget(saved)
        return saved.model_copy(update={"training": saved.training.model_copy(update=free)})
    if told := getattr(corpus, "model_options", None):  # what only the data tells, such as the names of labels
        config = config.model_copy(
            update={"model": NamedSection(name=config.model.name, **{**config.model.options, **told})}
        )
    size = Size(corpus.tokens, corpus.tokenizer.vocab_size, reads=reads(config))
    config = resolve(config, size, set(MODELS.get(config.model.name).make.Config.model_fields))
    return config.model_copy(update={"tokenizer": corpus.options})


def _model(config: RunConfig, vocabulary: Vocabulary, folder: RunFolder) -> nn.Module:
    """A fresh model, with the weights of the run or of the pretrained encoder it starts from, if there is one."""
    if not config.init:
        model = build_model(config, vocabulary)
        # A checkpoint has all weights; without one, a run that was stopped early begins like a new one.
        if (name := config.model.options.get("pretrained")) and folder.read_checkpoint() is None:
            open_pretrained(name).fill(model.pretrained.encoder)  # type: ignore[union-attr, arg-type]
        return model
    weights = RunFolder(config.init).read_weights()
    # Output layers are shaped by how often words come, so those of the first training are kept with its weights.
    if COUNTS in weights and len(weights[COUNTS]) == vocabulary.size:
        vocabulary = replace(vocabulary, counts_V=weights[COUNTS].numpy())
    model = build_model(config, vocabulary)
    try:
        load_weights(model, weights)
    except WeightsError:
        raise ConfigError(
            f"the weights of {config.init} do not fit this {config.model.name}; start from a run of the same "
            "shape, and leave its model options as they are"
        ) from None
    return model


def _trainer(
    config: RunConfig,
    corpus: Corpus,
    model: nn.Module,
    folder: RunFolder,
    listener: Listener,
    device: torch.device,
    processes: Processes,
) -> Trainer:
    if reads(config) not in ("pairs", "labels"):
        check_length(config, getattr(model, "window", None))
    hooks = Hooks(validate=corpus.validator(config), show=listener.update)
    return Trainer(
        model=model,
        objective=_objective(config, corpus),
        batches=corpus.batches(config, processes),
        config=config.training,
        folder=folder,
        hooks=hooks,
        carries=carries(config) and getattr(model, "window", None) is None,
        device=device,
        processes=processes,
    )


def carries(config: RunConfig) -> bool:
    """Whether a model reads on where the last batch ended."""
    return config.training.batching == "stream" and MODELS.get(config.model.name).about["task"] == "lm"


def _objective(config: RunConfig, corpus: Corpus) -> Any:
    make = OBJECTIVES.get(config.objective.name).make
    objective = make(parse(make.Config, config.objective.options, "objective"))
    if getattr(make, "needs_reward", False):
        assert isinstance(corpus, PairCorpus)
        objective.reward = corpus.reward(objective.config.reward)
    return objective


# The folder


def _begin(folder: RunFolder, config: RunConfig, corpus: Corpus, request: dict[str, Any]) -> None:
    folder.remove_result()
    corpus.save(folder.path)
    folder.write_signature({**corpus.signature, "seed": str(config.seed)})
    folder.write_request(request)
    useless = OF_TRAINING if is_counted(config) else ("output", "objective") if is_swept(config) else ()
    folder.write_config(config, without=useless)


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
    if folder.exists() and folder.read_signature()["data"] != corpus.signature["data"]:
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
