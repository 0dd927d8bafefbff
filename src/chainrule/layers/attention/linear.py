"""Linear attention: a position reads the past as a sum, so that the past has the same size at any length.

Katharopoulos et al., "Transformers are RNNs", 2020. With φ(x) = elu(x) + 1, position t gets

    S_t = γ S_{t-1} + φ(k_t) v_tᵀ      z_t = γ z_{t-1} + φ(k_t)      out_t = φ(q_t)·S_t / φ(q_t)·z_t

As published γ is 1, and order has no effect. A γ below 1 for each head (Sun et al., "Retentive Network", 2023) gives
distant positions less weight, so that heads with short and long memory can distinguish near from far. S and z are the
whole state. Many positions at once are processed in N chunks of M positions: a product of matrices inside each chunk,
a sum between chunks. There values have X = E + 1 columns, of which the last is z.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from chainrule.layers.dropout import drop
from chainrule.layers.fused.linear import Linear

CHUNK = 64
"""Positions per chunk: larger chunks need more arithmetic, smaller ones more calls."""

TINY = 1e-6
"""Added to the divisor, since all features of a key may be close to zero."""

SPANS = (2.0, 256.0)
"""Initial memory, in positions, of the heads with the shortest and the longest one; the others lie between."""


class LinearState(NamedTuple):
    """The sums over a prefix."""

    sum_BHEE: Tensor  # key features times values
    norm_BHE: Tensor  # key features


def linear_attention(
    query_BHTE: Tensor,
    key_BHTE: Tensor,
    value_BHTE: Tensor,
    state: LinearState | None = None,
    decay_H: Tensor | None = None,
) -> tuple[Tensor, LinearState]:
    """Attention of T ≥ 1 positions after those in the state -> BHTE, and the state after them. None: no past.

    `decay_H` is γ of each head, in (0, 1]; None: 1. Sums are at least float32, whatever the type of the inputs.
    """
    if torch.is_autocast_enabled(value_BHTE.device.type):
        with torch.autocast(value_BHTE.device.type, enabled=False):
            return linear_attention(query_BHTE, key_BHTE, value_BHTE, state, decay_H)
    dtype = value_BHTE.dtype
    if dtype.itemsize < 4:
        query_BHTE, key_BHTE, value_BHTE = query_BHTE.float(), key_BHTE.float(), value_BHTE.float()
    parts = F.elu(query_BHTE).add_(1), F.elu(key_BHTE).add_(1), value_BHTE
    mixed_BHTE, state = (_step if value_BHTE.shape[2] == 1 else _chunked)(*parts, state, decay_H)
    return mixed_BHTE.to(dtype), state


def _step(
    query_BH1E: Tensor, key_BH1E: Tensor, value_BH1E: Tensor, state: LinearState | None, decay_H: Tensor | None
) -> tuple[Tensor, LinearState]:
    """One position, by the formula."""
    if state is None:
        sum_BHEE, norm_BHE = key_BH1E.transpose(2, 3) * value_BH1E, key_BH1E[:, :, 0]
    else:
        sum_BHEE, norm_BHE = state
        if decay_H is not None:
            sum_BHEE, norm_BHE = sum_BHEE * decay_H[:, None, None], norm_BHE * decay_H[:, None]
        sum_BHEE = torch.addcmul(sum_BHEE, key_BH1E.transpose(2, 3), value_BH1E)
        norm_BHE = norm_BHE + key_BH1E[:, :, 0]
    total_BH11 = query_BH1E @ norm_BHE[..., None]
    return query_BH1E @ sum_BHEE / (total_BH11 + TINY), LinearState(sum_BHEE, norm_BHE)


def _chunked(
    query_BHTE: Tensor, key_BHTE: Tensor, value_BHTE: Tensor, state: LinearState | None, decay_H: Tensor | None
) -> tuple[Tensor, LinearState]:
    """Many positions: all whole chunks together, then the remainder."""
    T = value_BHTE.shape[2]
    # A last value of 1 makes z one more column of S.
    parts = query_BHTE, key_BHTE, F.pad(value_BHTE, (0, 1), value=1.0)
    carried_BHEX = None if state is None else torch.cat([state.sum_BHEE, state.norm_BHE[..., None]], 3)
    sizes = [T - T % CHUNK, T % CHUNK] if T > CHUNK and T % CHUNK else [T]
    mixed = []
    for query, key, value in zip(*(part.split(sizes, 2) for part in parts), strict=True):
        mixed_BHTX, carried_BHEX = _read_chunks(query, key, value, carried_BHEX, decay_H)
        mixed.append(mixed_BHTX)
    mixed_BHTX = mixed[0] if len(mixed) == 1 else torch.cat(mixed, 2)
    assert carried_BHEX is not None
    return mixed_BHTX[..., :-1] / (mixed_BHTX[..., -1:] + TINY), LinearState(
        carried_BHEX[..., :-1], carried_BHEX[..., -1]
    )


def _read_chunks(
    query_BHTE: Tensor, key_BHTE: Tensor, value_BHTX: Tensor, carried_BHEX: Tensor | None, decay_H: Tensor | None
) -> tuple[Tensor, Tensor]:
    """T positions in whole chunks -> Σ γ^(t-i) φ(q_t)·φ(k_i) v_i of each, BHTX, and the sum after the last."""
    size = min(value_BHTX.shape[2], CHUNK)
    query_BHNME, key_BHNME, value_BHNMX = (part.unflatten(2, (-1, size)) for part in (query_BHTE, key_BHTE, value_BHTX))
    scores_BHNMM = query_BHNME @ key_BHNME.transpose(3, 4)
    if decay_H is None:
        scores_BHNMM, chunk_decay_H11 = scores_BHNMM.tril(), None
    else:
        place_M = torch.arange(size, device=decay_H.device)
        decay_HMM = decay_H[:, None, None] ** (place_M[:, None] - place_M).clamp(min=0)
        scores_BHNMM = scores_BHNMM * decay_HMM.tril()[:, None]
        key_BHNME = key_BHNME * decay_HMM[:, None, -1, :, None]  # their weight for the positions after the chunk
        query_BHNME = query_BHNME * (decay_HMM[:, None, :, :1] * decay_H[:, None, None, None])  # the sum before it
        chunk_decay_H11 = decay_H[:, None, None] ** size
    mixed_BHNMX = scores_BHNMM @ value_BHNMX
    before_BHNEX, carried_BHEX = _carry(key_BHNME.transpose(3, 4) @ value_BHNMX, carried_BHEX, chunk_decay_H11)
    if before_BHNEX is not None:
        mixed_BHNMX = mixed_BHNMX + query_BHNME @ before_BHNEX
    return mixed_BHNMX.flatten(2, 3), carried_BHEX


def _carry(
    added_BHNEX: Tensor, carried_BHEX: Tensor | None, chunk_decay_H11: Tensor | None
) -> tuple[Tensor | None, Tensor]:
    """The sum of each chunk -> the sum of everything before each chunk, None if there is nothing, and of everything.

    `chunk_decay_H11` is the factor by which a sum decays over one chunk.
    """
    first_BHEX, *others = added_BHNEX.unbind(2)
    if carried_BHEX is None and not others:
        return None, first_BHEX
    before = [torch.zeros_like(first_BHEX) if carried_BHEX is None else carried_BHEX]
    for added_BHEX in (first_BHEX, *others):
        decayed_BHEX = before[-1] if chunk_decay_H11 is None else before[-1] * chunk_decay_H11
        before.append(decayed_BHEX + added_BHEX)
    return torch.stack(before[:-1], 2), before[-1]


def attend_linearly(
    projected_NX: Tensor, batch: int, heads: int, state: LinearState | None, decay_H: Tensor | None = None
) -> tuple[Tensor, LinearState]:
    """Linear self-attention of `batch` rows, whose positions are concatenated row by row.

    projected_NX holds query, key and value of each position side by side -> ND, and the state after the last.
    """
    T, E = len(projected_NX) // batch, projected_NX.shape[1] // (3 * heads)
    if T == 1:  # one step: the layout needs no permutation
        query, key, value = projected_NX.view(batch, 3, heads, 1, E).unbind(1)
    else:
        query, key, value = projected_NX.view(batch, T, 3, heads, E).permute(2, 0, 3, 1, 4).unbind(0)
    mixed_BHTE, state = linear_attention(query, key, value, state, decay_H)
    return mixed_BHTE.transpose(1, 2).reshape(len(projected_NX), heads * E), state


def empty_state(batch: int, heads: int, head_width: int, like: Tensor) -> LinearState:
    """The state of `batch` empty prefixes, on the device of `like`."""
    dtype = like.dtype if like.dtype.itemsize >= 4 else torch.float32
    sum_BHEE = like.new_zeros(batch, heads, head_width, head_width, dtype=dtype)
    return LinearState(sum_BHEE, sum_BHEE[:, :, 0])


class Decay(nn.Module):
    """γ of each head, learned. Initially the heads remember from few to many positions, in equal ratios."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        shortest, longest = (torch.tensor(span).log() for span in SPANS)
        span_H = torch.linspace(float(shortest), float(longest), heads).exp()
        self.logit_H = nn.Parameter((span_H - 1).log())  # γ = 1 - 1/span

    def forward(self) -> Tensor:
        """γ, H."""
        return self.logit_H.sigmoid()


