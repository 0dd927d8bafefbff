"""Small models of every kind, and small texts with something to learn, for tests of everything that needs a real model.

Legend: V vocabulary.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

from chainrule.config import RunConfig
from chainrule.counting.smoothing import SMOOTHINGS
from chainrule.models.mixture import Mixture, MixtureConfig
from chainrule.models.ngram import Ngram, NgramConfig
from chainrule.registry import MODELS, OUTPUTS
from chainrule.runs import build_model
from chainrule.types import Vocabulary

# Options that bring any registered model down to a size for tests; a model takes those it knows.
SMALL = {
    "embedding": 8,
    "hidden": 8,
    "layers": 1,
    "heads": 2,
    "context": 6,
    "order": 4,
    "convolutions": 2,
    "kernel": 2,
    "feedforward": 16,
}
LANGUAGE_MODELS = [entry.name for entry in MODELS.entries() if entry.about["task"] == "lm"]
TRAINED = [name for name in LANGUAGE_MODELS if "made_by" not in MODELS.get(name).about]
OUTPUT_LAYERS = OUTPUTS.names()
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("average", {"weights": "attention"}),
    ("feedforward", {"layers": 2, "activation": "relu"}),
    ("feedforward", {"order": 2, "skip": False}),
    ("rnn", {"activation": "relu", "layers": 2}),
    ("lstm", {"tied": False, "layers": 2}),
    ("lstm", {"hidden": 12}),  # tied, with a bridge between the widths
    ("gru", {"layers": 2}),
    ("transformer", {"tied": False, "bias": True, "layers": 2}),
    *(
        ("transformer", {"positions": positions, "norm": norm, "context": 7})
        for positions in ("rotary", "sinusoidal", "learned", "none")
        for norm in ("pre", "post")
    ),
]
Case = tuple[str, str, dict[str, Any]]
TRAINED_CASES: list[Case] = [
    *((model, output, {}) for model in TRAINED for output in OUTPUT_LAYERS),
    *((model, "softmax", options) for model, options in VARIANTS),
]
PROPER = [name for name in SMOOTHINGS if name != "stupid-backoff"]  # which gives scores, no probabilities
COUNTED_CASES: list[Case] = [
    # Additive smoothing with a longer context gives the same row after every context it has not seen.
    *(("ngram", "softmax", {"smoothing": name, "order": 2 if name == "additive" else 3}) for name in PROPER),
    *(("ngram", "softmax", {"order": order, "across_lines": True}) for order in (2, 5)),
    ("ngram", "softmax", {"order": 4, "prune": [0, 0, 1]}),
    ("ngram", "softmax", {"order": 4, "quantize": True}),
]
MIXED_CASES: list[Case] = [
    ("mixture", "softmax", {}),
    ("mixture", "softmax", {"caches": [{"kind": "unigram"}, {"kind": "continuous", "part": 1}], "buckets": True}),
]
CASES = [*TRAINED_CASES, *COUNTED_CASES, *MIXED_CASES]


def case_id(case: Case) -> str:
    model, output, options = case
    return "-".join([model, output, *(f"{key}={value}" for key, value in options.items())])


def small_options(model: str, **options: Any) -> dict[str, Any]:
    """The options of a small model of a name, with some of them set otherwise."""
    known = MODELS.get(model).make.Config.model_fields
    return {**{name: value for name, value in SMALL.items() if name in known}, **options}


def small_config(model: str, output: str = "softmax", **options: Any) -> RunConfig:
    """A configuration of such a model."""
    return RunConfig.model_validate(
        {"model": {"name": model, **small_options(model, **options)}, "output": {"name": output}}
    )


def some_vocabulary(size: int = 13, eos: int = 0) -> Vocabulary:
    """A vocabulary whose words are of very unequal frequency."""
    return Vocabulary(size, eos, (1000 / np.arange(1, size + 1) ** 2).astype(np.int64))


def small_model(
    model: str, output: str = "softmax", vocabulary: Vocabulary | None = None, seed: int = 0, **options: Any
) -> Any:
    """A small model in which every weight matters: fresh weights are often near zero, and would hide mistakes."""
    if model == "ngram":
        return counted_model(vocabulary or some_vocabulary(), seed, **options)
    if model == "mixture":
        return mixed_model(vocabulary or some_vocabulary(), seed, **options)
    torch.manual_seed(seed)
    made = build_model(small_config(model, output, **options), vocabulary or some_vocabulary())
    stir(made)
    return made.eval()


def counted_model(vocabulary: Vocabulary, seed: int = 0, **options: Any) -> Any:
    """An n-gram model of random tokens in which every token is likely to follow a few others."""
    rng = np.random.default_rng(seed)
    tokens, valid = (rng.integers(0, vocabulary.size, (400, 2)).min(1) for _ in range(2))
    return Ngram.estimate(NgramConfig(**options), vocabulary, tokens, valid)


def mixed_model(vocabulary: Vocabulary, seed: int = 0, **options: Any) -> Any:
    """An n-gram model, a network and caches, of unequal weights."""
    parts = [counted_model(vocabulary, seed, order=3), small_model("lstm", vocabulary=vocabulary, seed=seed)]
    config = MixtureConfig(parts=2, **options)
    weights_ZE = torch.rand(Mixture(config, vocabulary, parts).weights.shape) + 0.1
    return Mixture(config, vocabulary, parts, weights_ZE / weights_ZE.sum(1, keepdim=True)).eval()


@torch.no_grad()
def stir(model: torch.nn.Module) -> None:
    """Move every weight by a good amount."""
    for parameter in model.parameters():
        parameter.add_(torch.randn_like(parameter) * 0.4)


def pairs_text(lines: int = 250, seed: int = 0) -> str:
    """Lines that each repeat one pair of letters: what comes next depends on which letters came, and on their order."""
    rng = random.Random(seed)
    return "".join(rng.choice(("ab", "cd", "ef", "gh", "ij")) * rng.randint(2, 6) + "\n" for _ in range(lines))


def rows_by_steps(model: Any, tokens_BT: torch.Tensor, eos: int = 0) -> torch.Tensor:
    """log p(. | eos, x_<t) for t = 0 to T, one step at a time -> (B, T + 1, V)."""
    state, rows = model.start(len(tokens_BT)), []
    for token_B in [tokens_BT.new_full((len(tokens_BT),), eos), *tokens_BT.unbind(1)]:
        row_BV, state = model.step(state, token_B)
        rows.append(row_BV)
    return torch.stack(rows, 1)


def some_tokens(batch: int, length: int, seed: int = 0, size: int = 13) -> torch.Tensor:
    """Random tokens of `some_vocabulary` -> BT."""
    return torch.randint(0, size, (batch, length), generator=torch.Generator().manual_seed(seed))
