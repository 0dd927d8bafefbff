"""Steps of `at`, `seq2seq-at` and `fat` in the decoding engine against their own steps in torch, on one thread.

`at`: 4 × 128, 66 characters, one text. `seq2seq-at`: 256 wide, 3 + 3 layers, 4,000 words. `fat`: 192 wide, 6 heads,
4 + 1 layers, feed-forward width 512. Each of the two translates a source of 17 words alone, including its encoding.
Greedy search and 5 beams, float32 and 8-bit weights; random weights. The peer is the same model without the engine,
which must choose the same tokens as float32.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from harness import Figure, Times, alternate, arguments, begin, report, speed, speed_up

from chainrule.base.devices import threads
from chainrule.checkpoint.build import build_model, round_weights
from chainrule.config import RunConfig, parse
from chainrule.decoding import Greedy, beam_search, generate
from chainrule.layers.compiled import PackedModel
from chainrule.models.translator import ConditionedModel
from chainrule.types import Source, Vocabulary

BOS, BEAMS, SOURCE, WORDS = 0, 5, 17, 4000
SHAPES: dict[str, tuple[int, dict[str, Any]]] = {
    "at": (66, {"embedding": 128, "layers": 4, "heads": 4}),
    "seq2seq-at": (WORDS, {"embedding": 256}),
    "fat": (
        WORDS,
        {"embedding": 192, "heads": 6, "feedforward": 512, "encoder_layers": 4, "decoder_layers": 1},
    ),
}


class NoEngine(PackedModel):
    """The compiled form of a model that is to be computed by torch: none."""

    def engine(self, *_: Any) -> Any:
        return None


def build(name: str) -> Any:
    """A model with random weights, large enough that it does not repeat one token."""
    vocabulary, shape = SHAPES[name]
    torch.manual_seed(3)
    counts_V = np.ones(vocabulary, np.int64)
    model: Any = build_model(
        parse(RunConfig, {"model": {"name": name, **shape}}), Vocabulary(vocabulary, BOS, counts_V)
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.5 * parameter.shape[-1] ** -0.5 * torch.randn_like(parameter)
    return model.eval()


def in_torch(model: Any) -> Any:
    """A copy that torch computes."""
    other = copy.deepcopy(model)
    vars(other).update(_packed=NoEngine(), _packed_encoder=NoEngine())
    return other


def in_8_bits(model: Any) -> Any:
    """A copy that predicts with 8-bit weights."""
    rounded = copy.deepcopy(model)
    round_weights(rounded)
    return rounded


def write_greedily(model: Any, source: Source | None, length: int) -> list[int]:
    conditioned = model if source is None else ConditionedModel(model, source)
    with threads(1):
        (written,) = generate(conditioned, eos=None, bos=BOS, max_new_tokens=length, choose=Greedy())
    tokens: list[int] = written.tolist()
    return tokens


def write_by_beams(model: Any, source: Source | None, length: int) -> list[int]:
    first_11 = torch.full((1, 1), BOS)
    with threads(1), torch.inference_mode():
        state = model.start(1 if source is None else source)
        ((best,),) = beam_search(model, state, first_11, eos=None, beams=BEAMS, max_new_tokens=length)
    return best.tokens


def figures(name: str, length: int, repeats: int) -> list[Figure]:
    """Both kinds of search with one model."""
    model, found = build(name), []
    rounded, peer = in_8_bits(model), in_torch(model)
    tokens_1S = torch.randint(1, WORDS, (1, SOURCE), generator=torch.Generator().manual_seed(0))
    source = None if name == "at" else Source(tokens_1S, torch.ones_like(tokens_1S, dtype=torch.bool))
    for label, write in (("greedy", write_greedily), (f"{BEAMS} beams", write_by_beams)):
        if write(model, source, length) != write(peer, source, length):
            raise SystemExit(f"{name}, {label}: the tokens differ from those of torch")
        contestants: dict[str, Callable[[], object]] = {
            kind: partial(write, one, source, length)
            for kind, one in (("float32", model), ("int8", rounded), ("torch", peer))
        }
        times = alternate(contestants, repeats)
        found += [_figure(times, f"{name}, {label}, {kind}", kind, length) for kind in ("float32", "int8")]
    return found


def _figure(times: Times, label: str, kind: str, tokens: int) -> Figure:
    rates = speed(times, kind, tokens), "tokens/s", speed(times, "torch", tokens)
    return Figure(label, *rates, speed_up(times, kind, "torch"), note="same tokens" if kind == "float32" else "")


def main() -> None:
    options = begin(arguments(__doc__, repeats=7))
    torch.set_num_threads(1)
    found = []
    for name in SHAPES:
        length = (200 if name == "at" else 20) // (5 if options.quick else 1)
        found += figures(name, length, options.repeats)
    report(found, options, peer="the same model, computed by torch", threads_each=1)


if __name__ == "__main__":
    main()
