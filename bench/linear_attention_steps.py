"""Time of a step after short and long prefixes: linear attention, and softmax attention for comparison.

`at` stores a prefix in sums of constant size, so its steps should cost the same after 100 tokens as after 8,000.
`transformer` with a window for all of them reads every key and value again. Both have 4 layers × 128 and random
weights; one text, one thread. Every round continues where the previous one ended.
"""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import numpy as np
import torch
from harness import Figure, Times, alternate, arguments, begin, report, speed, speed_up

from chainrule.base.devices import threads
from chainrule.checkpoint.build import build_model
from chainrule.config import RunConfig, parse
from chainrule.models.language_model import LanguageModel
from chainrule.types import Vocabulary

VOCABULARY = 66
PREFIXES = (100, 1000, 8000)
SHAPE = {"embedding": 128, "layers": 4, "heads": 4}
OPTIONS: dict[str, dict[str, Any]] = {"at": {}, "transformer": {"context": 8192}}
STEPS = {"at": 64, "transformer": 16}
"""Steps per round: few for the transformer, so that its prefixes keep about their length."""


class Walk:
    """A text that continues a prefix of random tokens."""

    def __init__(self, model: LanguageModel, prefix: int) -> None:
        self.model = model
        tokens_1T = torch.randint(0, VOCABULARY, (1, prefix), generator=torch.Generator().manual_seed(0))
        with threads(1), torch.inference_mode():
            _, self.state = model.prefill(model.start(1), tokens_1T)

    def extend(self, steps: int) -> None:
        """Generate `steps` tokens greedily."""
        token_1 = torch.zeros(1, dtype=torch.int64)
        with threads(1), torch.inference_mode():
            for _ in range(steps):
                log_probs_1V, self.state = self.model.step(self.state, token_1)
                token_1 = log_probs_1V.argmax(1)


def make(name: str) -> LanguageModel:
    """Build a model with random weights."""
    torch.manual_seed(1)
    values = {"model": {"name": name, **SHAPE, **OPTIONS[name]}, "output": {"name": "softmax"}}
    vocabulary = Vocabulary(VOCABULARY, 0, np.ones(VOCABULARY, np.int64))
    return cast(LanguageModel, build_model(parse(RunConfig, values), vocabulary).eval())


def figure(times: Times, model: str, prefix: int) -> Figure:
    """Compare a step after a prefix with a step after the shortest prefix."""
    name, shortest = f"{model}, prefix {prefix}", f"{model}, prefix {PREFIXES[0]}"
    value, peer = (1000 / speed(times, which, STEPS[model]) for which in (name, shortest))
    target = 1.2 if model == "at" and prefix == PREFIXES[-1] else None
    return Figure(name, value, "ms/step", peer, speed_up(times, shortest, name), at_most=target)


def main() -> None:
    options = begin(arguments(__doc__))
    models = {name: make(name) for name in OPTIONS}
    walks = {
        f"{name}, prefix {prefix}": partial(Walk(model, prefix).extend, STEPS[name])
        for name, model in models.items()
        for prefix in PREFIXES
    }
    times = alternate(walks, min(options.repeats, 11))  # more rounds would exceed the transformer's window
    figures = [figure(times, name, prefix) for name in models for prefix in PREFIXES]
    at, transformer = (figure(times, name, PREFIXES[-1]).value for name in models)
    report(figures, options, transformer_over_at=round(transformer / at, 2))


if __name__ == "__main__":
    main()
