"""Time to a validation loss of 1.886 nats per character on tiny Shakespeare, against GPT2LMHeadModel.

The first 90% of the characters are for training, the last 10% for validation. The peer is GPT-2 of 4 layers, 4 heads,
128 wide: 2,000 iterations of 12 × 64 random characters, AdamW 1e-3 with β2 0.99, 100 iterations of warm-up, then a
cosine to 1e-4, gradients clipped at 1, no dropout. The project trains recipes/shakespeare-quick.toml, with at most as
many parameters, between the two halves of the peer's training, so that other load on the machine affects both.

The project's seconds include validations and checkpoints; the peer's are its iterations alone. Both are validated on
the whole validation text: the peer in blocks of 64; the project as `chainrule eval` does, and also in blocks of 64.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import Figure, arguments, begin, parameter_count, report, update
from torch import Tensor
from torch.nn import functional as F
from transformer_training import BETAS, CLIP, LENGTH, LR, ROWS, peer_model

from chainrule.base.modes import evaluating
from chainrule.evaluation.perplexity import evaluate_tokens
from chainrule.runs.language_model import LanguageModelRun
from chainrule.training.fit import fit
from chainrule.training.request import make_config
from chainrule.types import Batch

GOAL, ITERATIONS, WARMUP, FINAL_LR, TARGET = 1.886, 2000, 100, 1e-4, 0.4
RECIPE = Path(__file__).parent.parent / "recipes" / "shakespeare-quick.toml"


def split(path: Path) -> tuple[str, str]:
    """Return the first 90% of the characters, and the rest."""
    text = path.read_text(encoding="utf-8")
    cut = int(len(text) * 0.9)
    return text[:cut], text[cut:]


def characters(train: str, valid: str) -> tuple[Tensor, Tensor]:
    """Encode both texts as ids of the characters that occur in them."""
    ids = {letter: number for number, letter in enumerate(sorted(set(train + valid)))}
    encoded = [torch.tensor([ids[letter] for letter in text]) for text in (train, valid)]
    return encoded[0], encoded[1]


def block_loss(tokens_N: Tensor, score: Callable[[Tensor, Tensor], Tensor | float]) -> float:
    """Nats per character in independent blocks of 64; `score(inputs_BT, targets_BT)` gives the sum of a batch."""
    whole = (len(tokens_N) - 1) // LENGTH * LENGTH
    inputs_NT, targets_NT = tokens_N[:whole].view(-1, LENGTH), tokens_N[1 : whole + 1].view(-1, LENGTH)
    parts = zip(inputs_NT.split(64), targets_NT.split(64), strict=True)
    return sum(float(score(inputs_BT, targets_BT)) for inputs_BT, targets_BT in parts) / whole


@dataclass
class Peer:
    """GPT-2 with its optimiser, schedule and timer."""

    train_N: Tensor
    iterations: int
    vocabulary: int
    done: int = 0
    seconds: float = 0.0
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(1337))

    def __post_init__(self) -> None:
        torch.manual_seed(1337)
        self.model = peer_model(vocabulary=self.vocabulary).train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=LR, betas=BETAS, weight_decay=0.1)

    def train(self, iterations: int) -> None:
        began = time.perf_counter()
        for _ in range(iterations):
            self.optimizer.param_groups[0]["lr"] = self._rate()
            starts_B = torch.from_numpy(self.rng.integers(len(self.train_N) - LENGTH, size=ROWS))
            rows_BT = self.train_N[starts_B[:, None] + torch.arange(LENGTH + 1)]
            update(self._loss(rows_BT[:, :-1], rows_BT[:, 1:], "mean"), self.model, self.optimizer, CLIP)
            self.done += 1
        self.seconds += time.perf_counter() - began

    def _rate(self) -> float:
        warmup = min(WARMUP, self.iterations // 2)
        if self.done < warmup:
            return LR * (self.done + 1) / (warmup + 1)
        share = (self.done - warmup) / (self.iterations - warmup)
        return FINAL_LR + 0.5 * (1 + math.cos(math.pi * share)) * (LR - FINAL_LR)

    def _loss(self, inputs_BT: Tensor, targets_BT: Tensor, reduction: str) -> Tensor:
        logits_BTV = self.model(input_ids=inputs_BT, use_cache=False).logits
        return F.cross_entropy(logits_BTV.flatten(0, 1), targets_BT.flatten(), reduction=reduction)

    def validate(self, valid_N: Tensor) -> float:
        with evaluating(self.model):
            return block_loss(valid_N, lambda inputs_BT, targets_BT: self._loss(inputs_BT, targets_BT, "sum"))


def train_project(options: argparse.Namespace, train: str, valid: str, place: Path) -> tuple[LanguageModelRun, Path]:
    """Train the recipe on the texts -> the run and the path of the validation text."""
    files = {name: place / f"{name}.txt" for name in ("train", "valid")}
    for name, text in (("train", train), ("valid", valid)):
        files[name].write_text(text, encoding="utf-8")
    named = {"data": {"train": [str(files["train"])], "valid": [str(files["valid"])]}}
    quick = {"steps": 3} if options.quick else {}
    config = make_config(options.recipe, named, {"training": {**quick, "threads": options.threads}})
    return LanguageModelRun(fit(config, place / "run").folder.path), files["valid"]


def project_losses(run: LanguageModelRun, valid: Path) -> tuple[float, float]:
    """Nats per character on the validation text: as `chainrule eval` measures, and in blocks of 64."""
    store = run.open(valid)
    nats, count = evaluate_tokens(run.model, store.tokens, eos=run.tokenizer.eos)
    with evaluating(run.model):
        blocks = block_loss(torch.from_numpy(store.tokens.astype(np.int64)), lambda *pair: _nats(run.model, *pair))
    return nats / count, blocks


def _nats(model: Any, inputs_BT: Tensor, targets_BT: Tensor) -> float:
    hidden_BTD = model(Batch(inputs_BT, targets_BT)).hidden_BTD
    return -float(model.output.log_prob(hidden_BTD.flatten(0, 1), targets_BT.flatten()).sum())


def main() -> None:
    parser = arguments(__doc__, repeats=1)
    parser.add_argument("text", type=Path, help="file with tiny Shakespeare")
    parser.add_argument(
        "--recipe", type=Path, default=RECIPE, help="configuration of the project (default: %(default)s)"
    )
    options = begin(parser)
    train, valid = split(options.text)
    train_N, valid_N = characters(train, valid)
    iterations = 6 if options.quick else ITERATIONS
    peer = Peer(train_N, iterations, len(set(train + valid)))
    peer.train(iterations // 2)
    with tempfile.TemporaryDirectory() as place:
        run, valid_file = train_project(options, train, valid, Path(place))
        torch.set_num_threads(options.threads)
        peer.train(iterations - iterations // 2)
        result, (carried, blocks) = run.result, project_losses(run, valid_file)
        parameters = parameter_count(run.model)
    theirs = peer.validate(valid_N)
    seconds = Figure("training", result["seconds"], "s", peer.seconds, result["seconds"] / peer.seconds, at_most=TARGET)
    figures = [
        seconds,
        Figure("training, steps only", result["train_seconds"], "s", peer.seconds, note=f"{result['steps']:,} steps"),
        Figure("validation", carried, "nats/char", theirs, note=f"goal {GOAL}: {_reached(carried)}"),
        Figure("validation in blocks of 64", blocks, "nats/char", theirs, note=f"goal {GOAL}: {_reached(blocks)}"),
        Figure("parameters", parameters, "", parameter_count(peer.model)),
    ]
    report(figures, options, peer=f"GPT2LMHeadModel, {iterations} iterations")


def _reached(loss: float) -> str:
    return "reached" if loss <= GOAL else "MISSED"


if __name__ == "__main__":
    main()
