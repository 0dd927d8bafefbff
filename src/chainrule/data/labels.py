"""Labelled texts as tokens, and batches of them.

A text is read as its tokens and `eos`; of a pair both are, one behind the other: a₁ … a_m eos b₁ … b_n eos, and
`parts_BS` says which of the two each token is of. What is longer than an encoder can read is cut, of a pair the longer
text first; how many texts that befalls is counted.

Batches have a number of rows that are about equally long: the texts are drawn in random order, sorted by length within
pools of many batches, and cut. Batch i is a function of i.

Legend: B batch, S tokens of a text, L labels, P texts.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from chainrule.data.pairs import Rows
from chainrule.errors import DataError
from chainrule.text.formats.labels import Labels
from chainrule.types import Batch, Source

POOL = 64
"""Batches whose texts are sorted together."""

Numbers = NDArray[np.integer[Any]]


class Examples(Protocol):
    """What batches are made of: texts with labels, or sentences with tags."""

    @property
    def labels(self) -> Labels: ...

    def __len__(self) -> int: ...

    def lengths(self) -> Numbers:
        """The tokens that are read of each, P."""
        ...

    def batch(self, numbers_B: Numbers) -> Batch: ...

    def targets(self) -> NDArray[np.int64]:
        """What is to be told: the label of each text, P, or all of them, PL, or the tag of each word, W."""
        ...

    def put(self, told: NDArray[np.int64], numbers_B: Numbers, chosen: NDArray[np.int64]) -> None:
        """Put what was chosen for a batch into an array like the targets."""
        ...


@dataclass(frozen=True)
class LabelledTexts:
    """Texts, or pairs of texts, each with its labels; `most` tokens of one are read."""

    rows: Rows
    second: Rows | None
    labels: Labels
    most: int | None = None

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def _kept(self) -> tuple[Numbers, Numbers]:
        """The tokens that are read of each text and of its partner, `eos` among them."""
        first_P = self.rows.lengths_P + 1
        second_P = np.zeros_like(first_P) if self.second is None else self.second.lengths_P + 1
        if self.most is None:
            return first_P, second_P
        # The longer one is cut first, so a short one stays whole beside it.
        half = self.most // 2 if self.second is not None else 0
        kept_P = np.minimum(second_P, np.maximum(self.most - first_P, half))
        return np.minimum(first_P, self.most - kept_P), kept_P

    def lengths(self) -> Numbers:
        return self._kept[0] + self._kept[1]

    @property
    def cut(self) -> int:
        """How many texts are longer than what is read of them."""
        whole_P = self.rows.lengths_P + 1 + (0 if self.second is None else self.second.lengths_P + 1)
        return int((whole_P > self.lengths()).sum())

    def batch(self, numbers_B: Numbers) -> Batch:
        """Some texts as one batch; its targets are their labels' numbers, B1, or 0 and 1 for each label, BL."""
        first_B1, second_B1 = (kept_P[numbers_B][:, None] for kept_P in self._kept)
        places_S = np.arange(int((first_B1 + second_B1).max()))
        tokens_BS = np.full((len(numbers_B), len(places_S)), self.rows.eos)
        _fill(tokens_BS, self.rows, numbers_B, places_S < first_B1 - 1, places_S)
        parts_BS = None
        if self.second is not None:
            places_BS = places_S - first_B1
            _fill(tokens_BS, self.second, numbers_B, (places_BS >= 0) & (places_BS < second_B1 - 1), places_BS)
            parts_BS = torch.from_numpy((places_BS >= 0).astype(np.int64))
        source = Source(torch.from_numpy(tokens_BS), torch.from_numpy(places_S < first_B1 + second_B1))
        targets = torch.from_numpy(self._targets(numbers_B))
        return Batch(source.tokens_BS, targets, source=source, parts_BS=parts_BS)

    def _targets(self, numbers_B: Numbers) -> NDArray[np.int64]:
        """The labels of some texts, B1 or BL."""
        ends_B = self.labels.ends_P[numbers_B]
        if not self.labels.multiple:
            return self.labels.ids_N[ends_B - 1].astype(np.int64)[:, None]
        begins_B = np.where(numbers_B > 0, self.labels.ends_P[numbers_B - 1], 0)
        targets_BL = np.zeros((len(numbers_B), len(self.labels.names)), np.int64)
        for row_L, begin, end in zip(targets_BL, begins_B, ends_B, strict=True):
            row_L[self.labels.ids_N[begin:end]] = 1
        return targets_BL

    def targets(self) -> NDArray[np.int64]:
        all_P = self._targets(np.arange(len(self)))
        return all_P if self.labels.multiple else all_P[:, 0]

    def put(self, told: NDArray[np.int64], numbers_B: Numbers, chosen: NDArray[np.int64]) -> None:
        told[numbers_B] = chosen if self.labels.multiple else chosen[:, 0]


def _fill(
    tokens_BS: NDArray[np.int64],
    rows: Rows,
    numbers_B: Numbers,
    inside_BS: NDArray[np.bool_],
    places: NDArray[np.int64],
) -> None:
    """Put tokens of some rows where `inside`: row b's token number places[b, s] at (b, s)."""
    indices_BS = rows.begins_P[numbers_B][:, None] + places
    tokens_BS[inside_BS] = rows.tokens[indices_BS[inside_BS]]


def unlabelled(texts: int) -> Labels:
    """The labels of texts that are to be labelled: all the same."""
    return Labels(("",), np.zeros(texts, np.int32), np.arange(1, texts + 1))


class LabelBatches:
    """Batches of some examples, each once an epoch."""

    def __init__(
        self,
        examples: Examples,
        numbers_P: Numbers,
        batch_size: int,
        *,
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
        shuffled: bool = True,
    ) -> None:
        self.examples, self.numbers_P, self.batch_size = examples, numbers_P, batch_size
        self.seed, self.rank, self.world, self.shuffled = seed, rank, world, shuffled
        self.lengths_P = examples.lengths()[numbers_P]
        self.per_epoch = -(-len(numbers_P) // batch_size) // world
        if not self.per_epoch:
            raise DataError(
                f"{len(numbers_P)} texts in batches of {batch_size} are too few for {world} processes; start fewer "
                "processes or lower training.batch_size."
            )
        self._epoch: tuple[int, list[Numbers]] = (-1, [])

    def batch(self, index: int) -> tuple[Batch, bool]:
        epoch, place = divmod(index, self.per_epoch)
        if self._epoch[0] != epoch:
            self._epoch = (epoch, self.groups(epoch))
        return self.examples.batch(self._epoch[1][place * self.world + self.rank]), True

    def groups(self, epoch: int = 0) -> list[Numbers]:
        """The numbers of the examples of each batch."""
        if not self.shuffled:
            return self._cut(np.arange(len(self.numbers_P)))
        rng = np.random.default_rng([self.seed, epoch])
        batches = self._cut(rng.permutation(len(self.numbers_P)))
        return [batches[number] for number in rng.permutation(len(batches))]

    def _cut(self, order_P: Numbers) -> list[Numbers]:
        size, batches = self.batch_size, []
        for begin in range(0, len(order_P), POOL * size):
            pool = order_P[begin : begin + POOL * size]
            pool = pool[np.argsort(self.lengths_P[pool], kind="stable")]
            batches += [self.numbers_P[pool[first : first + size]] for first in range(0, len(pool), size)]
        return batches
