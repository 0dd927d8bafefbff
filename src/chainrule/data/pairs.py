"""Pairs of token rows, and batches of pairs that are about equally long.

Batches are counted in tokens: rows times the longest row of either side is at most `max_tokens`. Pairs are sorted by
their lengths, cut into batches, and the batches come in another random order each epoch; among pairs of equal lengths
the order is random too, so a batch is hardly ever the same, but their number is, and batch i stays a function of i.

Legend: B batch, T time, S source time, P pairs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chainrule.data.store import TokenStore
from chainrule.errors import ConfigError, DataError
from chainrule.types import Batch, Source

Ids = NDArray[np.integer[Any]]


class Rows:
    """The lines of a token store, each without its `eos`."""

    def __init__(self, tokens: Ids, eos: int) -> None:
        ends = np.flatnonzero(tokens == eos)
        if len(tokens) and (not len(ends) or ends[-1] != len(tokens) - 1):
            ends = np.append(ends, len(tokens))  # the last line lacks its newline
        self.tokens, self.eos = tokens, eos
        self.begins_P = np.concatenate([[0], ends[:-1] + 1]) if len(ends) else ends
        self.lengths_P = ends - self.begins_P

    def __len__(self) -> int:
        return len(self.begins_P)

    def row(self, number: int) -> Ids:
        begin = self.begins_P[number]
        row: Ids = self.tokens[begin : begin + self.lengths_P[number]]
        return row

    def padded(self, numbers_B: NDArray[np.integer[Any]], most: int | None = None) -> tuple[Tensor, Tensor]:
        """Rows with `eos` after each, padded with more of them -> (tokens BT, which of them stand for something BT).

        Rows that would have more than `most` tokens are cut.
        """
        lengths_B = np.minimum(self.lengths_P[numbers_B] + 1, most or np.iinfo(np.int64).max)
        places_T = np.arange(lengths_B.max())
        mask_BT = places_T < lengths_B[:, None]
        inside_BT = places_T < (lengths_B - 1)[:, None]
        indices_BT = np.where(inside_BT, self.begins_P[numbers_B][:, None] + places_T, 0)
        tokens_BT = np.where(inside_BT, self.tokens[indices_BT], self.eos).astype(np.int64)
        return torch.from_numpy(tokens_BT), torch.from_numpy(mask_BT)


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
    """Two stores as pairs; `eos` and `names` are those of source and target."""
    source_rows, target_rows = Rows(source.tokens, eos[0]), Rows(target.tokens, eos[1])
    if len(source_rows) != len(target_rows):
        lines, shorter = sorted((len(source_rows), len(target_rows)))[::-1], len(source_rows) > len(target_rows)
        raise DataError(
            f"{names[0]} has {len(source_rows)} lines and {names[1]} has {len(target_rows)}: line {lines[1] + 1} of "
            f"{names[0] if shorter else names[1]} has no partner; pairs are lines of equal number, give files that "
            "match line by line."
        )
    return PairStore(source, target, source_rows, target_rows)


@dataclass(frozen=True)
class Kept:
    """Which pairs are trained on, and why the others are not."""

    numbers_P: NDArray[np.int64]
    empty: int
    long: int
    uneven: int

    @property
    def sentence(self) -> str:
        """What was left out, in words; empty if nothing was."""
        left_out = self.reasons
        return f"{len(self.numbers_P):,} pairs; left out: {left_out}" if left_out else ""

    @property
    def reasons(self) -> str:
        """How many were left out for which reason."""
        counts = {"with an empty side": self.empty, "too long": self.long, "of too unequal lengths": self.uneven}
        return ", ".join(f"{count:,} {reason}" for reason, count in counts.items() if count)


def keep_pairs(
    store: PairStore, numbers_P: NDArray[np.int64], *, max_length: int | None, max_ratio: float | None
) -> Kept:
    """Leave out the pairs that nothing can be learned from: empty, longer than so many tokens, of unequal lengths."""
    source_P, target_P = store.source_rows.lengths_P[numbers_P], store.target_rows.lengths_P[numbers_P]
    least_P, most_P = np.minimum(source_P, target_P), np.maximum(source_P, target_P)
    empty_P = least_P == 0
    long_P = ~empty_P & (most_P > max_length) if max_length else np.zeros(len(most_P), bool)
    uneven_P = ~empty_P & ~long_P & (most_P > max_ratio * least_P) if max_ratio else np.zeros(len(most_P), bool)
    left_out = (empty_P, long_P, uneven_P)
    kept = Kept(numbers_P[~np.logical_or.reduce(left_out)], *(int(reason_P.sum()) for reason_P in left_out))
    if not len(kept.numbers_P):
        raise DataError(
            f"no pair is left of {len(numbers_P):,}: {kept.reasons}; give other pairs, or wider data.max_length and "
            "data.max_ratio."
        )
    return kept


class PairBatches:
    """Batches of pairs of about equal length, each pair once an epoch."""

    def __init__(
        self,
        store: PairStore,
        numbers_P: NDArray[np.int64],
        max_tokens: int,
        *,
        seed: int,
        rank: int = 0,
        world: int = 1,
        shuffled: bool = True,
    ) -> None:
        self.store, self.seed, self.shuffled = store, seed, shuffled
        self.rank, self.world = rank, world
        self.lengths_2P = np.stack([store.target_rows.lengths_P[numbers_P], store.source_rows.lengths_P[numbers_P]]) + 1
        self.numbers_P = numbers_P
        order_P = self._order(0)
        self.cuts = _cut(self.lengths_2P[:, order_P].max(0), max_tokens)
        self.per_epoch = (len(self.cuts) - 1) // world
        if not self.per_epoch:
            raise DataError(
                f"{len(numbers_P)} pairs make {len(self.cuts) - 1} batch(es), too few for {world} processes; start "
                "fewer processes or lower training.max_tokens."
            )
        self._epoch: tuple[int, NDArray[np.int64], NDArray[np.int64]] = (-1, order_P, order_P)

    def _order(self, epoch: int) -> NDArray[np.int64]:
        """The pairs by length of the longer side, then target, then source; equals in random order."""
        target_P, source_P = self.lengths_2P
        chance_P = np.random.default_rng([self.seed, epoch]).random(len(self.numbers_P))
        return np.lexsort((chance_P, source_P, target_P, np.maximum(source_P, target_P)))

    def batch(self, index: int) -> tuple[Batch, bool]:
        epoch, place = divmod(index, self.per_epoch)
        if self._epoch[0] != epoch:
            rng = np.random.default_rng([self.seed, epoch, 1])
            batches = rng.permutation(len(self.cuts) - 1) if self.shuffled else np.arange(len(self.cuts) - 1)
            self._epoch = (epoch, self._order(epoch), batches)
        number = self._epoch[2][place * self.world + self.rank]
        rows_B = self._epoch[1][self.cuts[number] : self.cuts[number + 1]]
        return pair_batch(self.store, self.numbers_P[rows_B]), True

    @property
    def padding(self) -> float:
        """The share of positions, source and target together, that hold nothing."""
        order_P, (target_P, source_P) = self._order(0), self.lengths_2P
        held = taken = 0
        for begin, end in zip(self.cuts[:-1], self.cuts[1:], strict=True):
            rows = order_P[begin:end]
            taken += (end - begin) * int(target_P[rows].max() + source_P[rows].max())
            held += int(target_P[rows].sum() + source_P[rows].sum())
        return 1 - held / taken


def _cut(lengths_P: NDArray[np.int64], max_tokens: int) -> list[int]:
    """Where the batches of ascending lengths begin, and the end of the last."""
    if lengths_P[-1] > max_tokens:
        raise ConfigError(
            f"training.max_tokens is {max_tokens}, but the longest pair has {int(lengths_P[-1])} tokens with its "
            "<eos>; raise it, or leave long pairs out with data.max_length"
        )
    cuts = [0]
    for number, length in enumerate(lengths_P.tolist()):
        if (number + 1 - cuts[-1]) * length > max_tokens:
            cuts.append(number)
    return [*cuts, len(lengths_P)]


def pair_batch(store: PairStore, numbers_B: NDArray[np.integer[Any]], most: int | None = None) -> Batch:
    """Some pairs as one batch: the decoder reads `eos` and the target, and is to predict the target and `eos`.

    Sources are cut to `most` tokens.
    """
    source = Source(*store.source_rows.padded(numbers_B, most))
    targets_BT, mask_BT = store.target_rows.padded(numbers_B)
    first_B1 = torch.full((len(numbers_B), 1), store.target_rows.eos)
    return Batch(torch.cat([first_B1, targets_BT[:, :-1]], 1), targets_BT, mask_BT.float(), source)
