"""What to choose when nobody chose: from the size of the text, the kind of model and the budget.

Every choice is written to the run's config.toml, where it can be read and changed.
"""

from __future__ import annotations

from typing import Any

import torch

from chainrule.config import RunConfig, TokenizerConfig, merge, parse

MINUTES = 5.0
"""The budget when none is given."""


def choose_tokenizer(config: TokenizerConfig, sample: str, size: int) -> TokenizerConfig:
    """A tokeniser for a text of `size` bytes that begins like `sample`."""
    if config.kind is not None:
        return config
    if "<unk>" in sample:
        kind = "word"  # somebody prepared this text as words
    elif _share_of_chinese(sample) > 0.3 or size < 300_000:
        kind = "char"
    else:
        kind = "bpe"
    return config.model_copy(update={"kind": kind})


def _share_of_chinese(sample: str) -> float:
    return sum("\u3400" <= letter <= "\u9fff" for letter in sample) / max(1, len(sample))


def resolve(config: RunConfig, *, tokens: int, vocabulary: int, windowed: bool, options: set[str]) -> RunConfig:
    """The configuration with every open choice made. `options` are the names of the model's options."""
    given = config.model_dump(exclude_none=True)
    budget = _budget(config)
    model = {
        name: value for name, value in _shape(config.model.name, tokens, vocabulary, budget).items() if name in options
    }
    model = {**model, **config.model.options}
    training = {**_training(config, tokens, windowed, model), **budget}
    return parse(RunConfig, merge({"model": model, "training": training}, given))


def _budget(config: RunConfig) -> dict[str, Any]:
    """No budget given: some minutes, but not so many passes over a small text that it is learned by heart."""
    t = config.training
    return {} if t.minutes or t.steps or t.epochs else {"minutes": MINUTES, "epochs": 60.0}


def _shape(name: str, tokens: int, vocabulary: int, budget: dict[str, Any]) -> dict[str, Any]:
    """Width and dropout by the amount of text: a small text cannot feed many weights and is soon seen too often."""
    letters = vocabulary < 512
    if tokens < 300_000:
        width, dropout = 128, 0.2
    elif tokens < 20_000_000:
        width, dropout = 256, 0.1 if letters else 0.3
    else:
        width, dropout = 512, 0.0
    attends = name in ("transformer", "conv-attention")
    return {
        "embedding": width,
        "hidden": width,
        "dropout": min(dropout, 0.1) if attends else dropout,
        "context": 128 if letters else 64,
    }


def _training(config: RunConfig, tokens: int, windowed: bool, model: dict[str, Any]) -> dict[str, Any]:
    t = config.training
    batching = t.batching or ("blocks" if windowed else "stream")
    length = t.length or (model.get("context", 64) if batching == "blocks" else 35 if tokens > 50_000 else 20)
    rows = t.batch_size or max(1, min(2048 // length if batching == "blocks" else 32, tokens // (8 * length)))
    # Muon takes fewer steps to the same loss with attention; recurrent matrices gain nothing from it.
    optimizer = t.optimizer or ("muon" if windowed and hasattr(torch.optim, "Muon") else "adamw")
    rate = {"adamw": 2e-3, "sgd": 10.0, "muon": 0.02}[optimizer]
    return {"batching": batching, "length": length, "batch_size": rows, "optimizer": optimizer, "lr": rate}
