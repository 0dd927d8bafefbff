"""Linear attention: what a position sees of the past is a sum, so that the past takes the same room at any length.

Katharopoulos et al., "Transformers are RNNs", 2020. With φ(x) = elu(x) + 1, position t gets

    S_t = γ S_{t-1} + φ(k_t) v_tᵀ      z_t = γ z_{t-1} + φ(k_t)      out_t = φ(q_t)·S_t / φ(q_t)·z_t

As published γ is 1, and order means nothing. A γ below 1 for each head (Sun et al., "Retentive Network", 2023) makes
what is further back count less, so that heads of short and of long memory can tell near from far. The two sums are all
that is carried on; many positions at once are read in chunks, as a product of matrices inside and a sum between them.
Legend: B batch, T time, N = B·T positions or chunks, C positions of a chunk, H heads, D width, E width of a head,
Y = E + 1, X = 3·D.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from chainrule.layers.dropout import drop

CHUNK = 64
"""Positions that are read as one product; more would do more work, fewer more calls."""

TINY = 1e-6
"""Added to what is divided by: all features of a key may be as good as zero."""

SPANS = (2.0, 256.0)
"""How many positions the heads of shortest and of longest memory remember at first; the others lie between."""


class LinearState(NamedTuple):
    """All that is remembered of a prefix."""

    sum_BHEE: Tensor  # of key features times values
    norm_BHE: Tensor  # of key features


def linear_attention(
    query_BHTE: Tensor,
    key_BHTE: Tensor,
    value_BHTE: Tensor,
    state: LinearState | None = None,
    decay_H: Tensor | None = None,
) -> tuple[Tensor, LinearState]:
    """What T ≥ 1 positions after those in the state find -> BHTE, and the state after them. None: nothing before.

    `decay_H` is γ of each head, in (0, 1]; None: 1. Sums are of float32 at least, whatever the inputs are.
    """
    if torch.is_autocast_enabled(value_BHTE.device.type):
        with torch.autocast(value_BHTE.device.type, enabled=False):
            return linear_attention(query_BHTE, key_BHTE, value_BHTE, state, decay_H)
    kind = value_BHTE.dtype
    if kind.itemsize < 4:
        query_BHTE, key_BHTE, value_BHTE = query_BHTE.float(), key_BHTE.float(), value_BHTE.float()
    parts = F.elu(query_BHTE).add_(1), F.elu(key_BHTE).add_(1), value_BHTE
    found_BHTE, state = (_step if value_BHTE.shape[2] == 1 else _chunked)(*parts, state, decay_H)
    return found_BHTE.to(kind), state


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
    """Many positions: the whole chunks together, then what is left over."""
    T = value_BHTE.shape[2]
    # A last value of 1 makes the sum of features one more column of the sum of products, and so of all that follows.
    parts = query_BHTE, key_BHTE, F.pad(value_BHTE, (0, 1), value=1.0)
    carried_BHEY = None if state is None else torch.cat([state.sum_BHEE, state.norm_BHE[..., None]], 3)
    sizes = [T - T % CHUNK, T % CHUNK] if T > CHUNK and T % CHUNK else [T]
    found = []
    for query, key, value in zip(*(part.split(sizes, 2) for part in parts), strict=True):
        found_BHTY, carried_BHEY = _read_chunks(query, key, value, carried_BHEY, decay_H)
        found.append(found_BHTY)
    found_BHTY = found[0] if len(found) == 1 else torch.cat(found, 2)
    assert carried_BHEY is not None
    return found_BHTY[..., :-1] / (found_BHTY[..., -1:] + TINY), LinearState(
        carried_BHEY[..., :-1], carried_BHEY[..., -1]
    )


def _read_chunks(
    query_BHTE: Tensor, key_BHTE: Tensor, value_BHTY: Tensor, carried_BHEY: Tensor | None, decay_H: Tensor | None
) -> tuple[Tensor, Tensor]:
    """T positions that are chunks of C each -> Σ γ^(t-i) φ(q_t)·φ(k_i) v_i of each, BHTY, and what is carried on."""
    size = min(value_BHTY.shape[2], CHUNK)
    query_BHNCE, key_BHNCE, value_BHNCY = (part.unflatten(2, (-1, size)) for part in (query_BHTE, key_BHTE, value_BHTY))
    scores_BHNCC = query_BHNCE @ key_BHNCE.transpose(3, 4)
    if decay_H is None:
        scores_BHNCC, passed_H11 = scores_BHNCC.tril(), None
    else:
        place_C = torch.arange(size, device=decay_H.device)
        gone_HCC = decay_H[:, None, None] ** (place_C[:, None] - place_C).clamp(min=0)
        scores_BHNCC = scores_BHNCC * gone_HCC.tril()[:, None]
        key_BHNCE = key_BHNCE * gone_HCC[:, None, -1, :, None]  # as they count for what comes after the chunk
        query_BHNCE = query_BHNCE * (gone_HCC[:, None, :, :1] * decay_H[:, None, None, None])  # what came before it
        passed_H11 = decay_H[:, None, None] ** size
    found_BHNCY = scores_BHNCC @ value_BHNCY
    before_BHNEY, carried_BHEY = _carry(key_BHNCE.transpose(3, 4) @ value_BHNCY, carried_BHEY, passed_H11)
    if before_BHNEY is not None:
        found_BHNCY = found_BHNCY + query_BHNCE @ before_BHNEY
    return found_BHNCY.flatten(2, 3), carried_BHEY


def _carry(added_BHNEY: Tensor, carried_BHEY: Tensor | None, passed_H11: Tensor | None) -> tuple[Tensor | None, Tensor]:
    """What each chunk adds -> what stands before each, None if nothing does, and what stands after the last.

    `passed_H11` is what is left of a sum when a chunk has passed.
    """
    first_BHEY, *others = added_BHNEY.unbind(2)
    if carried_BHEY is None and not others:
        return None, first_BHEY
    before = [torch.zeros_like(first_BHEY) if carried_BHEY is None else carried_BHEY]
    for added_BHEY in (first_BHEY, *others):
        left_BHEY = before[-1] if passed_H11 is None else before[-1] * passed_H11
        before.append(left_BHEY + added_BHEY)
    return torch.stack(before[:-1], 2), before[-1]


def attend_linearly(
    projected_NX: Tensor, batch: int, heads: int, state: LinearState | None, decay_H: Tensor | None = None
) -> tuple[Tensor, LinearState]:
    """Linear self-attention of `batch` rows that stand one after the other.

    projected_NX holds query, key and value of each position side by side -> ND, and the state after the last.
    """
    T, E = len(projected_NX) // batch, projected_NX.shape[1] // (3 * heads)
    if T == 1:  # a step: nothing has to change its place
        query, key, value = projected_NX.view(batch, 3, heads, 1, E).unbind(1)
    else:
        query, key, value = projected_NX.view(batch, T, 3, heads, E).permute(2, 0, 3, 1, 4).unbind(0)
    found_BHTE, state = linear_attention(query, key, value, state, decay_H)
    return found_BHTE.transpose(1, 2).reshape(len(projected_NX), heads * E), state


def empty_state(batch: int, heads: int, head_width: int, like: Tensor) -> LinearState:
    """The state of `batch` empty prefixes."""
    kind = like.dtype if like.dtype.itemsize >= 4 else torch.float32
    sum_BHEE = like.new_zeros(batch, heads, head_width, head_width, dtype=kind)
    return LinearState(sum_BHEE, sum_BHEE[:, :, 0])


class Decay(nn.Module):
    """γ of each head, learned: at first they remember from few positions to many, in equal ratios."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        shortest, longest = (torch.tensor(span).log() for span in SPANS)
        span_H = torch.linspace(float(shortest), float(longest), heads).exp()
        self.logit_H = nn.Parameter((span_H - 1).log())  # γ = 1 - 1/span

    def forward(self) -> Tensor:
        return self.logit_H.sigmoid()


