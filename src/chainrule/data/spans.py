"""Span corruption: plain text as pairs of a text with masked spans and the content of these spans.

    Thank you ⟨for inviting⟩ me to your ⟨party⟩    →    Thank you X me to your Y    and    X for inviting Y party Z

Raffel et al., "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer", 2020. X, Y, Z are
sentinels, tokens that no text contains. The number of masked tokens and of spans depends only on the length of the
text, so all blocks of one length give pairs of one shape, without padding; only the positions of the spans are random.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from chainrule.base.arrays import Array
from chainrule.base.grammar import plural
from chainrule.data.batches import BlockBatches, Tokens
from chainrule.errors import ConfigError, DataError
from chainrule.types import Batch, Source


class SpanCounts(NamedTuple):
    """The number of tokens of a text that are masked, and of spans they form."""

    masked: int
    spans: int

    @classmethod
    def of(cls, length: int, noise: float, mean_span: float) -> SpanCounts:
        """The counts for a text of `length` tokens, at least 2: at least one is masked and one is kept."""
        masked = min(max(round(length * noise), 1), length - 1)
        return cls(masked, min(max(round(masked / mean_span), 1), masked, length - masked))


def corrupt(
    tokens_T: Array, noise: float, mean_span: float, rng: np.random.Generator, first_sentinel: int
) -> tuple[Array, Array]:
    """A text of at least 2 tokens -> (the text with a sentinel for each span, the sentinels with their spans).

    round(T · noise) tokens are masked, in round(masked / mean_span) spans. Sentinels count up from `first_sentinel`;
    one more ends the target. The text begins with kept tokens and ends with a span.
    """
    segment_1T = segments(1, len(tokens_T), SpanCounts.of(len(tokens_T), noise, mean_span), rng)
    source_1S, target_1T = _split(tokens_T[None], segment_1T, first_sentinel)
    return source_1S[0], target_1T[0]


def segments(rows: int, length: int, counts: SpanCounts, rng: np.random.Generator) -> Array:
    """The index of the segment of each token, BT: even segments are kept, odd ones are spans."""
    kept = 2 * _parts(rows, length - counts.masked, counts.spans, rng)
    masked = 2 * _parts(rows, counts.masked, counts.spans, rng) + 1
    return np.sort(np.concatenate([kept, masked], 1), axis=1)


def _parts(rows: int, items: int, parts: int, rng: np.random.Generator) -> Array:
    """Cut `items` items into `parts` parts, all cuts equally likely -> the part of each item, (rows, items)."""
    begins = np.zeros((rows, items), dtype=np.int32)
    begins[:, 1:parts] = 1
    rng.permuted(begins[:, 1:], axis=1, out=begins[:, 1:])
    return begins.cumsum(1, dtype=np.int32)


def _split(tokens_BT: Array, segment_BT: Array, first_sentinel: int) -> tuple[Array, Array]:
    """Source and target of each row: a sentinel for each span, or for each kept part, with one more at the end."""
    begins_BT = np.diff(segment_BT, axis=1, prepend=-1) > 0
    span_BT, sentinel_BT = segment_BT % 2 == 1, segment_BT // 2 + first_sentinel
    source_BS, target_BT = (
        np.where(replaced_BT, sentinel_BT, tokens_BT)[~replaced_BT | begins_BT].reshape(len(tokens_BT), -1)
        for replaced_BT in (span_BT, ~span_BT)
    )
    return source_BS, np.concatenate([target_BT, sentinel_BT[:, -1:] + 1], 1)


class SpanBatches:
    """Blocks of T tokens in random order, each once per epoch, with other spans each time, for encoder-decoders.

    Batch `index` is a function of `index`.
    """

    def __init__(
        self,
        tokens: Tokens,
        batch_size: int,
        length: int,
        *,
        eos: int,
        seed: int,
        noise: float,
        mean_span: float,
        first_sentinel: int,
        sentinels: int,
    ) -> None:
        self.blocks = BlockBatches(tokens, batch_size, length, eos=eos, seed=seed)
        self.per_epoch, self.eos, self.seed, self.first_sentinel = self.blocks.per_epoch, eos, seed, first_sentinel
        if self.blocks.length < 2:
            raise DataError(
                f"a block of {plural(self.blocks.length, 'token')} is too short to mask one and keep one; give more "
                "text, or a training.length of at least 2"
            )
        self.counts = SpanCounts.of(self.blocks.length, noise, mean_span)
        _check_sentinels(self.blocks.length, self.counts, sentinels)

    def batch(self, index: int) -> tuple[Batch, bool]:
        tokens_BT = self.blocks.batch(index)[0].inputs_BT.numpy()
        rng = np.random.default_rng([self.seed, index, 1])  # a separate stream: the seeds of blocks have two numbers
        segment_BT = segments(self.blocks.rows, self.blocks.length, self.counts, rng)
        source_BS, target_BT = (self._tensor(side) for side in _split(tokens_BT, segment_BT, self.first_sentinel))
        ended_BS, ended_BT = (torch.cat([side, self._eos(len(side))], 1) for side in (source_BS, target_BT))
        inputs_BT = torch.cat([self._eos(len(target_BT)), target_BT], 1)
        return Batch(inputs_BT, ended_BT, source=Source(ended_BS, torch.ones_like(ended_BS, dtype=torch.bool))), True

    def _tensor(self, side: Array) -> Tensor:
        return torch.from_numpy(side.astype(np.int64))

    def _eos(self, rows: int) -> Tensor:
        return torch.full((rows, 1), self.eos)


def _check_sentinels(length: int, counts: SpanCounts, sentinels: int) -> None:
    if counts.spans + 1 > sentinels:
        raise ConfigError(
            f"a block of {length} tokens has {counts.spans} masked spans, which need {counts.spans + 1} sentinels, but "
            f"the model has {sentinels}; raise model.sentinels, or choose a shorter training.length, a lower "
            "objective.noise or a longer objective.mean_span"
        )