def head_decays(decay: Decay | None, heads: int) -> Tensor:
    """γ of each head, H: 1 without a decay."""
    return torch.ones(heads) if decay is None else decay.forward()


class LinearSelfAttention(nn.Module):
    """Every position attends linearly to itself and to those before it."""

    def __init__(self, width: int, heads: int, *, dropout: float = 0.0, decay: bool = True, bias: bool = False) -> None:
        super().__init__()
        self.heads, self.head_width, self.dropout = heads, width // heads, dropout
        self.project_in = Linear(width, 3 * width, bias=bias)
        self.project_out = Linear(width, width, bias=bias)
        self.decay = Decay(heads) if decay else None

    def decays(self) -> Tensor:
        """γ of each head, H."""
        return head_decays(self.decay, self.heads)

    def start(self, batch: int) -> LinearState:
        """The state before the first position."""
        return empty_state(batch, self.heads, self.head_width, self.project_in.weight)

    def forward(self, inputs_BTD: Tensor, state: LinearState | None) -> tuple[Tensor, LinearState | None]:
        """inputs_BTD after those in the state -> BTD and the state after them. None: no past, and no state returned."""
        decay_H = None if self.decay is None else self.decay()
        projected_NX = self.project_in(inputs_BTD).flatten(0, 1)
        mixed_ND, after = attend_linearly(projected_NX, len(inputs_BTD), self.heads, state, decay_H)
        outputs_BTD = self.project_out(mixed_ND).view(inputs_BTD.shape)
        return drop(outputs_BTD, self.dropout, training=self.training), after if state is not None else None
