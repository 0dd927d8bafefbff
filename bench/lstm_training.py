"""Training speed of the recurrent language models against torch.nn.LSTM.

2 layers of 200, batch 20, unroll 35, 10,000 words, no dropout, full softmax with an untied matrix, SGD with gradients
clipped at 5, state carried from batch to batch. The peer is nn.Embedding, nn.LSTM, nn.Linear and F.cross_entropy. `sr`
has one LSTM before and one after its first prediction over the vocabulary. The peer uses `--threads` threads; the
project chooses among one thread, worker processes and threads by measuring, as a training does by default.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from harness import (
    Figure,
    FixedBatches,
    Project,
    alternate,
    arguments,
    begin,
    parameter_count,
    random_batches,
    report,
    speed,
    speed_up,
    update,
)
from torch import Tensor, nn
from torch.nn import functional as F

from chainrule.types import Batch, Vocabulary

VOCABULARY, LAYERS, WIDTH, ROWS, LENGTH = 10_000, 2, 200, 20, 35
LR, CLIP = 1.0, 5.0
TARGETS = {"lstm": 1.0, "lstm-peephole": 0.6, "lstm-coupled": 0.6, "gru": None, "sr": 0.6}


class PlainLstm(nn.Module):
    """A language model of torch's own modules."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.lstm = nn.LSTM(WIDTH, WIDTH, LAYERS, batch_first=True)
        self.output = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens_BT: Tensor, state: tuple[Tensor, Tensor] | None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """tokens_BT -> logits BTV and the next state."""
        hidden_BTD, state = self.lstm(self.embedding(tokens_BT), state)
        return self.output(hidden_BTD), state


def peer_steps(batches: Sequence[Batch]) -> tuple[PlainLstm, Callable[[int], None]]:
    """Return the peer, and a function that takes a number of training steps with it."""
    torch.manual_seed(1)
    model = PlainLstm()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    endless = itertools.cycle(batches)
    state: tuple[Tensor, Tensor] | None = None

    def steps(count: int) -> None:
        nonlocal state
        for batch in itertools.islice(endless, count):
            logits_BTV, (hidden, memory) = model(batch.inputs_BT, state)
            state = hidden.detach(), memory.detach()
            update(F.cross_entropy(logits_BTV.flatten(0, 1), batch.targets_BT.flatten()), model, optimizer, CLIP)

    return model, steps


def project(name: str, batches: Sequence[Batch], vocabulary: Vocabulary) -> Project:
    depth = {} if name == "sr" else {"layers": LAYERS}
    values = {
        "model": {"name": name, "embedding": WIDTH, "hidden": WIDTH, "tied": False, **depth},
        "training": {"optimizer": "sgd", "lr": LR, "clip": CLIP, "batching": "stream"},
    }
    return Project(values, vocabulary, FixedBatches(batches))


def main() -> None:
    options = begin(arguments(__doc__))
    count = 2 if options.quick else 10
    tokens = np.random.default_rng(1).integers(VOCABULARY, size=ROWS * (8 * LENGTH + 1))
    batches = random_batches(tokens, 8, ROWS, LENGTH)
    vocabulary = Vocabulary(VOCABULARY, 0, np.bincount(tokens, minlength=VOCABULARY))
    peer, plain = peer_steps(batches)
    projects = {name: project(name, batches, vocabulary) for name in TARGETS}
    for one in projects.values():
        one.choose_threads(options.threads)
    contestants: dict[str, Callable[[], object]] = {"peer": partial(plain, count)}
    contestants |= {name: partial(one.steps, count) for name, one in projects.items()}
    times = alternate(contestants, options.repeats)
    each = count * ROWS * LENGTH
    figures = [
        Figure(
            name,
            speed(times, name, each),
            "tokens/s",
            speed(times, "peer", each),
            speed_up(times, name, "peer"),
            at_least=target,
            note=f"{parameter_count(projects[name].model):,} parameters, {projects[name].way}",
        )
        for name, target in TARGETS.items()
    ]
    report(figures, options, peer=f"torch.nn.LSTM, {parameter_count(peer):,} parameters")


if __name__ == "__main__":
    main()
