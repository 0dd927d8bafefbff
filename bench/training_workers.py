"""Training speed of the default Transformer against a plain torch.nn GPT and transformers' GPT2LMHeadModel.

Two shapes: 4 layers, 4 heads, 128 wide, 12 × 64 characters; and 6 layers, 6 heads, 384 wide, 16 × 256. No dropout,
fused AdamW, gradients clipped at 1, all on the same batches. The plain GPT has no biases, learned positions, GELU and
scaled_dot_product_attention. The peers use `--threads` threads. The project chooses among one thread, worker processes
and threads by measuring, as a training does by default. With `--busy`, the project is also measured beside one other
busy process, against itself on the idle machine.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from harness import (
    Figure,
    FixedBatches,
    Project,
    alternate,
    arguments,
    begin,
    random_batches,
    report,
    speed,
    speed_up,
    update,
)
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import GPT2Config, GPT2LMHeadModel

from chainrule.types import Batch, Vocabulary

VOCABULARY, LR, BETAS, CLIP = 65, 1e-3, (0.9, 0.99), 1.0


class Shape(NamedTuple):
    """Sizes of a model and its batches, and the steps of a round."""

    layers: int
    heads: int
    width: int
    rows: int
    length: int
    steps: int


SHAPES = {"4 × 128": Shape(4, 4, 128, 12, 64, 60), "6 × 384": Shape(6, 6, 384, 16, 256, 4)}


class PlainBlock(nn.Module):
    """Pre-norm attention and feed-forward layer of torch's own modules, without biases."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width, bias=False), nn.LayerNorm(width, bias=False)
        self.project, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.widen, self.narrow = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, stream_BTD: Tensor) -> Tensor:
        B, T, D = stream_BTD.shape
        parts = self.project(self.norm_1(stream_BTD)).split(D, 2)
        query, key, value = (part.view(B, T, self.heads, -1).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        stream_BTD = stream_BTD + self.out(mixed.transpose(1, 2).reshape(B, T, D))
        return stream_BTD + self.narrow(F.gelu(self.widen(self.norm_2(stream_BTD))))


class PlainGpt(nn.Module):
    """A GPT with learned positions and tied output."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(VOCABULARY, shape.width), nn.Embedding(shape.length, shape.width)
        self.blocks = nn.ModuleList(PlainBlock(shape.width, shape.heads) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width, bias=False)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        stream_BTD = self.words(tokens_BT) + self.places(torch.arange(tokens_BT.shape[1]))
        for block in self.blocks:
            stream_BTD = block(stream_BTD)
        return F.linear(self.norm(stream_BTD), self.words.weight)


class Gpt2(nn.Module):
    """GPT2LMHeadModel as a function from tokens to logits."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        config = GPT2Config(
            vocab_size=VOCABULARY, n_positions=shape.length, n_embd=shape.width, n_layer=shape.layers,
            n_head=shape.heads, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
        )  # fmt: skip
        self.model = GPT2LMHeadModel(config)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        logits_BTV: Tensor = self.model(input_ids=tokens_BT, use_cache=False).logits
        return logits_BTV


def peer_steps(model: nn.Module, batches: Sequence[Batch], threads: int) -> Callable[[int], None]:
    """A function that takes a number of training steps with a peer."""
    optimizer = torch.optim.AdamW(model.train().parameters(), lr=LR, betas=BETAS, weight_decay=0.0, fused=True)
    endless = itertools.cycle(batches)

    def steps(count: int) -> None:
        torch.set_num_threads(threads)
        for batch in itertools.islice(endless, count):
            logits_BTV = model(batch.inputs_BT)
            update(F.cross_entropy(logits_BTV.flatten(0, 1), batch.targets_BT.flatten()), model, optimizer, CLIP)

    return steps


def project_of(shape: Shape, batches: Sequence[Batch], threads: int) -> Project:
    model = {"embedding": shape.width, "layers": shape.layers, "heads": shape.heads, "context": shape.length}
    training = {"lr": LR, "beta1": BETAS[0], "beta2": BETAS[1], "clip": CLIP, "batching": "blocks"}
    vocabulary = Vocabulary(VOCABULARY, 0, np.ones(VOCABULARY, np.int64))
    made = Project({"model": {"name": "transformer", **model}, "training": training}, vocabulary, FixedBatches(batches))
    made.choose_threads(threads)
    return made


def figures_of(name: str, shape: Shape, options: argparse.Namespace) -> list[Figure]:
    tokens = np.random.default_rng(1).integers(VOCABULARY, size=shape.rows * (8 * shape.length + 1))
    batches = random_batches(tokens, 8, shape.rows, shape.length)
    torch.manual_seed(1)
    peers = {"torch.nn": (PlainGpt(shape), 1.25), "GPT2LMHeadModel": (Gpt2(shape), 1.6)}
    project = project_of(shape, batches, options.threads)
    steps = {"project": project.steps}
    steps |= {peer: peer_steps(model, batches, options.threads) for peer, (model, _) in peers.items()}
    count = 3 if options.quick else shape.steps
    times = alternate({one: lambda take=take: take(count) for one, take in steps.items()}, options.repeats)
    each = count * shape.rows * shape.length
    found = [
        Figure(f"{name} against {peer}", speed(times, "project", each), "tokens/s", speed(times, peer, each),
               speed_up(times, "project", peer), at_least=target, note=str(project.way))
        for peer, (_, target) in peers.items()
    ]  # fmt: skip
    return [*found, busy_figure(name, project, each, count)] if options.busy else found


def busy_figure(name: str, project: Project, tokens: int, count: int) -> Figure:
    """The project's speed beside one busy process, against its speed without; it has time to choose again."""
    idle = tokens / statistics.median(_timed(project, count) for _ in range(5))
    other = multiprocessing.get_context("spawn").Process(target=_spin, args=(os.getpid(),), daemon=True)
    other.start()
    until = time.monotonic() + 30
    while time.monotonic() < until:
        project.steps(count)
    busy = tokens / statistics.median(_timed(project, count) for _ in range(5))
    other.kill()
    return Figure(f"{name} beside a busy process", busy, "tokens/s", idle, busy / idle, at_least=0.45,
                  note=str(project.way))  # fmt: skip


def _timed(project: Project, count: int) -> float:
    began = time.perf_counter()
    project.steps(count)
    return time.perf_counter() - began


def _spin(parent: int) -> None:
    while os.getppid() == parent:
        sum(range(100_000))


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--busy", action="store_true", help="also measure beside one busy process")
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), default=list(SHAPES), help="default: both")
    options = begin(parser)
    report([one for name in options.shapes for one in figures_of(name, SHAPES[name], options)], options)


if __name__ == "__main__":
    main()
