"""Attention of a recurrent decoder to the states of an encoder.

    a_s = softmax_s score(h, e_s)        c = Σ a_s e_s        h~ = tanh(W [c; h])

Bahdanau et al., "Neural Machine Translation by Jointly Learning to Align and Translate", 2015 (the additive score);
Luong et al., "Effective Approaches to Attention-based Neural Machine Translation", 2015 (dot, general, and h~).
Legend: A sources, B batch, R rows of the decoder, T time, Q queries of one source, S source time, E width of an
encoder's state, H width of a decoder's, X width of a key, C queries of a chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from chainrule.base.compiling import left_out
from chainrule.errors import ConfigError, unknown_name
from chainrule.layers.attention.source_memory import regrouped
from chainrule.layers.recurrent.cells import tanh_backward

CHUNK = 2**20
"""About how many numbers the additive score holds at once: the sums of some queries with all keys."""


class DotScore(nn.Module):
    """score(h, e) = h·e."""

    def __init__(self, hidden: int, encoded: int) -> None:
        super().__init__()
        if hidden != encoded:
            raise ConfigError(
                f"the dot score needs states of one width, but the decoder's have {hidden} and the encoder's "
                f"{encoded}: make them equal or choose the general or the additive score"
            )

    def keys(self, encoded_ASE: Tensor) -> Tensor:
        """What of the scores depends on the source alone -> ASX."""
        return encoded_ASE

    def scores(self, query_AQH: Tensor, keys_ASX: Tensor, bias_A1S: Tensor | None) -> Tensor:
        """The score of every query with every key, and the bias added -> AQS."""
        keys_AXS = keys_ASX.transpose(1, 2)
        return query_AQH @ keys_AXS if bias_A1S is None else torch.baddbmm(bias_A1S, query_AQH, keys_AXS)


class GeneralScore(DotScore):
    """score(h, e) = h·We."""

    def __init__(self, hidden: int, encoded: int) -> None:
        super().__init__(hidden, hidden)
        self.project = nn.Linear(encoded, hidden, bias=False)

    def keys(self, encoded_ASE: Tensor) -> Tensor:
        keys_ASX: Tensor = self.project(encoded_ASE)
        return keys_ASX


class AdditiveScore(nn.Module):
    """score(h, e) = v·tanh(Wh + Ue + b)."""

    def __init__(self, hidden: int, encoded: int) -> None:
        super().__init__()
        self.project_query = nn.Linear(hidden, hidden, bias=False)
        self.project = nn.Linear(encoded, hidden)
        self.vector_X = nn.Parameter(torch.empty(hidden).uniform_(-(hidden**-0.5), hidden**-0.5))

    def keys(self, encoded_ASE: Tensor) -> Tensor:
        """What of the scores depends on the source alone -> ASX."""
        keys_ASX: Tensor = self.project(encoded_ASE)
        return keys_ASX

    def scores(self, query_AQH: Tensor, keys_ASX: Tensor, bias_A1S: Tensor | None) -> Tensor:
        """The score of every query with every key, and the bias added -> AQS."""
        scores_AQS: Tensor = additive_scores(self.project_query(query_AQH), keys_ASX, self.vector_X)
        return scores_AQS if bias_A1S is None else scores_AQS + bias_A1S


def bent_sums(query_AQX: Tensor, keys_ASX: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """tanh(query + key), some queries at a time: which they are, and ACSX for these."""
    A, Q, X = query_AQX.shape
    step = max(1, CHUNK // max(1, A * keys_ASX.shape[1] * X))
    for start in range(0, Q, step):
        part = slice(start, start + step)
        yield part, torch.add(query_AQX[:, part, None], keys_ASX[:, None]).tanh_()


class AdditiveScores(torch.autograd.Function):
    """v·tanh(query + key) of every pair, AQS. The tanh of all pairs is never held: backward computes it again."""

    @staticmethod
    def forward(ctx: Any, query_AQX: Tensor, keys_ASX: Tensor, vector_X: Tensor) -> Tensor:
        ctx.save_for_backward(query_AQX, keys_ASX, vector_X)
        return torch.cat([bent_ACSX @ vector_X for _, bent_ACSX in bent_sums(query_AQX, keys_ASX)], 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_AQS: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query_AQX, keys_ASX, vector_X = ctx.saved_tensors
        grad_query_AQX = torch.empty_like(query_AQX)
        grad_keys_ASX, grad_vector_X = torch.zeros_like(keys_ASX), torch.zeros_like(vector_X)
        for part, bent_ACSX in bent_sums(query_AQX, keys_ASX):
            grad_ACS = grad_AQS[:, part]
            grad_vector_X.addmv_(bent_ACSX.flatten(0, 2).t(), grad_ACS.flatten())
            tanh_backward(grad_ACS.unsqueeze(3), bent_ACSX, grad_input=bent_ACSX)  # but for the factor v
            torch.sum(bent_ACSX, 2, out=grad_query_AQX[:, part])
            grad_keys_ASX += bent_ACSX.sum(1)
        return grad_query_AQX.mul_(vector_X), grad_keys_ASX.mul_(vector_X), grad_vector_X


additive_scores = left_out(AdditiveScores.apply)

SCORES: dict[str, Callable[[int, int], DotScore | AdditiveScore]] = {
    "dot": DotScore,
    "general": GeneralScore,
    "additive": AdditiveScore,
}


class SourceStates:
    """Keys and values of A sources, kept once for all the rows that attend to them, as `memory.Memory` keeps them.

    Rows 0 … W-1 belong to the first source, the next W to the second, and so on.
    """

    __slots__ = ("bias_A1S", "keys_ASX", "rows", "values_ASH")

    def __init__(self, keys_ASX: Tensor, values_ASH: Tensor, bias_A1S: Tensor | None, rows: int = 1) -> None:
        self.keys_ASX, self.values_ASH, self.bias_A1S, self.rows = keys_ASX, values_ASH, bias_A1S, rows

    def map_tensors(self, change: Callable[[Tensor], Tensor]) -> SourceStates:
        """What `change` does to rows is done to the rows' sources; those that no row needs any more are left out."""
        source_A, rows = regrouped(change, len(self.keys_ASX), self.rows, self.keys_ASX.device)
        parts = (self.keys_ASX, self.values_ASH, self.bias_A1S)
        if source_A is None:
            return SourceStates(*parts, rows)
        keys_ASX, values_ASH, bias_A1S = (None if part is None else part.index_select(0, source_A) for part in parts)
        assert keys_ASX is not None
        assert values_ASH is not None
        return SourceStates(keys_ASX, values_ASH, bias_A1S, rows)


