"""Attention of a recurrent decoder to the states of an encoder.

    a_s = softmax_s score(h, e_s)        c = Σ a_s e_s        h~ = tanh(W [c; h])

Bahdanau et al., "Neural Machine Translation by Jointly Learning to Align and Translate", 2015 (the additive score);
Luong et al., "Effective Approaches to Attention-based Neural Machine Translation", 2015 (dot, general, location, h~).
Encoder states are E wide, decoder states U wide; keys and queries have X columns, which is U or E by the score.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from chainrule.base.compiling import uncompiled
from chainrule.errors import ConfigError, unknown_name
from chainrule.layers.attention.source_memory import regroup
from chainrule.layers.fused.linear import Linear
from chainrule.layers.recurrent.cells import tanh_backward
from chainrule.types import TensorHolder

LOCATIONS = 128
"""Source positions with a weight of their own in the location score."""

CHUNK = 2**20
"""Approximate number of values that the additive score holds at once: the sums of some queries with all keys."""


class DotScore(nn.Module):
    """score(h, e) = h·e."""

    def __init__(self, hidden: int, encoded: int) -> None:
        super().__init__()
        if hidden != encoded:
            raise ConfigError(
                f"the dot score needs states of equal width, but the decoder's are {hidden} wide and the encoder's "
                f"{encoded}: make them equal, or choose the general or the additive score"
            )

    def keys(self, encoded_ASE: Tensor) -> Tensor:
        """The part of the scores that depends on the source alone -> ASX."""
        return encoded_ASE

    def scores(self, query_AQU: Tensor, keys_ASX: Tensor, bias_A1S: Tensor | None) -> Tensor:
        """The score of every query with every key, plus the bias -> AQS."""
        keys_AXS = keys_ASX.transpose(1, 2)
        return query_AQU @ keys_AXS if bias_A1S is None else torch.baddbmm(bias_A1S, query_AQU, keys_AXS)


class GeneralScore(DotScore):
    """score(h, e) = h·We."""

    def __init__(self, hidden: int, encoded: int) -> None:
        super().__init__(hidden, hidden)
        self.project = Linear(encoded, hidden, bias=False)

    def keys(self, encoded_ASE: Tensor) -> Tensor:
        keys_ASX: Tensor = self.project(encoded_ASE)
        return keys_ASX


class AdditiveScore(nn.Module):
    """score(h, e) = v·tanh(Wh + Ue + b)."""

    def __init__(self, hidden: int, encoded: int) -> None:
        super().__init__()
        self.project_query = Linear(hidden, hidden, bias=False)
        self.project = Linear(encoded, hidden)
        self.vector_X = nn.Parameter(torch.empty(hidden).uniform_(-(hidden**-0.5), hidden**-0.5))

    def keys(self, encoded_ASE: Tensor) -> Tensor:
        """The part of the scores that depends on the source alone -> ASX."""
        keys_ASX: Tensor = self.project(encoded_ASE)
        return keys_ASX

    def scores(self, query_AQU: Tensor, keys_ASX: Tensor, bias_A1S: Tensor | None) -> Tensor:
        """The score of every query with every key, plus the bias -> AQS."""
        scores_AQS: Tensor = additive_scores(self.project_query(query_AQU), keys_ASX, self.vector_X)
        return scores_AQS if bias_A1S is None else scores_AQS + bias_A1S


class LocationScore(DotScore):
    """score(h, s) = V_s·ReLU(Wh + b): a row of V per source position, whatever the source contains there.

    Positions from `LOCATIONS` on share the last row.
    """

    def __init__(self, hidden: int, encoded: int) -> None:
        super().__init__(hidden, hidden)
        self.project_query = Linear(hidden, hidden)
        self.rows_SU = nn.Parameter(torch.empty(LOCATIONS, hidden).normal_(std=hidden**-0.5))

    def keys(self, encoded_ASE: Tensor) -> Tensor:
        A, S, _ = encoded_ASE.shape
        positions_S = torch.arange(S, device=encoded_ASE.device).clamp_max(LOCATIONS - 1)
        return self.rows_SU[positions_S].expand(A, -1, -1)

    def scores(self, query_AQU: Tensor, keys_ASX: Tensor, bias_A1S: Tensor | None) -> Tensor:
        return super().scores(self.project_query(query_AQU).relu(), keys_ASX, bias_A1S)


def tanh_sums(query_AQX: Tensor, keys_ASX: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """tanh(query + key) for some queries at a time: the slice of the M queries, and their values AMSX."""
    A, Q, X = query_AQX.shape
    step = max(1, CHUNK // max(1, A * keys_ASX.shape[1] * X))
    for start in range(0, Q, step):
        part = slice(start, start + step)
        yield part, torch.add(query_AQX[:, part, None], keys_ASX[:, None]).tanh_()


class AdditiveScores(torch.autograd.Function):
    """v·tanh(query + key) of every pair, AQS. The tanh of all pairs is never stored: backward computes it again."""

    @staticmethod
    def forward(ctx: Any, query_AQX: Tensor, keys_ASX: Tensor, vector_X: Tensor) -> Tensor:
        ctx.save_for_backward(query_AQX, keys_ASX, vector_X)
        return torch.cat([tanh_AMSX @ vector_X for _, tanh_AMSX in tanh_sums(query_AQX, keys_ASX)], 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_AQS: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query_AQX, keys_ASX, vector_X = ctx.saved_tensors
        grad_query_AQX = torch.empty_like(query_AQX)
        grad_keys_ASX, grad_vector_X = torch.zeros_like(keys_ASX), torch.zeros_like(vector_X)
        for part, tanh_AMSX in tanh_sums(query_AQX, keys_ASX):
            grad_AMS = grad_AQS[:, part]
            grad_vector_X.addmv_(tanh_AMSX.flatten(0, 2).t(), grad_AMS.flatten())
            tanh_backward(grad_AMS.unsqueeze(3), tanh_AMSX, grad_input=tanh_AMSX)  # the factor v follows at the end
            torch.sum(tanh_AMSX, 2, out=grad_query_AQX[:, part])
            grad_keys_ASX += tanh_AMSX.sum(1)
        return grad_query_AQX.mul_(vector_X), grad_keys_ASX.mul_(vector_X), grad_vector_X


additive_scores = uncompiled(AdditiveScores.apply)

SCORES: dict[str, Callable[[int, int], DotScore | AdditiveScore]] = {
    "dot": DotScore,
    "general": GeneralScore,
    "additive": AdditiveScore,
    "location": LocationScore,
}


def padding_bias(mask_BS: Tensor) -> Tensor:
    """What is added to scores of sources: -inf at padding, where the mask is False -> B1S."""
    bias_B1S = torch.zeros(mask_BS.shape, device=mask_BS.device).masked_fill_(~mask_BS, -torch.inf).unsqueeze(1)
    return bias_B1S


class SourceStates(TensorHolder):
    """Keys and values of A sources, stored once for all rows that attend to them, as in `SourceMemory`.

    Rows 0 … W-1 belong to the first source, the next W to the second, and so on.
    """

    __slots__ = ("bias_A1S", "keys_ASX", "rows", "values_ASU")

    def __init__(self, keys_ASX: Tensor, values_ASU: Tensor, bias_A1S: Tensor | None, rows: int = 1) -> None:
        """`bias_A1S` is -inf at padding; None: there is none."""
        self.keys_ASX, self.values_ASU, self.bias_A1S, self.rows = keys_ASX, values_ASU, bias_A1S, rows

    def map_tensors(self, change: Callable[[Tensor], Tensor]) -> SourceStates:
        """Apply a change of rows to their sources; sources without rows are removed."""
        source_A, rows = regroup(change, len(self.keys_ASX), self.rows, self.keys_ASX.device)
        parts = (self.keys_ASX, self.values_ASU, self.bias_A1S)
        if source_A is None:
            return SourceStates(*parts, rows)
        keys_ASX, values_ASU, bias_A1S = (None if part is None else part.index_select(0, source_A) for part in parts)
        assert keys_ASX is not None
        assert values_ASU is not None
        return SourceStates(keys_ASX, values_ASU, bias_A1S, rows)


class SourceAttention(nn.Module):
    """Decoder states h to attentional vectors h~, with the attention weights."""

    def __init__(self, score: str, hidden: int, encoded: int) -> None:
        super().__init__()
        if score not in SCORES:
            raise unknown_name("attention score", score, SCORES)
        self.score = SCORES[score](hidden, encoded)
        self.project_context = Linear(encoded, hidden, bias=False)
        self.project_query = Linear(hidden, hidden)

    def make_memory(self, encoded_BSE: Tensor, mask_BS: Tensor | None) -> SourceStates:
        """Keys and values of encoder states; the mask is False at padding (None: no padding).

        W [c; h] = Vc + Uh. V is applied to the states instead of their mixtures c: one product serves all steps and
        beams.
        """
        bias_B1S = None if mask_BS is None else padding_bias(mask_BS).to(encoded_BSE.dtype)
        return SourceStates(self.score.keys(encoded_BSE), self.project_context(encoded_BSE), bias_B1S)

    def forward(self, hidden_RTU: Tensor, memory: SourceStates) -> tuple[Tensor, Tensor]:
        """States of R rows over T steps -> (h~ of each RTU, the weights over the source RTS)."""
        (R, T, U), A = hidden_RTU.shape, len(memory.keys_ASX)
        query_AQU = hidden_RTU.reshape(A, -1, U)
        weights_AQS = self.score.scores(query_AQU, memory.keys_ASX, memory.bias_A1S).softmax(-1)
        mixed_AQU = torch.baddbmm(self.project_query(query_AQU), weights_AQS, memory.values_ASU)
        return mixed_AQU.tanh().view(R, T, U), weights_AQS.view(R, T, -1)
