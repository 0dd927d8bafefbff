"""Cross-entropy, perplexity and bits per byte: the formulas, and the sum of log p over a stream of tokens.

    cross-entropy   H = -log p(tokens) / number of tokens, in nats
    perplexity      exp(H)
    bits per byte   (-log2 p(tokens) + bits for what the tokens do not encode) / bytes of the text

A stream is scored in one pass: each token exactly once given all tokens before it in its track, in memory that does not
grow with the text. Sums are in double precision. Functions return sums and counts, never means.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from chainrule.base.arrays import Array
from chainrule.base.modes import evaluating
from chainrule.base.over_arrays import over_arrays
from chainrule.base.progress import Progress
from chainrule.evaluation.tracks import choose_tracks, cut_tracks
from chainrule.types import StreamScorer

CHUNK = 256
"""Columns scored at once, unless the model states its own number."""


def perplexity(cross_entropy: float) -> float:
    """Return exp of a cross-entropy in nats per token: infinite if a token is (nearly) impossible."""
    try:
        return math.exp(cross_entropy)
    except OverflowError:
        return math.inf


def bits_per_byte(nats: float, residue_bits: float, size: int) -> float:
    """Return the bits per byte of a code for a text of `size` bytes.

    `nats` is -log p of its tokens, `residue_bits` the cost of what the tokens do not encode.
    """
    return (nats / math.log(2) + residue_bits) / size


class Likelihood(NamedTuple):
    """-log p of some tokens in nats, and their number."""

    nats: float
    tokens: int

    @property
    def cross_entropy(self) -> float:
        """Nats per token; NaN without tokens."""
        return self.nats / self.tokens if self.tokens else math.nan


class ScoredTokens(NamedTuple):
    """A piece of a stream: tokens, the log p of each in nats, and its rank where it was asked for."""

    tokens_N: Array
    log_probs_N: Array
    ranks_N: Array | None = None  # 1: no other token is more probable


def score_stream(
    model: StreamScorer,
    tokens: Array,
    *,
    eos: int,
    tracks: int | None = None,
    chunk: int | None = None,
    progress: Progress | None = None,
) -> Iterator[ScoredTokens]:
    """Yield every token of the stream once with its log-probability, one chunk of all tracks at a time."""
    layout = cut_tracks(len(tokens), choose_tracks(model, len(tokens)) if tracks is None else tracks)
    arrays = over_arrays(model)
    state, done = arrays.start(layout.count), 0
    for begin, end in layout.chunks(chunk or model.chunk or CHUNK):
        tokens_BT = layout.read(tokens, begin, end, eos)
        log_probs_BT, state = arrays.score(tokens_BT, state)
        # Only the last column can lack rows, and no token follows the padding there.
        whole = end - begin - (layout.rows_at(end - 1) < layout.count)
        piece = [unpadded(part, whole, layout.rows_at(end - 1)) for part in (tokens_BT, log_probs_BT)]
        yield ScoredTokens(*piece)
        done += len(piece[0])
        if progress:
            progress(done, len(tokens))


def unpadded(part_BT: Array, whole: int, last: int) -> Array:
    """The first `whole` columns, and the first `last` rows of the next column if there is one -> N."""
    return np.concatenate([part_BT[:, :whole].reshape(-1), part_BT[:last, whole:].reshape(-1)])


def evaluate_tokens(
    model: StreamScorer,
    tokens: Array,
    *,
    eos: int,
    tracks: int | None = None,
    chunk: int | None = None,
    progress: Progress | None = None,
) -> Likelihood:
    """Return -log p of a stream of tokens (any integer array, may be memory-mapped) in nats, and their number."""
    nats = 0.0
    with evaluating(model):
        for piece in score_stream(model, tokens, eos=eos, tracks=tracks, chunk=chunk, progress=progress):
            nats -= precise_sum(piece.log_probs_N)
    return Likelihood(nats, len(tokens))


def precise_sum(values_N: Array) -> float:
    """The sum in double precision."""
    return float(values_N.sum(dtype=np.float64))
