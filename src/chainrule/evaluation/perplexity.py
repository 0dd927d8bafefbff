"""Cross-entropy, perplexity and bits per byte: the formulas, and the sum of log p over a stream of tokens.

    cross-entropy   H = -log p(tokens) / number of tokens, in nats
    perplexity      exp(H)
    bits per byte   (-log2 p(tokens) + bits for what the tokens do not encode) / bytes of the text

A stream is scored in one pass: each token exactly once given all tokens before it in its track, in memory that does not
grow with the text. Sums are in double precision. Functions return sums and counts, never means.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from typing import NamedTuple

import numpy as np

from chainrule.base.arrays import Array
from chainrule.base.devices import threads
from chainrule.base.forking import is_worth_sharing, side_by_side, workers_for
from chainrule.base.modes import evaluating
from chainrule.base.over_arrays import native_arrays, over_arrays
from chainrule.base.processes import Processes
from chainrule.base.progress import Progress
from chainrule.evaluation.tracks import choose_tracks, cut_tracks
from chainrule.types import State, StreamScorer

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
    chunks, done = list(layout.chunks(chunk or model.chunk or CHUNK)), 0
    scored = _score_tracks(model, lambda begin, end: layout.read(tokens, begin, end, eos), chunks, layout.count)
    for (begin, end), log_probs_BT in zip(chunks, scored, strict=True):
        # Only the last column can lack rows, and no token follows the padding there.
        whole = end - begin - (layout.rows_at(end - 1) < layout.count)
        tokens_BT = layout.read(tokens, begin, end, eos)
        piece = [unpadded(part, whole, layout.rows_at(end - 1)) for part in (tokens_BT, log_probs_BT)]
        yield ScoredTokens(*piece)
        done += len(piece[0])
        if progress:
            progress(done, len(tokens))


def _score_tracks(
    model: StreamScorer, read: Callable[[int, int], Array], chunks: Sequence[tuple[int, int]], rows: int
) -> Iterator[Array]:
    """log p of all tracks, a chunk at a time -> BT; several processes share the tracks if there is much to score.

    `read` gives the tokens of all tracks between two columns.
    """
    arrays = over_arrays(model)
    state, seconds = arrays.start(rows), list[float]()

    def score(share: Array, state: State, chunks: Sequence[tuple[int, int]]) -> Iterator[Array]:
        for begin, end in chunks:
            log_probs_BT, state = arrays.score(read(begin, end)[share], state)
            yield log_probs_BT

    for number, (begin, end) in enumerate(chunks):
        if rows > 1 and native_arrays(model) is None and is_worth_sharing(model, seconds, len(chunks) - number):
            shares = np.array_split(np.arange(rows), min(rows, workers_for(model)))
            states = [arrays.select(state, share) for share in shares]
            streams = [partial(score, *part, chunks[number:]) for part in zip(shares, states, strict=True)]
            yield from map(np.concatenate, side_by_side(streams))
            return
        with threads(1) if not seconds else nullcontext():
            began = time.perf_counter()
            log_probs_BT, state = arrays.score(read(begin, end), state)
            seconds.append(time.perf_counter() - began)
        yield log_probs_BT


def stream_order(model: StreamScorer, tokens: int) -> Array:
    """The place in a stream of `tokens` tokens of each token, in the order in which `score_stream` yields them -> N."""
    layout = cut_tracks(tokens, choose_tracks(model, tokens))
    places_N = np.arange(tokens)
    found = []
    for begin, end in layout.chunks(model.chunk or CHUNK):
        rows = layout.rows_at(end - 1)
        found.append(unpadded(layout.read(places_N, begin, end, -1), end - begin - (rows < layout.count), rows))
    return np.concatenate(found) if found else places_N


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


def evaluate_shared(model: StreamScorer, tokens: Array, *, eos: int, tracks: int, processes: Processes) -> Likelihood:
    """`evaluate_tokens` by several processes that hold the same model: each scores some of the tracks."""
    layout = cut_tracks(len(tokens), tracks)
    share, bounds = processes.share(layout.count), [*layout.starts(), len(tokens)]
    own, found = tokens[bounds[share.begin] : bounds[share.end]], Likelihood(0.0, 0)
    if share.size:  # longer tracks come first, so the tokens of a share are cut into the same tracks
        found = evaluate_tokens(model, own, eos=eos, tracks=share.size)
    nats, count = processes.sum([found.nats, float(found.tokens)])
    return Likelihood(nats, int(count))


def precise_sum(values_N: Array) -> float:
    """The sum in double precision."""
    return float(values_N.sum(dtype=np.float64))
