"""One decoding step of a beam: the new position of each row attends to the stored positions of the row, in one kernel.

The rows of a group share most of their past and store it once (see kv_cache.py). Matrix products would score each row
against everything that its group stores and mask the positions of other rows; this kernel reads only the positions of
the row itself, where they are stored.
"""

from __future__ import annotations

import numpy as np
import torch
from numba import njit
from torch import Tensor

from chainrule.base.kernels import FAST_MATH


def attend_step(query_RHE: Tensor, buffer: Tensor, owned_AWN: Tensor, scale: float | None = None) -> Tensor:
    """Attention of one query of each of R = A·W rows to the positions it owns -> RHE. `buffer` is that of the cache."""
    mixed = np.empty(query_RHE.shape, np.float32)
    factor = np.float32(query_RHE.shape[2] ** -0.5 if scale is None else scale)
    query, pairs, owned = (part.contiguous().numpy() for part in (query_RHE, buffer, owned_AWN))
    _attend_rows(query, pairs, owned, factor, mixed)
    return torch.from_numpy(mixed)


@njit(cache=True, nogil=True, fastmath=FAST_MATH)
def _attend_rows(query, pairs, owned, scale, mixed):  # type: ignore[no-untyped-def]
    groups, rows, stored = owned.shape
    scores, places = np.empty(stored, np.float32), np.empty(stored, np.int64)
    for group in range(groups):
        for member in range(rows):
            row, count = group * rows + member, 0
            for place in range(stored):
                if owned[group, member, place]:
                    places[count] = place
                    count += 1
            for head in range(query.shape[1]):
                _attend_head(query[row, head], pairs[group], head, places[:count], scores, scale, mixed[row, head])


@njit(cache=True, nogil=True, fastmath=FAST_MATH)
def _attend_head(query, pairs, head, places, scores, scale, mixed):  # type: ignore[no-untyped-def]
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
