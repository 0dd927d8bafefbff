"""How probable a model finds a stream of tokens: the one place that computes it.

One pass, each token scored exactly once given everything before it in its track, in memory that does not grow with the
text. Sums are kept in double precision, and sums and counts are given, never means.

Legend: B tracks, T time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from chainrule.base.devices import device_of
from chainrule.base.modes import evaluating
from chainrule.base.progress import Progress
from chainrule.evaluation.tracks import cut, tracks_of
from chainrule.types import State

CHUNK = 256
"""Columns scored at once, unless a model says how many it likes."""


class StreamScorer(Protocol):
    """Scores text of any length piece by piece."""

    def start(self, batch: int) -> State:
        """The state before the first token."""
        ...

    def score(self, tokens_BT: Tensor, state: State) -> tuple[Tensor, State]:
        """log p of each token given all before it (first of all: `eos`) -> BT in nats, and the state after them."""
        ...


class Likelihood(NamedTuple):
    """-log p of a stream in nats, and the number of tokens it is of."""

    nats: float
    tokens: int


class Scored(NamedTuple):
    """A piece of a stream with its scores, flat: N tokens, each with its log p in nats."""

    tokens_N: Tensor
    log_probs_N: Tensor


def score_stream(
    model: StreamScorer,
    tokens: np.ndarray[Any, Any],
    *,
    eos: int,
    tracks: int | None = None,
    chunk: int | None = None,
    progress: Progress | None = None,
) -> Iterator[Scored]:
    """Yield every token of the stream once with its log-probability, a chunk of all tracks at a time."""
    layout = cut(len(tokens), tracks_of(model, len(tokens)) if tracks is None else tracks)
    device = device_of(model)
    state, done = model.start(layout.count), 0
    columns: int = getattr(model, "chunk", CHUNK) if chunk is None else chunk
    for begin, end in layout.chunks(columns):
        tokens_BT = torch.from_numpy(layout.read(tokens, begin, end, eos)).to(device)
        log_probs_BT, state = model.score(tokens_BT, state)
        # Only the last column can be shorter than the rest, and nothing follows what stands there as padding.
        whole = end - begin - (layout.rows_at(end - 1) < layout.count)
        piece = [_flat(part, whole, layout.rows_at(end - 1)) for part in (tokens_BT, log_probs_BT)]
        yield Scored(*piece)
        done += piece[0].numel()
        if progress:
            progress(done, len(tokens))


def _flat(part_BT: Tensor, whole: int, last: int) -> Tensor:
    """All of the first `whole` columns, and the first `last` rows of the column after them, if there is one -> N."""
    return torch.cat([part_BT[:, :whole].flatten(), part_BT[:last, whole:].flatten()])


def evaluate_tokens(
    model: StreamScorer,
    tokens: np.ndarray[Any, Any],
    *,
    eos: int,
    tracks: int | None = None,
    chunk: int | None = None,
    progress: Progress | None = None,
) -> Likelihood:
    """-log p of a stream of tokens (any integer array, memory-mapped or not) in nats, and their number."""
    nats = 0.0
    with evaluating(model):
        for piece in score_stream(model, tokens, eos=eos, tracks=tracks, chunk=chunk, progress=progress):
            nats -= total(piece.log_probs_N)
    return Likelihood(nats, len(tokens))


def total(values_N: Tensor) -> float:
    """The sum in double precision, which not every device has."""
    return float(values_N.cpu().double().sum())
