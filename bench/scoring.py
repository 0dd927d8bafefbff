"""Scoring speed of a Transformer of 4 layers, 128 wide, against transformers' GPT2LMHeadModel with the same weights.

Both give the log-probability of every token of one text of random tokens: the project as `chainrule eval` does, where
processes share the text; the peer in windows of 512 tokens, 16 at a time, with one thread per core. Windows overlap by
half, so that every token has at least 256 before it, except at the start of a track, as in the project. The peer is
also measured with disjoint windows, which are half the work and give most tokens a shorter context.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import torch
from generation import POSITIONS, VOCABULARY, as_gpt2, project_model
from harness import Figure, alternate, arguments, begin, report, speed, speed_up
from torch.nn import functional as F

from chainrule.base.devices import physical_cores
from chainrule.evaluation import evaluate_tokens
from chainrule.evaluation.tracks import cut_tracks

ROWS = 16
EOS = 0


def peer_nats(peer: Any, tokens_N: np.ndarray[Any, Any], stride: int) -> float:
    """-log p of the tokens in the tracks of the project; windows begin every `stride` tokens, each track with `EOS`."""
    layout = cut_tracks(len(tokens_N))
    text_BT = torch.from_numpy(layout.read(tokens_N, 0, layout.columns, EOS))
    inputs_BT = torch.cat([torch.full((len(text_BT), 1), EOS), text_BT[:, :-1]], 1)
    nats = 0.0
    torch.set_num_threads(physical_cores())
    with torch.inference_mode():
        for begin in range(0, text_BT.shape[1] - POSITIONS + stride, stride):
            new = slice(0 if begin == 0 else POSITIONS - stride, POSITIONS)
            window = slice(begin, begin + POSITIONS)
            for some_BT, targets_BT in zip(
                inputs_BT[:, window].split(ROWS), text_BT[:, window].split(ROWS), strict=True
            ):
                logits_BTV = peer(input_ids=some_BT, use_cache=False).logits[:, new]
                wanted = targets_BT[:, new].flatten()
                nats += float(F.cross_entropy(logits_BTV.flatten(0, 1), wanted, reduction="sum"))
    return nats


def main() -> None:
    options = begin(arguments(__doc__))
    os.environ["OMP_NUM_THREADS"] = str(options.threads)  # what both take as the number of cores
    count = 16384 * (1 if options.quick else 4)  # whole tracks
    tokens_N = np.random.default_rng(0).integers(1, VOCABULARY, count).astype(np.uint8)
    model = project_model(POSITIONS)
    peer = as_gpt2(model)
    times = alternate(
        {
            "project": lambda: evaluate_tokens(model, tokens_N, eos=EOS),
            "transformers": lambda: peer_nats(peer, tokens_N, POSITIONS // 2),
            "disjoint": lambda: peer_nats(peer, tokens_N, POSITIONS),
        },
        options.repeats,
    )
    ours, theirs = (
        evaluate_tokens(model, tokens_N, eos=EOS).nats / count,
        peer_nats(peer, tokens_N, POSITIONS // 2) / count,
    )
    figures = [
        Figure(
            name,
            speed(times, "project", count),
            "tokens/s",
            speed(times, peer_name, count),
            speed_up(times, "project", peer_name),
            at_least=target,
            note=note,
        )
        for name, peer_name, target, note in (
            ("scoring, 4 × 128, same contexts", "transformers", 2, f"{ours:.5f} and {theirs:.5f} nats per token"),
            ("peer with disjoint windows", "disjoint", None, "half the work of the project"),
        )
    ]
    report(figures, options)


if __name__ == "__main__":
    main()
