"""Pairs of token rows, and batches of pairs of similar length.

The size of a batch is counted in tokens: rows times the longest row of either side is at most `max_tokens`. Pairs are
sorted by length and cut into batches; each epoch shuffles the batches, and the pairs of equal lengths among themselves.
So batches rarely repeat, their number is constant, and batch i is a function of i.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from chainrule.base.grammar import plural
from chainrule.data.grouping import consecutive
from chainrule.data.rows import Indices, Rows
from chainrule.data.store import TokenStore
from chainrule.errors import ConfigError, DataError
from chainrule.text.formats.pairs import unmatched
from chainrule.types import Batch, Source


@dataclass(frozen=True)
class PairStore:
    """Two stores whose lines belong together."""

    source: TokenStore
    target: TokenStore
    source_rows: Rows
    target_rows: Rows

    def __len__(self) -> int:
        return len(self.source_rows)

    @property
    def fingerprint(self) -> str:
        return f"{self.source.fingerprint}+{self.target.fingerprint}"


def pair_stores(source: TokenStore, target: TokenStore, *, eos: tuple[int, int], names: tuple[str, str]) -> PairStore:
    """Two stores as pairs; `eos` and `names` are given for source and target."""
    source_rows, target_rows = Rows(source.tokens, eos[0]), Rows(target.tokens, eos[1])
    if len(source_rows) != len(target_rows):
        raise unmatched((len(source_rows), len(target_rows)), names)
    return PairStore(source, target, source_rows, target_rows)


@dataclass(frozen=True)
class FilteredPairs:
    """The pairs that are kept, and how many were dropped for each reason."""

    indices_P: NDArray[np.int64]
    empty: int
    long: int
    uneven: int

    @property
    def summary(self) -> str:
        """The numbers of kept and dropped pairs as text; empty if none were dropped."""
        dropped = self.reasons
        return f"{plural(len(self.indices_P), 'pair')}; left out: {dropped}" if dropped else ""

    @property
    def reasons(self) -> str:
        """How many were dropped for which reason."""
        counts = {"with an empty side": self.empty, "too long": self.long, "of too unequal lengths": self.uneven}
        return ", ".join(f"{count:,} {reason}" for reason, count in counts.items() if count)


def filter_pairs(
    store: PairStore, indices_P: NDArray[np.int64], *, max_length: int | None, max_ratio: float | None
) -> FilteredPairs:
    """Drop pairs with an empty side, with more than `max_length` tokens on a side, or with too unequal lengths."""
    source_P, target_P = store.source_rows.lengths_P[indices_P], store.target_rows.lengths_P[indices_P]
    shorter_P, longer_P = np.minimum(source_P, target_P), np.maximum(source_P, target_P)
    empty_P = shorter_P == 0
    long_P = ~empty_P & (longer_P > max_length) if max_length else np.zeros(len(longer_P), bool)
    uneven_P = ~empty_P & ~long_P & (longer_P > max_ratio * shorter_P) if max_ratio else np.zeros(len(longer_P), bool)
    dropped = (empty_P, long_P, uneven_P)
    kept = FilteredPairs(indices_P[~np.logical_or.reduce(dropped)], *(int(reason_P.sum()) for reason_P in dropped))
    if not len(kept.indices_P):
        raise DataError(
            f"all {len(indices_P):,} pairs are left out: {kept.reasons}; give other pairs, or raise data.max_length "
            "and data.max_ratio."
        )
    return kept


class PairBatches:
    """Batches of pairs of similar length, each pair once per epoch."""

    def __init__(
        self,
        store: PairStore,
        indices_P: NDArray[np.int64],
        max_tokens: int,
        *,
        seed: int,
        shuffled: bool = True,
    ) -> None:
        self.store, self.seed, self.shuffled = store, seed, shuffled
        self.lengths_2P = np.stack([store.target_rows.lengths_P[indices_P], store.source_rows.lengths_P[indices_P]]) + 1
        self.indices_P = indices_P
        order_P = self._order(0)
        lengths_P = self.lengths_2P[:, order_P].max(0)
        _check_longest(int(lengths_P[-1]), max_tokens)
        self.slices = consecutive(lengths_P, max_tokens=max_tokens)
        self.per_epoch = len(self.slices)
        self._epoch: tuple[int, NDArray[np.int64], NDArray[np.int64]] = (-1, order_P, order_P)

    def _order(self, epoch: int) -> NDArray[np.int64]:
        """The pairs by the length of the longer side, then target, then source; equals in random order."""
        target_P, source_P = self.lengths_2P
        random_P = np.random.default_rng([self.seed, epoch]).random(len(self.indices_P))
        return np.lexsort((random_P, source_P, target_P, np.maximum(source_P, target_P)))

    def batch(self, index: int) -> tuple[Batch, bool]:
        epoch, place = divmod(index, self.per_epoch)
        if self._epoch[0] != epoch:
            rng = np.random.default_rng([self.seed, epoch, 1])
            batches = rng.permutation(len(self.slices)) if self.shuffled else np.arange(len(self.slices))
            self._epoch = (epoch, self._order(epoch), batches)
        number = self._epoch[2][place]
        rows_B = self._epoch[1][self.slices[number]]
        return pair_batch(self.store, self.indices_P[rows_B]), True

    @property
    def padding(self) -> float:
        """The share of positions, source and target together, that are padding."""
        order_P, (target_P, source_P) = self._order(0), self.lengths_2P
        used = total = 0
        for part in self.slices:
            rows = order_P[part]
            total += len(rows) * int(target_P[rows].max() + source_P[rows].max())
            used += int(target_P[rows].sum() + source_P[rows].sum())
        return 1 - used / total


def _check_longest(length: int, max_tokens: int) -> None:
    if length > max_tokens:
        raise ConfigError(
            f"training.max_tokens is {max_tokens}, but the longest pair has {length} tokens with its <eos>; raise it, "
            "or leave long pairs out with data.max_length"
        )


def pair_batch(store: PairStore, indices_B: Indices, max_source: int | None = None) -> Batch:
    """Pairs as one batch: the decoder reads `eos` and the target, and predicts the target and `eos`.

    Sources are cut to `max_source` tokens.
    """
    source = Source(*store.source_rows.padded(indices_B, max_source))
    targets_BT, mask_BT = store.target_rows.padded(indices_B)
    first_B1 = torch.full((len(indices_B), 1), store.target_rows.eos)
    return Batch(torch.cat([first_B1, targets_BT[:, :-1]], 1), targets_BT, mask_BT.float(), source)


def pad_sources(rows: Sequence[Sequence[int]], eos: int, device: torch.device | None = None) -> Source:
    """Token rows without `eos` as one source: `eos` after each row, padded with more of them."""
    lengths_B = np.array([len(row) + 1 for row in rows])
    tokens_BS = np.full((len(rows), lengths_B.max()), eos)
    for index, row in enumerate(rows):
        tokens_BS[index, : len(row)] = row
    mask_BS = np.arange(tokens_BS.shape[1]) < lengths_B[:, None]
    return Source(torch.from_numpy(tokens_BS).to(device), torch.from_numpy(mask_BS).to(device))
