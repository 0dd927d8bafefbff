"""Plain text as pairs: a text with gaps to read, and what was in the gaps to write.

    Thank you ⟨for inviting⟩ me to your ⟨party⟩    →    Thank you X me to your Y    and    X for inviting Y party Z

Raffel et al., "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer", 2020. X, Y, Z are
sentinels, tokens that no text contains. How much goes, and into how many gaps, is fixed by the length alone, so all
blocks of a length give pairs of one shape and nothing is padded; only where the gaps are is random.
Legend: B batch, T time, S source time, M masked tokens, U items to be segmented.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from chainrule.data.batches import BlockBatches, Tokens
from chainrule.errors import ConfigError, DataError
from chainrule.types import Batch, Source

Array = np.ndarray[Any, Any]


class Gaps(NamedTuple):
    """How many tokens of a text are masked, and in how many spans."""

    masked: int
    spans: int

    @classmethod
    def of(cls, length: int, noise: float, mean_span: float) -> Gaps:
        """Those of a text of so many tokens, at least 2: at least one is masked and one is kept."""
        masked = min(max(round(length * noise), 1), length - 1)
        return cls(masked, min(max(round(masked / mean_span), 1), masked, length - masked))


def corrupt(
    tokens_T: Array, noise: float, mean_span: float, rng: np.random.Generator, first_sentinel: int
) -> tuple[Array, Array]:
    """A text of at least 2 tokens -> (the text with each span as one sentinel, the sentinels and their spans).

    round(T · noise) tokens go, in round(masked / mean_span) spans. Sentinels count up from `first_sentinel`; one more
    closes the target. The text begins with what is kept and ends with a span.
    """
    segment_1T = segments(1, len(tokens_T), Gaps.of(len(tokens_T), noise, mean_span), rng)
    source_1S, target_1T = _split(tokens_T[None], segment_1T, first_sentinel)
    return source_1S[0], target_1T[0]


def segments(rows: int, length: int, gaps: Gaps, rng: np.random.Generator) -> Array:
    """The number of the segment that each token falls into, BT: even segments are kept, odd ones are spans."""
    kept = 2 * _parts(rows, length - gaps.masked, gaps.spans, rng)
    away = 2 * _parts(rows, gaps.masked, gaps.spans, rng) + 1
    return np.sort(np.concatenate([kept, away], 1), axis=1)


def _parts(rows: int, items: int, parts: int, rng: np.random.Generator) -> Array:
    """Which of `parts` parts each of so many items falls into, BU: every way to cut them is as likely as any other."""
    begins = np.zeros((rows, items), dtype=np.int32)
    begins[:, 1:parts] = 1
    rng.permuted(begins[:, 1:], axis=1, out=begins[:, 1:])
    return begins.cumsum(1, dtype=np.int32)


def _split(tokens_BT: Array, segment_BT: Array, first_sentinel: int) -> tuple[Array, Array]:
    """The two sides of each row: spans as sentinels, and what was kept as sentinels with one more at the end."""
    begins_BT = np.diff(segment_BT, axis=1, prepend=-1) > 0
    span_BT, sentinel_BT = segment_BT % 2 == 1, segment_BT // 2 + first_sentinel
    source_BS, target_BT = (
        np.where(replaced_BT, sentinel_BT, tokens_BT)[~replaced_BT | begins_BT].reshape(len(tokens_BT), -1)
        for replaced_BT in (span_BT, ~span_BT)
    )
    return source_BS, np.concatenate([target_BT, sentinel_BT[:, -1:] + 1], 1)


class SpanBatches:
    """Blocks of T tokens in random order, each seen once an epoch with gaps of its own, for models that read a source.

    Batch `index` is a function of `index`, and over all processes together the same for any number of them.
    """

    def __init__(
        self,
        tokens: Tokens,
        batch_size: int,
        length: int,
        *,
        eos: int,
        seed: int,
        rank: int,
        world: int,
        noise: float,
        mean_span: float,
        first_sentinel: int,
        sentinels: int,
    ) -> None:
        self.blocks = BlockBatches(tokens, batch_size, length, eos=eos, seed=seed, rank=rank, world=world)
        self.per_epoch, self.eos, self.seed, self.first_sentinel = self.blocks.per_epoch, eos, seed, first_sentinel
        if self.blocks.length < 2:
            raise DataError(
                f"a block of {self.blocks.length} token(s) has nothing to mask and to keep; "
                "give more text, or a training.length of at least 2"
            )
        self.gaps = Gaps.of(self.blocks.length, noise, mean_span)
        _check_sentinels(self.blocks.length, self.gaps, sentinels)

    def batch(self, index: int) -> tuple[Batch, bool]:
        tokens_BT = self.blocks.batch(index)[0].inputs_BT.numpy()
        rng = np.random.default_rng([self.seed, index, 1])  # the blocks' own streams have two numbers
        segment_BT = segments(self.blocks.rows, self.blocks.length, self.gaps, rng)[self.blocks.mine]
        source_BS, target_BT = (self._tensor(side) for side in _split(tokens_BT, segment_BT, self.first_sentinel))
        ended_BS, ended_BT = (torch.cat([side, self._eos(len(side))], 1) for side in (source_BS, target_BT))
        inputs_BT = torch.cat([self._eos(len(target_BT)), target_BT], 1)
        return Batch(inputs_BT, ended_BT, source=Source(ended_BS, torch.ones_like(ended_BS, dtype=torch.bool))), True

    def _tensor(self, side: Array) -> Tensor:
        return torch.from_numpy(side.astype(np.int64))

    def _eos(self, rows: int) -> Tensor:
        return torch.full((rows, 1), self.eos)


def _check_sentinels(length: int, gaps: Gaps, sentinels: int) -> None:
    if gaps.spans + 1 > sentinels:
        raise ConfigError(
            f"a block of {length} tokens gets {gaps.spans} gaps, which take {gaps.spans + 1} sentinels, but the model "
            f"has {sentinels}; give it more by model.sentinels, or choose a shorter training.length, a lower "
            "objective.noise or a longer objective.mean_span"
        )