class LinearSelfAttention(nn.Module):
    """Every position attends linearly to itself and to those before it."""

    def __init__(self, width: int, heads: int, *, dropout: float = 0.0, decay: bool = True, bias: bool = False) -> None:
        super().__init__()
        self.heads, self.head_width, self.dropout = heads, width // heads, dropout
        self.project_in = nn.Linear(width, 3 * width, bias=bias)
        self.project_out = nn.Linear(width, width, bias=bias)
        self.decay = Decay(heads) if decay else None

    def start(self, batch: int) -> LinearState:
        """The state before the first position."""
        return empty_state(batch, self.heads, self.head_width, self.project_in.weight)

    def forward(self, inputs_BTD: Tensor, state: LinearState | None) -> tuple[Tensor, LinearState | None]:
        """inputs_BTD after those in the state -> BTD and the state after them. None: begin, and keep no state."""
        decay_H = None if self.decay is None else self.decay()
        projected_NX = self.project_in(inputs_BTD).flatten(0, 1)
        mixed_ND, after = attend_linearly(projected_NX, len(inputs_BTD), self.heads, state, decay_H)
        outputs_BTD = self.project_out(mixed_ND).view(inputs_BTD.shape)
        return drop(outputs_BTD, self.dropout, training=self.training), after if state is not None else None
