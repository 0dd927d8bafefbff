"""Slow multi-head attention: how much a query and a key agree is the length of what is left of their sum.

    e_ij = ‖ReLU(Wq x_i + Wk x_j)‖₂ / √E        a_ij = softmax_j e_ij        out_i = Wo ((Σ_j a_ij Wv x_j) ⊙ σ(Wg x_i))

Each head does so by itself, and the gate makes it a gated linear unit (Dauphin et al., 2017). Every pair of positions
needs E numbers of its own, which is what is slow. A kernel adds them up pair by pair, so that their table is never
held; where it does not serve, some queries at a time are taken, and the gradient computes them again.

The length grows in proportion with Wq and Wk, so that these say how sharp the attention is. A learned factor beside
them, 8 or 32 at first, made the attention sharper and the model slower to learn.
Legend: B rows, S places of the longest row, N positions of all rows, M = B·S with padding, D width, H heads, E width of
a head, Y = 2·D (query and key), C queries of a chunk.
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

from chainrule.base.compiling import left_out
from chainrule.layers.dropout import dropout

Direction = Literal["both", "left-to-right", "right-to-left"]
AHEAD: dict[Direction, bool] = {"both": True, "left-to-right": False, "right-to-left": True}
BEHIND: dict[Direction, bool] = {"both": True, "left-to-right": True, "right-to-left": False}
"""Whether a position sees those after it, and those before it."""

CHUNK = 2**20
"""About how many numbers are held at once without the kernel: the sums of some queries with all keys."""

SHARE = 2**21
"""How many sums are worth a thread of their own."""


class Rows:
    """N positions of B rows, one row after the other, each with as many as it has: no padding stands between them."""

    __slots__ = ("_from_padded_N", "_to_padded_M", "lengths_B", "longest", "real_BS", "starts_B")

    def __init__(self, lengths_B: Tensor, longest: int, *, even: bool) -> None:
        """`even`: all rows are of the same length."""
        self.lengths_B, self.longest = lengths_B, longest
        self.starts_B = lengths_B.cumsum(0) - lengths_B
        self.real_BS = self._from_padded_N = self._to_padded_M = None
        if not even:
            places_S = torch.arange(longest, device=lengths_B.device)
            self.real_BS = places_S < lengths_B[:, None]
            self._from_padded_N = self.real_BS.flatten().nonzero().squeeze(1)
            # What stands in the padding is never seen: whatever is at hand.
            last_B1 = (lengths_B - 1)[:, None]
            self._to_padded_M = (self.starts_B[:, None] + torch.minimum(places_S, last_B1)).flatten()

    @classmethod
    def of(cls, kept_BS: Tensor) -> Rows:
        """The rows that are left when those positions are kept."""
        lengths_B = kept_BS.sum(1)
        shortest, longest = (int(length) for length in torch.aminmax(lengths_B))
        return cls(lengths_B, longest, even=shortest == longest)

    def pad(self, flat_ND: Tensor) -> Tensor:
        """ND -> BSD; anything may stand in the padding."""
        padded_MD = flat_ND if self._to_padded_M is None else flat_ND.index_select(0, self._to_padded_M)
        return padded_MD.view(len(self.lengths_B), self.longest, -1)

    def unpad(self, padded_BSD: Tensor) -> Tensor:
        """BSD -> ND."""
        padded_MD = padded_BSD.flatten(0, 1)
        return padded_MD if self._from_padded_N is None else padded_MD.index_select(0, self._from_padded_N)


class Sight:
    """Who sees whom in rows that are read in a direction."""

    __slots__ = ("added", "direction", "rows")

    def __init__(self, rows: Rows, direction: Direction, like: Tensor) -> None:
        """What is added to the scores is of the kind of `like`: (B or 1, 1, S or 1, S), or None if all see all."""
        self.rows, self.direction = rows, direction
        seen = None if rows.real_BS is None else rows.real_BS[:, None, None]
        if direction != "both":
            square_SS = torch.ones(rows.longest, rows.longest, dtype=torch.bool, device=like.device)
            ordered_SS = square_SS.tril() if BEHIND[direction] else square_SS.triu()
            # A query that is padding sees all, so that its weights are numbers.
            seen = ordered_SS[None, None] if seen is None else seen & ordered_SS | ~seen.transpose(2, 3)
        self.added = None if seen is None else like.new_zeros(seen.shape).masked_fill_(~seen, -torch.inf)


# The energies, pair by pair. Of what may make sums quicker, nothing promises that there is no infinity; views of rows
# have indices that cannot be negative, without which the compiler would not use vectors.

QUICK = {"reassoc", "contract", "nsz"}


@njit(cache=True, nogil=True, fastmath=QUICK)
def _energies(first, end, pairs, starts, lengths, ahead, behind, energies):  # type: ignore[no-untyped-def]
    """Fill BHSS of the rows from `first` to `end` with ‖ReLU(q_i + k_j)‖ of the pairs NY that see each other."""
    heads, width = energies.shape[1], pairs.shape[1] // 2
    inside, zero = width // heads, pairs.dtype.type(0)
    for row in range(first, end):
        own = pairs[starts[row] : starts[row] + lengths[row]]
        for at in range(heads):
            for i in range(len(own)):
                query = own[i, at * inside : (at + 1) * inside]
                for j in range(0 if behind else i, len(own) if ahead else i + 1):
                    key = own[j, width + at * inside : width + (at + 1) * inside]
                    total = zero
                    for e in range(inside):
                        summed = query[e] + key[e]
                        summed = summed if summed > 0 else zero
                        total += summed * summed
                    energies[row, at, i, j] = np.sqrt(total)


@njit(cache=True, nogil=True, fastmath=QUICK)
def _gradients(first, end, pairs, starts, lengths, ahead, behind, slopes, grad_pairs):  # type: ignore[no-untyped-def]
    """Fill NY with the sums of slope · ReLU(q_i + k_j) over the pairs of each query, and over those of each key."""
    heads, width = slopes.shape[1], pairs.shape[1] // 2
    inside, zero = width // heads, pairs.dtype.type(0)
    grad_query = np.empty(inside, pairs.dtype)
    for row in range(first, end):
        own = pairs[starts[row] : starts[row] + lengths[row]]
        grad_own = grad_pairs[starts[row] : starts[row] + lengths[row]]
        for at in range(heads):
            for i in range(len(own)):
                query = own[i, at * inside : (at + 1) * inside]
                grad_query[:] = 0
                for j in range(0 if behind else i, len(own) if ahead else i + 1):
                    slope = slopes[row, at, i, j]
                    key = own[j, width + at * inside : width + (at + 1) * inside]
                    grad_key = grad_own[j, width + at * inside : width + (at + 1) * inside]
                    for e in range(inside):
                        summed = query[e] + key[e]
                        summed = slope * summed if summed > 0 else zero
                        grad_query[e] += summed
                        grad_key[e] += summed
                grad_own[i, at * inside : (at + 1) * inside] = grad_query


def _run(kernel: Callable[..., None], pairs_NY: Tensor, sight: Sight, *tables: Tensor) -> None:
    """Run a kernel over all rows, on several threads where it is worth it."""
    rows, direction = sight.rows, sight.direction
    arrays = [tensor.detach().numpy() for tensor in (pairs_NY, rows.starts_B, rows.lengths_B)]
    rest = (*arrays, AHEAD[direction], BEHIND[direction], *(table.detach().numpy() for table in tables))
    B = len(rows.lengths_B)
    sums = len(pairs_NY) * rows.longest * pairs_NY.shape[1] // 2
    threads = min(torch.get_num_threads(), B, 1 + sums // SHARE)
    if threads == 1:
        kernel(0, B, *rest)
        return
    cuts = [B * part // threads for part in range(threads + 1)]
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda first, end: kernel(first, end, *rest), cuts[:-1], cuts[1:]))


# The same without the kernel


def _sums(pairs_NY: Tensor, sight: Sight, heads: int) -> Iterator[tuple[slice, Tensor]]:
    """ReLU(query + key), some queries at a time: which they are, and BHCSE for these."""
    query_BHSE, key_BHSE = sight.rows.pad(pairs_NY).unflatten(2, (2, heads, -1)).permute(2, 0, 3, 1, 4)
    step = max(1, CHUNK // key_BHSE.numel())
    for start in range(0, sight.rows.longest, step):
        part = slice(start, start + step)
        yield part, torch.add(query_BHSE[:, :, part, None], key_BHSE[:, :, None]).relu_()


def _chunked_energies(pairs_NY: Tensor, sight: Sight, heads: int) -> Tensor:
    return torch.cat(
        [torch.linalg.vector_norm(sums_BHCSE, dim=4) for _, sums_BHCSE in _sums(pairs_NY, sight, heads)], 2
    )


def _chunked_gradients(pairs_NY: Tensor, sight: Sight, slopes_BHSS: Tensor) -> Tensor:
    B, H, S, _ = slopes_BHSS.shape
    grad_2BHSE = pairs_NY.new_zeros(2, B, H, S, pairs_NY.shape[1] // (2 * H))
    for part, sums_BHCSE in _sums(pairs_NY, sight, H):
        sums_BHCSE *= slopes_BHSS[:, :, part, :, None]
        grad_2BHSE[0, :, :, part] = sums_BHCSE.sum(3)
        grad_2BHSE[1] += sums_BHCSE.sum(2)
    return sight.rows.unpad(grad_2BHSE.permute(1, 3, 0, 2, 4).flatten(2))


class Energies(torch.autograd.Function):
    """‖ReLU(q_i + k_j)‖ / √E of every pair of a row, BHSS, from queries and keys side by side, NY."""

    @staticmethod
    def forward(ctx: Any, pairs_NY: Tensor, sight: Sight, heads: int) -> Tensor:
        energies_BHSS = compute_energies(pairs_NY, sight, heads)
        ctx.sight = sight
        ctx.save_for_backward(pairs_NY, energies_BHSS)
        return energies_BHSS

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_BHSS: Tensor) -> tuple[Tensor, None, None]:
        pairs_NY, energies_BHSS = ctx.saved_tensors
        width = pairs_NY.shape[1] // (2 * energies_BHSS.shape[1])
        # Of the length itself the slope is ReLU(…) / length; where nothing is left of a sum, it is zero.
        slopes_BHSS = (grad_BHSS / (energies_BHSS * width)).masked_fill_(energies_BHSS == 0, 0.0)
        if ctx.sight.rows.real_BS is not None or ctx.sight.direction != "both":
            slopes_BHSS.masked_fill_(ctx.sight.added == -torch.inf, 0.0)
        if not _kernel_serves(pairs_NY):
            return _chunked_gradients(pairs_NY, ctx.sight, slopes_BHSS), None, None
        grad_pairs_NY = torch.zeros_like(pairs_NY)
        _run(_gradients, pairs_NY, ctx.sight, slopes_BHSS, grad_pairs_NY)
        return grad_pairs_NY, None, None


def _kernel_serves(pairs_NY: Tensor) -> bool:
    return pairs_NY.device.type == "cpu" and pairs_NY.dtype in (torch.float32, torch.float64)


def compute_energies(pairs_NY: Tensor, sight: Sight, heads: int) -> Tensor:
    """The energies without a gradient -> BHSS; of pairs that do not see each other they are any numbers."""
    width = pairs_NY.shape[1] // (2 * heads)
    if not _kernel_serves(pairs_NY):
        return _chunked_energies(pairs_NY, sight, heads).mul_(width**-0.5)
    S = sight.rows.longest
    energies_BHSS = pairs_NY.new_zeros(len(sight.rows.lengths_B), heads, S, S)
    _run(_energies, pairs_NY.contiguous(), sight, energies_BHSS)
    return energies_BHSS.mul_(width**-0.5)


energies_with_gradient = left_out(Energies.apply)
energies_alone = left_out(compute_energies)


def slow_energies(pairs_NY: Tensor, sight: Sight, heads: int) -> Tensor:
    """The energy of every pair of positions of a row -> BHSS; of pairs that do not see each other it is any number."""
    grown = torch.is_grad_enabled() and pairs_NY.requires_grad
    energies_BHSS: Tensor = (energies_with_gradient if grown else energies_alone)(pairs_NY, sight, heads)
    return energies_BHSS


class SlowAttention(nn.Module):
    """Every position attends to those of its row that it sees."""

    def __init__(self, width: int, heads: int, *, dropout: float) -> None:
        """`dropout` is of the attention weights."""
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.project_pairs = nn.Linear(width, 2 * width)
        self.project_values = nn.Linear(width, 2 * width)  # values, and the gate
        self.project_out = nn.Linear(width, width, bias=False)

    def weights(self, inputs_ND: Tensor, sight: Sight) -> Tensor:
        """The attention weights, BHSS."""
        scores_BHSS = slow_energies(self.project_pairs(inputs_ND), sight, self.heads)
        return (scores_BHSS if sight.added is None else scores_BHSS + sight.added).softmax(-1)

    def forward(self, inputs_ND: Tensor, sight: Sight) -> Tensor:
        """The positions of all rows, one row after the other -> what each finds, before the last projection, ND."""
        weights_BHSS = self.weights(inputs_ND, sight)
        if self.training and self.dropout:
            weights_BHSS = dropout(weights_BHSS, self.dropout)
        value_ND, gate_ND = self.project_values(inputs_ND).chunk(2, -1)
        value_BHSE = sight.rows.pad(value_ND.contiguous()).unflatten(2, (self.heads, -1)).transpose(1, 2)
        mixed_ND = sight.rows.unpad((weights_BHSS @ value_BHSE).transpose(1, 2).flatten(2))
        gated_ND: Tensor = mixed_ND * gate_ND.sigmoid()
        return gated_ND


def initialise_slow(attention: SlowAttention, deviation: float) -> None:
    """Queries and keys so that sums of unit inputs have that deviation."""
    width = attention.project_out.in_features
    nn.init.normal_(attention.project_pairs.weight, std=deviation * width**-0.5)
    for bias in (attention.project_pairs.bias, attention.project_values.bias):
        nn.init.zeros_(bias)
