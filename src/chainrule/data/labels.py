"""Labelled texts as tokens, and batches of them.

A text is read as its tokens and `eos`; a pair of texts as one sequence, a₁ … a_m eos b₁ … b_n eos, where `parts_BS` is
0 for the tokens of the first text and 1 for those of the second. Texts longer than the encoder can read are cut, in a
pair the longer text first; `cut` counts them.

A batch has a fixed number of texts of similar length: the texts are shuffled, sorted by length within pools of many
batches, and cut into batches. Batch i is a function of i.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from chainrule.data.grouping import by_length
from chainrule.data.rows import Indices, Rows
from chainrule.errors import ConfigError, unknown_name
from chainrule.text.formats.labels import Labels
from chainrule.text.tokenizers.base import Ids
from chainrule.types import Batch, Source

POOL = 64
"""Batches whose texts are sorted together."""


class Examples(Protocol):
    """Examples to make batches of: texts with labels, or sentences with tags."""

    @property
    def labels(self) -> Labels: ...

    def __len__(self) -> int: ...

    def lengths(self) -> Indices:
        """The number of tokens read of each example, P."""
        ...

    def batch(self, indices_B: Indices) -> Batch: ...

    def texts(self) -> Indices:
        """The number of the text or sentence that each example is, or is a part of, P."""
        ...

    def tokens_of(self, indices_P: Indices) -> Ids:
        """The tokens of some examples one after another, without `eos`."""
        ...

    def targets(self) -> NDArray[np.int64]:
        """To be predicted: the label of each text, P, or 0 and 1 for each label, PC, or the tag of each word, N."""
        ...

    def scatter(self, predicted: NDArray[Any], indices_B: Indices, chosen: NDArray[Any]) -> None:
        """Write the predictions of a batch to their places in `predicted`, an array like the targets."""
        ...


@dataclass(frozen=True)
class LabelledTexts:
    """Texts, or pairs of texts, with their labels; at most `max_tokens` of each are read."""

    rows: Rows
    second: Rows | None
    labels: Labels
    max_tokens: int | None = None

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def _read(self) -> tuple[Indices, Indices]:
        """The number of tokens read of each text and of its partner, `eos` included, P each."""
        first_P = self.rows.lengths_P + 1
        second_P = np.zeros_like(first_P) if self.second is None else self.second.lengths_P + 1
        if self.max_tokens is None:
            return first_P, second_P
        # The longer text is cut first, so that a short partner stays whole.
        half = self.max_tokens // 2 if self.second is not None else 0
        read_P = np.minimum(second_P, np.maximum(self.max_tokens - first_P, half))
        return np.minimum(first_P, self.max_tokens - read_P), read_P

    def lengths(self) -> Indices:
        return self._read[0] + self._read[1]

    def texts(self) -> Indices:
        return np.arange(len(self))

    def tokens_of(self, indices_P: Indices) -> Ids:
        rows = [self.rows] if self.second is None else [self.rows, self.second]
        return np.concatenate([side.tokens_of(indices_P) for side in rows])

    @property
    def cut(self) -> int:
        """The number of texts that are cut."""
        whole_P = self.rows.lengths_P + 1 + (0 if self.second is None else self.second.lengths_P + 1)
        return int((whole_P > self.lengths()).sum())

    def batch(self, indices_B: Indices) -> Batch:
        """Texts as one batch; its targets are the ids of their labels, B1, or 0 and 1 for each label, BC."""
        first_B1, second_B1 = (read_P[indices_B][:, None] for read_P in self._read)
        positions_S = np.arange(int((first_B1 + second_B1).max()))
        tokens_BS = np.full((len(indices_B), len(positions_S)), self.rows.eos)
        _fill(tokens_BS, self.rows, indices_B, positions_S < first_B1 - 1, positions_S)
        parts_BS = None
        if self.second is not None:
            positions_BS = positions_S - first_B1
            inside_BS = (positions_BS >= 0) & (positions_BS < second_B1 - 1)
            _fill(tokens_BS, self.second, indices_B, inside_BS, positions_BS)
            parts_BS = torch.from_numpy((positions_BS >= 0).astype(np.int64))
        source = Source(torch.from_numpy(tokens_BS), torch.from_numpy(positions_S < first_B1 + second_B1))
        targets = torch.from_numpy(self._targets(indices_B))
        return Batch(source.tokens_BS, targets, source=source, parts_BS=parts_BS)

    def _targets(self, indices_B: Indices) -> NDArray[np.int64]:
        """The labels of some texts, B1 or BC."""
        ends_B = self.labels.ends_P[indices_B]
        if not self.labels.multiple:
            return self.labels.ids_N[ends_B - 1].astype(np.int64)[:, None]
        begins_B = np.where(indices_B > 0, self.labels.ends_P[indices_B - 1], 0)
        targets_BC = np.zeros((len(indices_B), len(self.labels.names)), np.int64)
        for row_C, begin, end in zip(targets_BC, begins_B, ends_B, strict=True):
            row_C[self.labels.ids_N[begin:end]] = 1
        return targets_BC

    def targets(self) -> NDArray[np.int64]:
        targets = self._targets(np.arange(len(self)))
        return targets if self.labels.multiple else targets[:, 0]

    def scatter(self, predicted: NDArray[Any], indices_B: Indices, chosen: NDArray[Any]) -> None:
        predicted[indices_B] = chosen if self.labels.multiple else chosen[:, 0]


def _fill(
    tokens_BS: NDArray[np.int64],
    rows: Rows,
    indices_B: Indices,
    inside_BS: NDArray[np.bool_],
    positions: NDArray[np.int64],
) -> None:
    """Copy tokens of some rows where `inside_BS`: token positions[b, s] of row b to (b, s). Positions are BS or S."""
    places_BS = rows.begins_P[indices_B][:, None] + positions
    tokens_BS[inside_BS] = rows.tokens[places_BS[inside_BS]]


def unlabelled(texts: int) -> Labels:
    """Placeholder labels for texts whose labels are to be predicted."""
    return Labels(("",), np.zeros(texts, np.int32), np.arange(1, texts + 1))


class LabelBatches:
    """Batches of some examples, each once per epoch."""

    def __init__(
        self,
        examples: Examples,
        indices_P: Indices,
        batch_size: int,
        *,
        seed: int = 0,
        shuffled: bool = True,
    ) -> None:
        self.examples, self.indices_P, self.batch_size = examples, indices_P, batch_size
        self.seed, self.shuffled = seed, shuffled
        self.lengths_P = examples.lengths()[indices_P]
        self.per_epoch = -(-len(indices_P) // batch_size)
        self._epoch: tuple[int, list[Indices]] = (-1, [])

    def batch(self, index: int) -> tuple[Batch, bool]:
        epoch, place = divmod(index, self.per_epoch)
        if self._epoch[0] != epoch:
            self._epoch = (epoch, self.groups(epoch))
        return self.examples.batch(self._epoch[1][place]), True

    def groups(self, epoch: int = 0) -> list[Indices]:
        """The indices of the examples of each batch."""
        if not self.shuffled:
            return self._grouped(np.arange(len(self.indices_P)))
        rng = np.random.default_rng([self.seed, epoch])
        groups = self._grouped(rng.permutation(len(self.indices_P)))
        return [groups[number] for number in rng.permutation(len(groups))]

    def _grouped(self, order_P: Indices) -> list[Indices]:
        """Batches of similar length, each from one pool of the examples in the given order."""
        groups: list[Indices] = []
        for begin in range(0, len(order_P), POOL * self.batch_size):
            pool = order_P[begin : begin + POOL * self.batch_size]
            batches = by_length(self.lengths_P[pool], max_rows=self.batch_size, longest_first=False)
            groups += [self.indices_P[pool[batch]] for batch in batches]
        return groups


def class_weights(given: str | dict[str, float], labels: Labels, train_P: Indices) -> dict[str, float]:
    """The weight of each label; balanced: number of texts / (number of labels · texts with the label)."""
    if labels.multiple:
        raise ConfigError(
            "model.class_weight needs texts with one label each, but these have lists of labels; leave it out"
        )
    if isinstance(given, dict):
        for name in given:
            if name not in labels.names:
                raise unknown_name("label in model.class_weight", name, labels.names)
        return {name: float(given.get(name, 1.0)) for name in labels.names}
    counts_C = np.bincount(labels.ids_N[train_P], minlength=len(labels.names))
    weights_C = len(train_P) / (len(labels.names) * np.maximum(1, counts_C))
    return dict(zip(labels.names, weights_C.tolist(), strict=True))
