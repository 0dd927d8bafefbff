"""The fast fully connected softmax: a decoder's attention to its source, by scores that a tanh bounds.

    Ω_ts = q_t·k_s / √E + U(s - t) + b     a_ts = exp(c tanh Ω_ts) / Σ_s' exp(c tanh Ω_ts')      out_t = Wo Σ_s a_ts v_s

q_t = Wq h_t is asked by the decoder, k_s = Wk x_s and v_s = Wv x_s are made once of a source. U is learned for buckets
of offsets (see relative.py), b and c for each head. Weights of a plain tanh would differ by e² at most, and could not
point at a word; c starts where one word can have nearly all.
Legend: A sources, R rows of the decoder, W rows of each source, T time, Q = W·T queries of one source, S source time,
N positions, D width, H heads, E width of a head, U buckets, O offsets, C the longest window.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from chainrule.layers.attention.relative_positions import check_buckets, relative_bucket
from chainrule.layers.attention.source_memory import regrouped

SHARPNESS = 8.0
"""c at first: of two words, one may have e^16 times the weight of the other."""


class Reading(NamedTuple):
    """What one layer makes of A sources, and of its own parameters, before the first query comes."""

    key_AHES: Tensor  # divided by √E
    value_AHSE: Tensor
    offsets_HO: Tensor  # U + b of each offset, from that of the last place of the window to the first word on
    sharpness_H11: Tensor


class FastMemory:
    """A sources as the layers of a decoder attend to them, kept once for all their rows, as `memory.Memory` keeps them.

    Rows 0 … W-1 belong to the first source, the next W to the second, and so on. `places_AS` says where in the source
    the positions stood, None: one after the other from the first; `added_A11S` is -inf where there is none.
    """

    __slots__ = ("added_A11S", "places_AS", "readings", "rows")

    def __init__(
        self, readings: Sequence[Reading], places_AS: Tensor | None, added_A11S: Tensor | None, rows: int = 1
    ) -> None:
        self.readings, self.places_AS, self.added_A11S, self.rows = readings, places_AS, added_A11S, rows

    def map_tensors(self, change: Callable[[Tensor], Tensor]) -> FastMemory:
        """What `change` does to rows is done to the rows' sources; those that no row needs any more are left out."""
        keys = self.readings[0].key_AHES
        source_A, rows = regrouped(change, len(keys), self.rows, keys.device)
        if source_A is None:
            return FastMemory(self.readings, self.places_AS, self.added_A11S, rows)
        places_AS, added_A11S = (
            None if part is None else part.index_select(0, source_A) for part in (self.places_AS, self.added_A11S)
        )
        readings = [
            reading._replace(
                key_AHES=reading.key_AHES.index_select(0, source_A),
                value_AHSE=reading.value_AHSE.index_select(0, source_A),
            )
            for reading in self.readings
        ]
        return FastMemory(readings, places_AS, added_A11S, rows)


class FastSoftmax(nn.Module):
    """What decoder states find in a source."""

    bucket_O: Tensor

    def __init__(self, width: int, heads: int, *, window: int, buckets: int, distance: int) -> None:
        """The `window` bounds both sides; offsets from `distance` on share a bucket."""
        super().__init__()
        check_buckets(buckets, distance)
        self.heads, self.window = heads, window
        self.project_query = nn.Linear(width, width, bias=False)
        self.project_memory = nn.Linear(width, 2 * width, bias=False)
        self.project_out = nn.Linear(width, width, bias=False)
        self.table_UH = nn.Parameter(torch.zeros(buckets, heads))
        self.bias_H = nn.Parameter(torch.zeros(heads))
        self.log_sharpness_H = nn.Parameter(torch.full((heads,), math.log(SHARPNESS)))
        bucket_O = relative_bucket(torch.arange(1 - window, window), buckets, distance, both_ways=True)
        self.register_buffer("bucket_O", bucket_O, persistent=False)

    def read(self, encoded_ND: Tensor, pad: Callable[[Tensor], Tensor], length: int) -> Reading:
        """What queries will need of the sources.

        encoded_ND are the states of all sources, `pad` lays such out in rows ASD, and no source has places from
        `length` on.
        """
        pairs_ASX = pad(F.linear(encoded_ND, self.project_memory.weight))
        key_AHSE, value_AHSE = pairs_ASX.unflatten(2, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)
        offsets_OH = F.embedding(self.bucket_O[: self.window - 1 + length], self.table_UH) + self.bias_H
        return Reading(
            (key_AHSE * key_AHSE.shape[3] ** -0.5).transpose(2, 3),
            value_AHSE.contiguous(),
            offsets_OH.T.contiguous(),
            self.log_sharpness_H.exp()[:, None, None],
        )

    def offsets(self, memory: FastMemory, layer: int, new: int, before: int) -> Tensor:
        """U + b for T = `new` target positions after `before` others -> (A or 1, H, T, S)."""
        offsets_HO, here, S = (
            memory.readings[layer].offsets_HO,
            self.window - 1,
            memory.readings[layer].value_AHSE.shape[2],
        )
        if memory.places_AS is not None:
            target_T1 = torch.arange(before, before + new, device=offsets_HO.device)[:, None]
            return F.embedding(memory.places_AS[:, None] - target_T1 + here, offsets_HO.T).permute(0, 3, 1, 2)
        # A row of offsets is the one above it shifted by one place, so all are windows on one row.
        row_HO = offsets_HO[:, here - before - new + 1 : here - before + S]
        return row_HO[None, :, None] if new == 1 else row_HO.unfold(1, S, 1).flip(1)[None]

    def weights(self, inputs_ND: Tensor, memory: FastMemory, layer: int, before: int) -> Tensor:
        """The weights of the queries of decoder states, those of R = A·W rows one after the other -> AHQS."""
        reading = memory.readings[layer]
        A, H, E, S = reading.key_AHES.shape
        query_ND = F.linear(inputs_ND, self.project_query.weight)
        T = len(query_ND) // (A * memory.rows)
        query_AHQE = query_ND.view(A, -1, H, E).transpose(1, 2)
        offsets_AHTS = self.offsets(memory, layer, T, before)
        scores_AHQS = query_AHQE @ reading.key_AHES
        if T == 1 or memory.rows == 1:
            bent_AHQS = scores_AHQS.add_(offsets_AHTS).tanh_()
        else:
            bent_AHQS = (scores_AHQS.view(A, H, -1, T, S) + offsets_AHTS[:, :, None]).tanh_().view(A, H, -1, S)
        scores_AHQS = bent_AHQS * reading.sharpness_H11
        if memory.added_A11S is not None:
            scores_AHQS = scores_AHQS.add_(memory.added_A11S)
        return scores_AHQS.softmax(-1)

    def forward(self, inputs_ND: Tensor, memory: FastMemory, layer: int, before: int) -> Tensor:
        """What decoder states find, before the last projection -> ND. `before`: target positions that came already."""
        mixed_AHQE = self.weights(inputs_ND, memory, layer, before) @ memory.readings[layer].value_AHSE
        return mixed_AHQE.transpose(1, 2).reshape(inputs_ND.shape)
