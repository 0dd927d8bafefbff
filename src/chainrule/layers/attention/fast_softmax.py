"""The fast fully connected softmax: a decoder's attention to its source, with scores bounded by a tanh.

    Ω_ts = q_t·k_s / √E + U(s - t) + b     a_ts = exp(c tanh Ω_ts) / Σ_s' exp(c tanh Ω_ts')      out_t = Wo Σ_s a_ts v_s

The decoder computes q_t = Wq h_t; k_s = Wk x_s and v_s = Wv x_s are computed once per source. U is learned for buckets
of offsets (see relative_positions.py), b and c for each head. The weights of a plain tanh would differ by e² at most
and could not focus on one word; c starts at a value that allows one word nearly all the weight.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from chainrule.base.parameters import HasTables
from chainrule.layers.attention.relative_positions import check_buckets, relative_bucket
from chainrule.layers.attention.source_memory import regroup
from chainrule.layers.fused.linear import Linear, linear
from chainrule.types import TensorHolder

SHARPNESS = 8.0
"""Initial c: one word may have e^16 times the weight of another."""


class LayerMemory(NamedTuple):
    """What one layer computes from A sources and from its parameters before the first query."""

    key_AHES: Tensor  # divided by √E
    value_AHSE: Tensor
    offsets_HR: Tensor  # U + b of each offset, from (last target position, first word) on
    sharpness_H11: Tensor


class FastMemory(TensorHolder):
    """A sources as the layers of a decoder attend to them, stored once for all their rows, as in `SourceMemory`.

    Rows 0 … W-1 belong to the first source, the next W to the second, and so on. `places_AS` are the positions in the
    full source, None: 0, 1, 2, …; `added_A11S` is -inf at padding.
    """

    __slots__ = ("added_A11S", "layers", "places_AS", "rows")

    def __init__(
        self, layers: Sequence[LayerMemory], places_AS: Tensor | None, added_A11S: Tensor | None, rows: int = 1
    ) -> None:
        self.layers, self.places_AS, self.added_A11S, self.rows = layers, places_AS, added_A11S, rows

    def map_tensors(self, change: Callable[[Tensor], Tensor]) -> FastMemory:
        """Apply a change of rows to their sources; sources without rows are removed."""
        keys = self.layers[0].key_AHES
        source_A, rows = regroup(change, len(keys), self.rows, keys.device)
        if source_A is None:
            return FastMemory(self.layers, self.places_AS, self.added_A11S, rows)
        places_AS, added_A11S = (
            None if part is None else part.index_select(0, source_A) for part in (self.places_AS, self.added_A11S)
        )
        layers = [
            layer._replace(
                key_AHES=layer.key_AHES.index_select(0, source_A),
                value_AHSE=layer.value_AHSE.index_select(0, source_A),
            )
            for layer in self.layers
        ]
        return FastMemory(layers, places_AS, added_A11S, rows)


class FastSoftmax(HasTables, nn.Module):
    """Attention of decoder states to a source."""

    tables = ("table_UH",)
    bucket_O: Tensor  # of every offset of the window

    def __init__(self, width: int, heads: int, *, window: int, buckets: int, distance: int) -> None:
        """The `window` bounds both sides; offsets from `distance` on share a bucket."""
        super().__init__()
        check_buckets(buckets, distance)
        self.heads, self.window = heads, window
        self.project_query = Linear(width, width, bias=False)
        self.project_memory = Linear(width, 2 * width, bias=False)
        self.project_out = Linear(width, width, bias=False)
        self.table_UH = nn.Parameter(torch.zeros(buckets, heads))
        self.bias_H = nn.Parameter(torch.zeros(heads))
        self.log_sharpness_H = nn.Parameter(torch.full((heads,), math.log(SHARPNESS)))
        bucket = relative_bucket(torch.arange(1 - window, window), buckets, distance, bidirectional=True)
        self.register_buffer("bucket_O", bucket, persistent=False)

    def read(self, encoded_ND: Tensor, pad: Callable[[Tensor], Tensor], length: int) -> LayerMemory:
        """What queries need from the sources.

        encoded_ND are the states of all sources, `pad` turns such states into padded rows ASD, and every source is at
        most `length` long.
        """
        pairs_ASX = pad(linear(encoded_ND, self.project_memory.weight))
        key_AHSE, value_AHSE = pairs_ASX.unflatten(2, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return LayerMemory(
            (key_AHSE * key_AHSE.shape[3] ** -0.5).transpose(2, 3),
            value_AHSE.contiguous(),
            self.terms(self.window - 1 + length).contiguous(),
            self.sharpness()[:, None, None],
        )

    def terms(self, count: int | None = None) -> Tensor:
        """U + b of `count` offsets from 1 - window on, all of them by default -> HR."""
        return (F.embedding(self.bucket_O[:count], self.table_UH) + self.bias_H).T

    def sharpness(self) -> Tensor:
        """c of each head, H."""
        return self.log_sharpness_H.exp()

    def offsets(self, memory: FastMemory, layer: int, new: int, before: int) -> Tensor:
        """U + b for T = `new` target positions after `before` others -> (A or 1, H, T, S)."""
        offsets_HR, value_AHSE = memory.layers[layer].offsets_HR, memory.layers[layer].value_AHSE
        here, S = self.window - 1, value_AHSE.shape[2]
        if memory.places_AS is not None:
            target_T1 = torch.arange(before, before + new, device=offsets_HR.device)[:, None]
            return F.embedding(memory.places_AS[:, None] - target_T1 + here, offsets_HR.T).permute(0, 3, 1, 2)
        # Each row of offsets is the one above it shifted by one position, so all rows are windows on one row.
        row_HR = offsets_HR[:, here - before - new + 1 : here - before + S]
        return row_HR[None, :, None] if new == 1 else row_HR.unfold(1, S, 1).flip(1)[None]

    def weights(self, inputs_ND: Tensor, memory: FastMemory, layer: int, before: int) -> Tensor:
        """The attention weights of decoder states, those of R = A·W rows concatenated -> AHQS."""
        source = memory.layers[layer]
        A, H, E, S = source.key_AHES.shape
        query_ND = linear(inputs_ND, self.project_query.weight)
        T = len(query_ND) // (A * memory.rows)
        query_AHQE = query_ND.view(A, -1, H, E).transpose(1, 2)
        offsets_AHTS = self.offsets(memory, layer, T, before)
        scores_AHQS = query_AHQE @ source.key_AHES
        if T == 1 or memory.rows == 1:
            tanh_AHQS = scores_AHQS.add_(offsets_AHTS).tanh_()
        else:
            tanh_AHQS = (scores_AHQS.view(A, H, -1, T, S) + offsets_AHTS[:, :, None]).tanh_().view(A, H, -1, S)
        scores_AHQS = tanh_AHQS * source.sharpness_H11
        if memory.added_A11S is not None:
            scores_AHQS = scores_AHQS.add_(memory.added_A11S)
        return scores_AHQS.softmax(-1)

    def forward(self, inputs_ND: Tensor, memory: FastMemory, layer: int, before: int) -> Tensor:
        """The mixed values of decoder states after `before` target positions, without the last projection -> ND."""
        mixed_AHQE = self.weights(inputs_ND, memory, layer, before) @ memory.layers[layer].value_AHSE
        return mixed_AHQE.transpose(1, 2).reshape(inputs_ND.shape)