class SourceAttention(nn.Module):
    """The attentional vector h~ of decoder states h, and the weights it was made with."""

    def __init__(self, score: str, hidden: int, encoded: int) -> None:
        super().__init__()
        if score not in SCORES:
            raise unknown_name("attention score", score, SCORES)
        self.score = SCORES[score](hidden, encoded)
        self.project_context = nn.Linear(encoded, hidden, bias=False)
        self.project_query = nn.Linear(hidden, hidden)

    def memory_of(self, encoded_BSE: Tensor, mask_BS: Tensor | None) -> SourceStates:
        """What is attended to, given an encoder's states and which of them are no padding (None: all).

        Of W [c; h] = Vc + Uh, V meets the states instead of their mixtures: one product serves all steps and beams.
        """
        bias_B1S = None
        if mask_BS is not None:
            bias_B1S = encoded_BSE.new_zeros(mask_BS.shape).masked_fill_(~mask_BS, -torch.inf).unsqueeze(1)
        return SourceStates(self.score.keys(encoded_BSE), self.project_context(encoded_BSE), bias_B1S)

    def forward(self, hidden_RTH: Tensor, memory: SourceStates) -> tuple[Tensor, Tensor]:
        """States of R rows over T steps -> (h~ of each RTH, the weights over the source RTS)."""
        (R, T, H), A = hidden_RTH.shape, len(memory.keys_ASX)
        query_AQH = hidden_RTH.reshape(A, -1, H)
        weights_AQS = self.score.scores(query_AQH, memory.keys_ASX, memory.bias_A1S).softmax(-1)
        mixed_AQH = torch.baddbmm(self.project_query(query_AQH), weights_AQS, memory.values_ASH)
        return mixed_AQH.tanh().view(R, T, H), weights_AQS.view(R, T, -1)
