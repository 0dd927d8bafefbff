"""Slow multi-head attention: the score of a query and a key is the norm of the rectified sum of the two.

    e_ij = ‖ReLU(Wq x_i + Wk x_j)‖₂ / √E        a_ij = softmax_j e_ij        out_i = Wo ((Σ_j a_ij Wv x_j) ⊙ σ(Wg x_i))

Each head does so separately, and the gate makes it a gated linear unit (Dauphin et al., 2017). Every pair of positions
needs E numbers, which is what makes it slow. A kernel sums them pair by pair and never stores their table. Where the
kernel cannot run, torch computes M queries at a time, and the backward pass computes the sums again.

The norm is proportional to Wq and Wk, so these determine how sharp the attention is. An additional learned factor with
an initial value of 8 or 32 made the attention sharper and the model slower to learn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import numpy as np
import torch
from numba import njit
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from chainrule.base.compiling import uncompiled
from chainrule.base.kernels import FAST_MATH, kernel_supports
from chainrule.layers.dropout import dropout
from chainrule.layers.fused.linear import Linear

Direction = Literal["both", "left-to-right", "right-to-left"]
SEES_LATER: dict[Direction, bool] = {"both": True, "left-to-right": False, "right-to-left": True}
SEES_EARLIER: dict[Direction, bool] = {"both": True, "left-to-right": True, "right-to-left": False}
"""Whether a position sees those after it, and those before it."""

CHUNK = 2**20
"""Approximate number of values held at once without the kernel: the sums of some queries with all keys."""

SUMS_PER_THREAD = 2**21
"""Number of sums that justifies a thread."""


class PackedRows:
    """N positions of B rows, concatenated without padding; S is the length of the longest row."""

    __slots__ = ("_packed_index", "_padded_index_N", "lengths_B", "longest", "real_BS", "starts_B")

    def __init__(self, lengths_B: Tensor, longest: int, *, even: bool) -> None:
        """`even`: all rows have the same length. `real_BS` is then None, else False at padding."""
        self.lengths_B, self.longest = lengths_B, longest
        self.starts_B = lengths_B.cumsum(0) - lengths_B
        self.real_BS = self._padded_index_N = self._packed_index = None
        if not even:
            places_S = torch.arange(longest, device=lengths_B.device)
            self.real_BS = places_S < lengths_B[:, None]
            self._padded_index_N = self.real_BS.flatten().nonzero().squeeze(1)
            # The contents of the padding are never used: it repeats the last position of the row.
            last_B1 = (lengths_B - 1)[:, None]
            self._packed_index = (self.starts_B[:, None] + torch.minimum(places_S, last_B1)).flatten()

    @classmethod
    def from_mask(cls, kept_BS: Tensor) -> PackedRows:
        """The rows that consist of the kept positions."""
        lengths_B = kept_BS.sum(1)
        shortest, longest = (int(length) for length in torch.aminmax(lengths_B))
        return cls(lengths_B, longest, even=shortest == longest)

    def pad(self, packed_ND: Tensor) -> Tensor:
        """ND -> BSD; the padding may contain anything."""
        padded = packed_ND if self._packed_index is None else packed_ND.index_select(0, self._packed_index)
        return padded.view(len(self.lengths_B), self.longest, -1)

    def unpad(self, padded_BSD: Tensor) -> Tensor:
        """BSD -> ND."""
        padded = padded_BSD.flatten(0, 1)
        return padded if self._padded_index_N is None else padded.index_select(0, self._padded_index_N)


class Visibility:
    """Which positions see each other in rows that are read in a direction."""

    __slots__ = ("direction", "mask", "rows")

    def __init__(self, rows: PackedRows, direction: Direction, like: Tensor) -> None:
        """`mask` is added to the scores: (B or 1, 1, S or 1, S) in the type of `like`; None: all see all."""
        self.rows, self.direction = rows, direction
        seen = None if rows.real_BS is None else rows.real_BS[:, None, None]
        if direction != "both":
            square_SS = torch.ones(rows.longest, rows.longest, dtype=torch.bool, device=like.device)
            ordered_SS = square_SS.tril() if SEES_EARLIER[direction] else square_SS.triu()
            # A query that is padding sees all, so that its weights are numbers.
            seen = ordered_SS[None, None] if seen is None else seen & ordered_SS | ~seen.transpose(2, 3)
        self.mask = None if seen is None else like.new_zeros(seen.shape).masked_fill_(~seen, -torch.inf)


# The energies by the kernel. It slices views of the rows: their indices cannot be negative, without which the compiler
# would not use vector instructions.


@njit(cache=True, nogil=True, fastmath=FAST_MATH)
def _energies(first, end, pairs, starts, lengths, later, earlier, energies):  # type: ignore[no-untyped-def]
    """Fill BHSS of the rows from `first` to `end` with ‖ReLU(q_i + k_j)‖ of the pairs NX that see each other."""
    heads, width = energies.shape[1], pairs.shape[1] // 2
    inside, zero = width // heads, pairs.dtype.type(0)
    for row in range(first, end):
        own = pairs[starts[row] : starts[row] + lengths[row]]
        for head in range(heads):
            for i in range(len(own)):
                query = own[i, head * inside : (head + 1) * inside]
                for j in range(0 if earlier else i, len(own) if later else i + 1):
                    key = own[j, width + head * inside : width + (head + 1) * inside]
                    total = zero
                    for e in range(inside):
                        summed = query[e] + key[e]
                        summed = summed if summed > 0 else zero
                        total += summed * summed
                    energies[row, head, i, j] = np.sqrt(total)


@njit(cache=True, nogil=True, fastmath=FAST_MATH)
def _gradients(first, end, pairs, starts, lengths, later, earlier, slopes, grad_pairs):  # type: ignore[no-untyped-def]
    """Fill NX with the sums of slope · ReLU(q_i + k_j) over the pairs of each query, and over those of each key."""
    heads, width = slopes.shape[1], pairs.shape[1] // 2
    inside, zero = width // heads, pairs.dtype.type(0)
    grad_query = np.empty(inside, pairs.dtype)
    for row in range(first, end):
        own = pairs[starts[row] : starts[row] + lengths[row]]
        grad_own = grad_pairs[starts[row] : starts[row] + lengths[row]]
        for head in range(heads):
            for i in range(len(own)):
                query = own[i, head * inside : (head + 1) * inside]
                grad_query[:] = 0
                for j in range(0 if earlier else i, len(own) if later else i + 1):
                    slope = slopes[row, head, i, j]
                    key = own[j, width + head * inside : width + (head + 1) * inside]
                    grad_key = grad_own[j, width + head * inside : width + (head + 1) * inside]
                    for e in range(inside):
                        summed = query[e] + key[e]
                        summed = slope * summed if summed > 0 else zero
                        grad_query[e] += summed
                        grad_key[e] += summed
                grad_own[i, head * inside : (head + 1) * inside] = grad_query


def _run(kernel: Callable[..., None], pairs_NX: Tensor, visible: Visibility, *tables: Tensor) -> None:
    """Run a kernel over all rows, on several threads if there is enough work."""
    rows, direction = visible.rows, visible.direction
    arrays = [tensor.detach().numpy() for tensor in (pairs_NX, rows.starts_B, rows.lengths_B)]
    rest = (*arrays, SEES_LATER[direction], SEES_EARLIER[direction], *(table.detach().numpy() for table in tables))
    B = len(rows.lengths_B)
    sums = len(pairs_NX) * rows.longest * pairs_NX.shape[1] // 2
    threads = min(torch.get_num_threads(), B, 1 + sums // SUMS_PER_THREAD)
    if threads == 1:
        kernel(0, B, *rest)
        return
    cuts = [B * part // threads for part in range(threads + 1)]
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda first, end: kernel(first, end, *rest), cuts[:-1], cuts[1:]))


# The energies without the kernel


def _sums(pairs_NX: Tensor, visible: Visibility, heads: int) -> Iterator[tuple[slice, Tensor]]:
    """ReLU(query + key) for some queries at a time: the slice of the M queries, and their sums BHMSE."""
    query_BHSE, key_BHSE = visible.rows.pad(pairs_NX).unflatten(2, (2, heads, -1)).permute(2, 0, 3, 1, 4)
    step = max(1, CHUNK // key_BHSE.numel())
    for start in range(0, visible.rows.longest, step):
        part = slice(start, start + step)
        yield part, torch.add(query_BHSE[:, :, part, None], key_BHSE[:, :, None]).relu_()


def _chunked_energies(pairs_NX: Tensor, visible: Visibility, heads: int) -> Tensor:
    return torch.cat(
        [torch.linalg.vector_norm(sums_BHMSE, dim=4) for _, sums_BHMSE in _sums(pairs_NX, visible, heads)], 2
    )


def _chunked_gradients(pairs_NX: Tensor, visible: Visibility, slopes_BHSS: Tensor) -> Tensor:
    B, H, S, _ = slopes_BHSS.shape
    grad_2BHSE = pairs_NX.new_zeros(2, B, H, S, pairs_NX.shape[1] // (2 * H))
    for part, sums_BHMSE in _sums(pairs_NX, visible, H):
        sums_BHMSE *= slopes_BHSS[:, :, part, :, None]
        grad_2BHSE[0, :, :, part] = sums_BHMSE.sum(3)
        grad_2BHSE[1] += sums_BHMSE.sum(2)
    return visible.rows.unpad(grad_2BHSE.permute(1, 3, 0, 2, 4).flatten(2))


class Energies(torch.autograd.Function):
    """‖ReLU(q_i + k_j)‖ / √E of every pair of a row, BHSS, from queries and keys side by side, NX."""

    @staticmethod
    def forward(ctx: Any, pairs_NX: Tensor, visible: Visibility, heads: int) -> Tensor:
        energies_BHSS = compute_energies(pairs_NX, visible, heads)
        ctx.visible = visible
        ctx.save_for_backward(pairs_NX, energies_BHSS)
        return energies_BHSS

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_BHSS: Tensor) -> tuple[Tensor, None, None]:
        pairs_NX, energies_BHSS = ctx.saved_tensors
        width = pairs_NX.shape[1] // (2 * energies_BHSS.shape[1])
        # The slope of the norm is ReLU(…) / norm; where the sum is all zero, so is the slope.
        slopes_BHSS = (grad_BHSS / (energies_BHSS * width)).masked_fill_(energies_BHSS == 0, 0.0)
        if ctx.visible.rows.real_BS is not None or ctx.visible.direction != "both":
            slopes_BHSS.masked_fill_(ctx.visible.mask == -torch.inf, 0.0)
        if not _has_kernel(pairs_NX):
            return _chunked_gradients(pairs_NX, ctx.visible, slopes_BHSS), None, None
        grad_pairs_NX = torch.zeros_like(pairs_NX)
        _run(_gradients, pairs_NX, ctx.visible, slopes_BHSS, grad_pairs_NX)
        return grad_pairs_NX, None, None


def _has_kernel(pairs_NX: Tensor) -> bool:
    return kernel_supports(pairs_NX, torch.float32, torch.float64)


def compute_energies(pairs_NX: Tensor, visible: Visibility, heads: int) -> Tensor:
    """The energies without a gradient -> BHSS; those of pairs that do not see each other are undefined."""
    width = pairs_NX.shape[1] // (2 * heads)
    if not _has_kernel(pairs_NX):
        return _chunked_energies(pairs_NX, visible, heads).mul_(width**-0.5)
    S = visible.rows.longest
    energies_BHSS = pairs_NX.new_zeros(len(visible.rows.lengths_B), heads, S, S)
    _run(_energies, pairs_NX.contiguous(), visible, energies_BHSS)
    return energies_BHSS.mul_(width**-0.5)


energies_with_gradient = uncompiled(Energies.apply)
energies_without_gradient = uncompiled(compute_energies)


def slow_energies(pairs_NX: Tensor, visible: Visibility, heads: int) -> Tensor:
    """The energy of every pair of positions of a row -> BHSS; undefined for pairs that do not see each other."""
    needs_gradient = torch.is_grad_enabled() and pairs_NX.requires_grad
    compute = energies_with_gradient if needs_gradient else energies_without_gradient
    energies_BHSS: Tensor = compute(pairs_NX, visible, heads)
    return energies_BHSS


class SlowAttention(nn.Module):
    """Every position attends to those of its row that it sees."""

    def __init__(self, width: int, heads: int, *, dropout: float) -> None:
        """`dropout` is the share of the attention weights that is dropped."""
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.project_pairs = Linear(width, 2 * width)  # queries and keys
        self.project_values = Linear(width, 2 * width)  # values and gates
        self.project_out = Linear(width, width, bias=False)

    def weights(self, inputs_ND: Tensor, visible: Visibility) -> Tensor:
        """The attention weights, BHSS."""
        scores_BHSS = slow_energies(self.project_pairs(inputs_ND), visible, self.heads)
        return (scores_BHSS if visible.mask is None else scores_BHSS + visible.mask).softmax(-1)

    def forward(self, inputs_ND: Tensor, visible: Visibility) -> Tensor:
        """The positions of all rows, concatenated -> the gated values of each, without the last projection, ND."""
        weights_BHSS = self.weights(inputs_ND, visible)
        if self.training and self.dropout:
            weights_BHSS = dropout(weights_BHSS, self.dropout)
        value_ND, gate_ND = self.project_values(inputs_ND).chunk(2, -1)
        value_BHSE = visible.rows.pad(value_ND.contiguous()).unflatten(2, (self.heads, -1)).transpose(1, 2)
        mixed_ND = visible.rows.unpad((weights_BHSS @ value_BHSE).transpose(1, 2).flatten(2))
        gated_ND: Tensor = mixed_ND * gate_ND.sigmoid()
        return gated_ND


def initialise_slow(attention: SlowAttention, deviation: float) -> None:
    """Initialise queries and keys so that, for unit inputs, they have this standard deviation."""
    width = attention.project_out.in_features
    nn.init.normal_(attention.project_pairs.weight, std=deviation * width**-0.5)
    for bias in (attention.project_pairs.bias, attention.project_values.bias):
        nn.init.zeros_(bias)
