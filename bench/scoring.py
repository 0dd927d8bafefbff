"""Scoring speed of a Transformer of 4 layers, 128 wide, against transformers' GPT2LMHeadModel with the same weights.

Both give the log-probability of every token of one text of random tokens: the peer in windows of 512 tokens, 16 at a
time, with one thread per core; the project as `chainrule eval` does, where processes share the text.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from generation import POSITIONS, VOCABULARY, as_gpt2, project_model
from harness import Figure, alternate, arguments, begin, report, speed, speed_up
from torch.nn import functional as F

from chainrule.base.devices import physical_cores
from chainrule.evaluation import evaluate_tokens

ROWS = 16
EOS = 0


def peer_nats(peer: Any, tokens_N: np.ndarray[Any, Any]) -> float:
    """-log p of the tokens; each window starts with `EOS`."""
    windows_BT = torch.from_numpy(tokens_N.astype(np.int64)).view(-1, POSITIONS)
    inputs_BT = torch.cat([torch.full((len(windows_BT), 1), EOS), windows_BT[:, :-1]], 1)
    nats = 0.0
    torch.set_num_threads(physical_cores())
    with torch.inference_mode():
        for some_BT, targets_BT in zip(inputs_BT.split(ROWS), windows_BT.split(ROWS), strict=True):
            logits_BTV = peer(input_ids=some_BT, use_cache=False).logits
            nats += float(F.cross_entropy(logits_BTV.flatten(0, 1), targets_BT.flatten(), reduction="sum"))
    return nats


def main() -> None:
    options = begin(arguments(__doc__))
    count = POSITIONS * ROWS * (2 if options.quick else 24)
    tokens_N = np.random.default_rng(0).integers(1, VOCABULARY, count).astype(np.uint8)
    model = project_model(POSITIONS)
    peer = as_gpt2(model)
    times = alternate(
        {
            "project": lambda: evaluate_tokens(model, tokens_N, eos=EOS),
            "transformers": lambda: peer_nats(peer, tokens_N),
        },
        options.repeats,
    )
    ours, theirs = evaluate_tokens(model, tokens_N, eos=EOS).nats / count, peer_nats(peer, tokens_N) / count
    figure = Figure(
        "scoring, 4 × 128",
        speed(times, "project", count),
        "tokens/s",
        speed(times, "transformers", count),
        speed_up(times, "project", "transformers"),
        at_least=2,
        note=f"{ours:.3f} and {theirs:.3f} nats per token",
    )
    report([figure], options)


if __name__ == "__main__":
    main()
