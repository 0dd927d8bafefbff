"""Training speed of a small Transformer against transformers' GPT2LMHeadModel.

4 layers, 4 heads, 128 wide, 12 × 64 characters, 65 different ones, no dropout, AdamW 1e-3 with β2 0.99, gradients
clipped at 1, both on the same batches. The project's model is measured in four forms of the same size: GPT-2's form
(biases, tanh GELU, learned positions), without biases, also with a squared ReLU, and the project's default (also with
rotary positions). The peer uses `--threads` threads; the project chooses among one thread, worker processes and threads
by measuring, as a training does by default.
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
from torch.nn import functional as F
from transformers import GPT2Config, GPT2LMHeadModel

from chainrule.types import Batch, Vocabulary

VOCABULARY, LAYERS, HEADS, WIDTH, ROWS, LENGTH = 65, 4, 4, 128, 12, 64
LR, BETAS, CLIP = 1e-3, (0.9, 0.99), 1.0
FORMS = {
    "GPT-2's form": {"positions": "learned", "bias": True, "activation": "gelu-tanh"},
    "without biases": {"positions": "learned", "bias": False, "activation": "gelu"},
    "without biases, squared ReLU": {"positions": "learned", "bias": False},
    "default form": {},
}


def peer_model(length: int = LENGTH, vocabulary: int = VOCABULARY) -> GPT2LMHeadModel:
    """Build GPT-2 in the benchmark's shape, newly initialised, without dropout."""
    config = GPT2Config(
        vocab_size=vocabulary,
        n_positions=length,
        n_embd=WIDTH,
        n_layer=LAYERS,
        n_head=HEADS,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
    )
    return GPT2LMHeadModel(config)


def peer_steps(batches: Sequence[Batch], *, fused: bool) -> tuple[GPT2LMHeadModel, Callable[[int], None]]:
    """Return the peer, and a function that takes a number of training steps with it."""
    torch.manual_seed(1)
    model = peer_model().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, betas=BETAS, weight_decay=0.0, fused=fused)
    endless = itertools.cycle(batches)

    def steps(count: int) -> None:
        for batch in itertools.islice(endless, count):
            logits_BTV = model(input_ids=batch.inputs_BT, use_cache=False).logits
            update(F.cross_entropy(logits_BTV.flatten(0, 1), batch.targets_BT.flatten()), model, optimizer, CLIP)

    return model, steps


def project(form: dict[str, object], batches: Sequence[Batch]) -> Project:
    shape = {"name": "transformer", "embedding": WIDTH, "layers": LAYERS, "heads": HEADS, "context": LENGTH}
    training = {"lr": LR, "beta1": BETAS[0], "beta2": BETAS[1], "clip": CLIP, "batching": "blocks"}
    vocabulary = Vocabulary(VOCABULARY, 0, np.ones(VOCABULARY, np.int64))
    return Project({"model": {**shape, **form}, "training": training}, vocabulary, FixedBatches(batches))


def main() -> None:
    options = begin(arguments(__doc__))
    count = 5 if options.quick else 30
    tokens = np.random.default_rng(1).integers(VOCABULARY, size=ROWS * (8 * LENGTH + 1))
    batches = random_batches(tokens, 8, ROWS, LENGTH)
    plain_model, plain = peer_steps(batches, fused=False)
    _, fused = peer_steps(batches, fused=True)
    projects = {name: project(form, batches) for name, form in FORMS.items()}
    for one in projects.values():
        one.choose_threads(options.threads)
    contestants: dict[str, Callable[[], object]] = {"plain": partial(plain, count), "fused": partial(fused, count)}
    contestants |= {name: partial(one.steps, count) for name, one in projects.items()}
    times = alternate(contestants, options.repeats)
    each = count * ROWS * LENGTH
    figures = [
        Figure(
            f"{name}, peer's AdamW {peer}",
            speed(times, name, each),
            "tokens/s",
            speed(times, peer, each),
            speed_up(times, name, peer),
            at_least=1.5,
            note=f"{parameter_count(one.model):,} parameters, {one.way}",
        )
        for peer in ("plain", "fused")
        for name, one in projects.items()
    ]
    report(figures, options, peer=f"GPT2LMHeadModel, {parameter_count(plain_model):,} parameters")


if __name__ == "__main__":
    main()
