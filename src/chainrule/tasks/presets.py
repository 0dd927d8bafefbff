"""What to choose when nobody chose: from the size of the text, the kind of model and the budget.

Every choice is written to the run's config.toml, where it can be read and changed.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from chainrule.config import RunConfig, TokenizerConfig, TrainingConfig, merge, parse

ATTENDING = ("transformer", "conv-attention", "at", "bert")
ATTENDING_TRANSLATORS = ("seq2seq-transformer", "seq2seq-at", "fat")
"""Models whose weight is in attention and feed-forward layers."""

CARRYING = ("hybrid-lm",)
"""Models with a context that goes along with the text, so that training carries it from one piece to the next."""

RATES = {"adamw": 3e-3, "sgd": 10.0, "muon": 0.02}
TUNING_RATES = {"adamw": 1e-4, "sgd": 0.1, "muon": 0.001}
MASKED_RATES = {"adamw": 1e-3, "sgd": 1.0, "muon": 0.006}
"""Learning rates: of training, of changing a trained model, and of a bert, whose norms after the sums bear less."""

REWARDED = ("policy-gradient", "minimum-risk")
"""Objectives that change a trained model, and read several translations of each source."""

MINUTES = 5.0
"""The budget when none is given."""


def choose_tokenizer(config: TokenizerConfig, sample: str, size: int) -> TokenizerConfig:
    """A tokeniser for a text of `size` bytes that begins like `sample`."""
    prepared = "<unk>" in sample  # somebody made words of it and replaced the rare ones
    if config.kind is not None:
        kind = config.kind
    elif prepared:
        kind = "word"
    else:
        kind = "char" if _share_of_chinese(sample) > 0.3 or size < 300_000 else "bpe"
    # Words seen once stand in for those never seen: a model that never met <unk> would find it impossible.
    once = kind in ("word", "jieba") and not prepared and config.vocab_size is None
    return config.model_copy(update={"kind": kind, "min_count": config.min_count or (2 if once else 1)})


def _share_of_chinese(sample: str) -> float:
    return sum("\u3400" <= letter <= "\u9fff" for letter in sample) / max(1, len(sample))


class Size(NamedTuple):
    """What is known of a corpus when choices are made."""

    tokens: int  # to be predicted in an epoch
    vocabulary: int
    reads: str = "text"  # see corpora.reads


def resolve(config: RunConfig, size: Size, options: set[str]) -> RunConfig:
    """The configuration with every open choice made. `options` are the names of the model's options."""
    given = config.model_dump(exclude_none=True)
    given["training"] = config.training.model_dump(exclude_none=True, exclude_unset=True)
    budget = _budget(config.training, epochs=20.0 if size.reads == "labels" else 60.0)
    shape = _shape(config, size, {**given["training"], **budget})
    model = {name: value for name, value in shape.items() if name in options} | config.model.options
    if size.reads == "pairs":
        chosen = _pair_training(config, size)
    elif size.reads == "labels":
        chosen = _label_training(config)
    else:
        chosen = _training(config, size, "context" in options, model)
    return parse(RunConfig, merge({"model": model, "training": {**chosen, **budget}}, given))


def _budget(training: TrainingConfig, epochs: float) -> dict[str, Any]:
    """No budget given: some minutes, but not so many passes over a small text that it is learned by heart."""
    given = training.minutes or training.steps or training.epochs
    return {} if given else {"minutes": MINUTES, "epochs": epochs}


def _shape(config: RunConfig, size: Size, training: dict[str, Any]) -> dict[str, Any]:
    """Width by the amount of text and of time, dropout by how often the text will be seen."""
    if config.init:
        return {}  # the shape is that of the run it starts from
    tokens = size.tokens
    by_text = 128 if tokens < 300_000 else 256 if tokens < 20_000_000 else 512
    by_time = 128 if training.get("minutes", 10) < 3 else 256 if training.get("minutes", 10) < 45 else 512
    passes = _passes(tokens, training)
    dropout = 0.0 if passes < 3 else 0.1 if passes < 10 else 0.3
    shape = {"embedding": min(by_text, by_time), "hidden": min(by_text, by_time), "dropout": dropout}
    if config.model.name in ATTENDING:
        shape |= {"dropout": min(dropout, 0.1), "context": _span(size)}
    if size.reads == "masks":
        shape |= {"width": min(by_text, by_time), "positions": _span(size)}
    return shape


def _span(size: Size) -> int:
    """How many tokens a model that reads them in parallel is given at once: letters say less than words."""
    return 128 if size.vocabulary < 512 else 64


def _places(model: dict[str, Any]) -> int:
    """Of the positions of a bert, those that a text can take."""
    behind_padding = model.get("pad", 0) + 1 if model.get("kind") == "roberta" else 0
    return max(1, int(model["positions"]) - behind_padding - (model.get("first") is not None))


def _passes(tokens: int, training: dict[str, Any]) -> float:
    """About how often a budget lets the text be seen, at some thousand tokens a second and a thousand a step."""
    by_budget = {"epochs": 1.0, "minutes": 60 * 6000 / tokens, "steps": 1000 / tokens}
    return min(float(training[name]) * passes for name, passes in by_budget.items() if name in training)


def _training(config: RunConfig, size: Size, windowed: bool, model: dict[str, Any]) -> dict[str, Any]:
    t, tokens = config.training, size.tokens
    attends, carries = config.model.name in ATTENDING, config.model.name in CARRYING
    masks = size.reads == "masks"
    batching = t.batching or ("blocks" if masks or (windowed and not carries) else "stream")
    at_once = batching == "blocks" or attends or carries  # reads all positions of a row in parallel
    span = _places(model) if "positions" in model and masks else model.get("context", _span(size) if attends else 64)
    length = t.length or (min(span, 128) if at_once else 35 if tokens > 50_000 else 20)
    block = 1024 if tokens < 1_000_000 else 2048
    rows = t.batch_size or max(1, min(block // length if at_once else 32, tokens // (8 * length)))
    tuned = masks and config.init is not None
    optimizer = t.optimizer or ("adamw" if tuned else _optimizer(config.model.name))
    lr = TUNING_RATES[optimizer] if tuned else MASKED_RATES[optimizer] if masks else RATES[optimizer]
    return {"batching": batching, "length": length, "batch_size": rows, "optimizer": optimizer, "lr": lr}


def _pair_training(config: RunConfig, size: Size) -> dict[str, Any]:
    rewarded = config.objective.name in REWARDED
    optimizer = config.training.optimizer or ("adamw" if rewarded else _optimizer(config.model.name))
    # Some hundred batches an epoch, so that short trainings take enough steps.
    most = 1024 if rewarded or size.tokens < 300_000 else 2048
    return {"max_tokens": most, "optimizer": optimizer, "lr": (TUNING_RATES if rewarded else RATES)[optimizer]}


def _label_training(config: RunConfig) -> dict[str, Any]:
    """Some passes over the examples, a validation after each, until three have brought nothing."""
    lr = 1e-3 if config.model.options.get("pretrained") else RATES["adamw"]
    return {"batch_size": 32, "optimizer": "adamw", "lr": lr, "validations": 20, "patience": 3}


def _optimizer(model: str) -> str:
    """Muon took fewer tokens to the same loss with attention; an LSTM, tried briefly, gained nothing from it."""
    return "muon" if model in (*ATTENDING, *ATTENDING_TRANSLATORS) and hasattr(torch.optim, "Muon") else "adamw"
