"""What to choose when nobody chose: from the size of the text, the kind of model and the budget.

Every choice is written to the run's config.toml, where it can be read and changed.
"""

from __future__ import annotations

from typing import Any

import torch

from chainrule.config import RunConfig, TokenizerConfig, TrainingConfig, merge, parse

ATTENDING = ("transformer", "conv-attention")
"""Models whose weight is in attention and feed-forward layers."""

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


def resolve(config: RunConfig, *, tokens: int, vocabulary: int, windowed: bool, options: set[str]) -> RunConfig:
    """The configuration with every open choice made. `options` are the names of the model's options."""
    given = config.model_dump(exclude_none=True)
    budget = _budget(config.training)
    shape = _shape(config.model.name, tokens, vocabulary, {**given["training"], **budget})
    model = {name: value for name, value in shape.items() if name in options} | config.model.options
    training = {**_training(config, tokens, windowed, model), **budget}
    return parse(RunConfig, merge({"model": model, "training": training}, given))


def _budget(training: TrainingConfig) -> dict[str, Any]:
    """No budget given: some minutes, but not so many passes over a small text that it is learned by heart."""
    given = training.minutes or training.steps or training.epochs
    return {} if given else {"minutes": MINUTES, "epochs": 60.0}


def _shape(name: str, tokens: int, vocabulary: int, training: dict[str, Any]) -> dict[str, Any]:
    """Width by the amount of text and of time, dropout by how often the text will be seen."""
    by_text = 128 if tokens < 300_000 else 256 if tokens < 20_000_000 else 512
    by_time = 128 if training.get("minutes", 10) < 3 else 256 if training.get("minutes", 10) < 45 else 512
    passes = _passes(tokens, training)
    dropout = 0.0 if passes < 3 else 0.1 if passes < 10 else 0.3
    return {
        "embedding": min(by_text, by_time),
        "hidden": min(by_text, by_time),
        "dropout": min(dropout, 0.1) if name in ATTENDING else dropout,
        "context": 128 if vocabulary < 512 else 64,
    }


def _passes(tokens: int, training: dict[str, Any]) -> float:
    """About how often a budget lets the text be seen, at some thousand tokens a second and a thousand a step."""
    by_budget = {"epochs": 1.0, "minutes": 60 * 6000 / tokens, "steps": 1000 / tokens}
    return min(float(training[name]) * passes for name, passes in by_budget.items() if name in training)


def _training(config: RunConfig, tokens: int, windowed: bool, model: dict[str, Any]) -> dict[str, Any]:
    t = config.training
    batching = t.batching or ("blocks" if windowed else "stream")
    length = t.length or (model.get("context", 64) if batching == "blocks" else 35 if tokens > 50_000 else 20)
    block = 1024 if tokens < 1_000_000 else 2048
    rows = t.batch_size or max(1, min(block // length if batching == "blocks" else 32, tokens // (8 * length)))
    # Muon took fewer tokens to the same loss with attention; an LSTM, tried briefly, gained nothing from it.
    muon = config.model.name in ATTENDING and hasattr(torch.optim, "Muon")
    optimizer = t.optimizer or ("muon" if muon else "adamw")
    rate = {"adamw": 3e-3, "sgd": 10.0, "muon": 0.02}[optimizer]
    return {"batching": batching, "length": length, "batch_size": rows, "optimizer": optimizer, "lr": rate}
