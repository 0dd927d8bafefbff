"""A step of a beam: one new position of each row attends to what the row has stored, in one kernel.

The rows of a group have most of their past in common and store it once. Products of matrices would compare each row
with all that its group has stored, laid out anew, and mask what is another's; here a row looks at its own positions
alone, where they lie. Legend: R rows, A groups of W rows, N positions that a group stores, C room for them, H heads,
E width of a head.
"""

from __future__ import annotations

import numpy as np
import torch
from numba import njit
from torch import Tensor

QUICK = {"reassoc", "contract", "nsz", "arcp"}
"""What may make sums quicker; nothing promises that there is no infinity."""


def serves(query: Tensor) -> bool:
    """Whether the kernel has such numbers, and no gradient is wanted."""
    return query.device.type == "cpu" and query.dtype == torch.float32 and not torch.is_grad_enabled()


def attend_step(query_RHE: Tensor, pairs_AC2HE: Tensor, own_AWN: Tensor, scale: float | None = None) -> Tensor:
    """What each of R = A·W rows finds among the positions that are its own -> RHE."""
    mixed = np.empty(query_RHE.shape, np.float32)
    factor = np.float32(query_RHE.shape[2] ** -0.5 if scale is None else scale)
    query, pairs, own = (part.contiguous().numpy() for part in (query_RHE, pairs_AC2HE, own_AWN))
    _attend(query, pairs, own, factor, mixed)
    return torch.from_numpy(mixed)


@njit(cache=True, nogil=True, fastmath=QUICK)
def _attend(query, pairs, own, scale, mixed):  # type: ignore[no-untyped-def]
    groups, rows, stored = own.shape
    scores, places = np.empty(stored, np.float32), np.empty(stored, np.int64)
    for group in range(groups):
        for one in range(rows):
            row, count = group * rows + one, 0
            for place in range(stored):
                if own[group, one, place]:
                    places[count] = place
                    count += 1
            for head in range(query.shape[1]):
                _look(query[row, head], pairs[group], head, places[:count], scores, scale, mixed[row, head])


@njit(cache=True, nogil=True, fastmath=QUICK)
def _look(query, pairs, head, places, scores, scale, mixed):  # type: ignore[no-untyped-def]
    """softmax(q·k) v for one query and one head."""
    width = len(query)
    largest = np.float32(-np.inf)
    for number in range(len(places)):
        key = pairs[places[number], 0, head]
        score = np.float32(0)
        for j in range(width):
            score += query[j] * key[j]
        scores[number] = score * scale
        largest = max(largest, scores[number])
    total = np.float32(0)
    mixed[:] = 0
    for number in range(len(places)):
        weight = np.exp(scores[number] - largest)
        total += weight
        value = pairs[places[number], 1, head]
        for j in range(width):
            mixed[j] += weight * value[j]
    for j in range(width):
        mixed[j] /= total
