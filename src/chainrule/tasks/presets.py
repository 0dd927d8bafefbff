"""Default options, chosen from the size of the data, the model and the budget.

Every choice is written to the run's config.toml, where it can be read and changed.
"""

from __future__ import annotations

from typing import Any

from chainrule.base.lazy import torch
from chainrule.config import RunConfig, TrainingConfig, merge, parse
from chainrule.registry import MODELS
from chainrule.tasks.task import CorpusSize, Task, span_of
from chainrule.types import Preferences

RATES = {"adamw": 3e-3, "sgd": 10.0, "muon": 0.02}
TUNING_RATES = {"adamw": 1e-4, "sgd": 0.1, "muon": 0.001}
"""Learning rates for training from scratch, and for a trained model."""

MINUTES = 5.0
"""The budget when none is given."""


def resolve(config: RunConfig, task: Task, size: CorpusSize) -> RunConfig:
    """The configuration with every open choice made."""
    given = config.model_dump(exclude_none=True)
    given["training"] = config.training.model_dump(exclude_none=True, exclude_unset=True)
    budget = _budget(config.training, task.max_epochs)
    sizes = _sizes(config, task, size, {**given["training"], **budget})
    options = MODELS.get(config.model.name).make.Config.model_fields
    model = {name: value for name, value in sizes.items() if name in options} | config.model.options
    chosen = task.training_defaults(config, size, model)
    return parse(RunConfig, merge({"model": model, "training": {**chosen, **budget}}, given))


def _budget(training: TrainingConfig, epochs: float) -> dict[str, Any]:
    """Without a budget: some minutes, and few enough passes that a small text is not memorised."""
    given = training.minutes or training.steps or training.epochs
    return {} if given else {"minutes": MINUTES, "epochs": epochs}


def _sizes(config: RunConfig, task: Task, size: CorpusSize, training: dict[str, Any]) -> dict[str, Any]:
    """Width by the amount of text and time, dropout by the number of passes over the text."""
    if config.init:
        return {}  # the sizes are those of the run it starts from
    tokens, minutes = size.tokens, training.get("minutes", 10)
    by_text = 128 if tokens < 300_000 else 256 if tokens < 20_000_000 else 512
    by_time = 128 if minutes < 3 else 256 if minutes < 45 else 512
    passes = _passes(tokens, training)
    dropout = 0.0 if passes < 3 else 0.1 if passes < 10 else 0.3
    return task.model_defaults(config, size, min(by_text, by_time), dropout)


def _passes(tokens: int, training: dict[str, Any]) -> float:
    """Estimated passes over the text in a budget, at 6,000 tokens per second and 1,000 per step."""
    by_budget = {"epochs": 1.0, "minutes": 60 * 6000 / tokens, "steps": 1000 / tokens}
    return min(float(training[name]) * passes for name, passes in by_budget.items() if name in training)


def text_rows(
    config: RunConfig, size: CorpusSize, model: dict[str, Any], *, batching: str, span: int | None = None
) -> dict[str, Any]:
    """Default rows of a text: how they are cut, their length and their number; `span`: tokens read at once."""
    t, tokens = config.training, size.tokens
    prefers: Preferences = MODELS.get(config.model.name).make.prefers
    batching = t.batching or batching
    parallel = batching == "blocks" or prefers.parallel
    if span is None:
        span = model.get("context", span_of(size) if prefers.context_by_vocabulary else 64)
    length = t.length or (min(span, 128) if parallel else 35 if tokens > 50_000 else 20)
    block = 1024 if tokens < 1_000_000 else 2048
    rows = t.batch_size or max(1, min(block // length if parallel else 32, tokens // (8 * length)))
    return {"batching": batching, "length": length, "batch_size": rows}


def preferred_optimizer(config: RunConfig) -> str:
    """The configured optimiser, else the one that the model prefers, if this version of torch has it."""
    preferred: str = MODELS.get(config.model.name).make.prefers.optimizer
    available = preferred != "muon" or hasattr(torch.optim, "Muon")
    return config.training.optimizer or (preferred if available else "adamw")
