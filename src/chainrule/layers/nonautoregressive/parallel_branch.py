"""Predicting all positions of a target at once, from what the source allots to each and from any known tokens.

    input_t = aligned_t + remaining(T - t) + (the token at t if it is known, else a vector for an unknown token)

A bidirectional LSTM reads the inputs, each of its states attends to the source, and a linear layer turns the result and
the inputs into features for the output layer. Of the target the branch sees only revealed tokens: none at first, some
in glancing training (Qian et al., "Glancing Transformer for Non-Autoregressive Neural Machine Translation", 2021), the
most certain ones when a translation is refined (Ghazvininejad et al., "Mask-Predict: Parallel Decoding of Conditional
Masked Language Models", 2019).
"""

from __future__ import annotations

from typing import NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn

from chainrule.base.shares import draw_rows
from chainrule.engines.decode.parallel_branch import CompiledParallel, ParallelWeights
from chainrule.layers.attention.source import SourceAttention, SourceStates
from chainrule.layers.compiled import PackedModel, as_array, linear_weights
from chainrule.layers.compiled_recurrence import attention_weights, make_memory, source_lengths
from chainrule.layers.dropout import drop
from chainrule.layers.fused.linear import Linear
from chainrule.layers.nonautoregressive.allocation import Sinusoids
from chainrule.layers.recurrent.bidirectional import Bidirectional


class KnownTokens(NamedTuple):
    """The embeddings of target tokens, and the positions at which they are revealed."""

    embedded_BTD: Tensor
    shown_BT: Tensor  # bool


class ParallelBranch(nn.Module):
    """Features of every target position in one pass."""

    def __init__(self, encoded: int, width: int, hidden: int, layers: int, dropout: float, score: str) -> None:
        super().__init__()
        self.dropout = dropout
        self.recurrence = Bidirectional("lstm", width, hidden // 2, layers, dropout)
        self.attend = SourceAttention(score, hidden, encoded)
        self.join = Linear(hidden, width)
        self.join_inputs = Linear(width, width, bias=False)
        self.unknown_D = nn.Parameter(torch.empty(width).uniform_(-1, 1))
        self._packed = PackedModel()

    def _compiled(self) -> ParallelWeights:
        join, inputs = linear_weights(self.join), linear_weights(self.join_inputs)
        return ParallelWeights(self.recurrence.compiled(), attention_weights(self.attend), join, inputs)

    def train(self, mode: bool = True) -> Self:
        """What is packed is forgotten: see `PackedModel`."""
        self._packed.forget()
        return super().train(mode)

    def inputs(self, aligned_BTD: Tensor, lengths_B: Tensor, sinusoids: Sinusoids) -> Tensor:
        """The inputs without tokens, in rows of `lengths_B` positions -> BTD."""
        T = aligned_BTD.shape[1]
        time_T = torch.arange(1, T + 1, device=lengths_B.device)
        remaining_BT = (lengths_B[:, None] - time_T).clamp_(min=0)
        return aligned_BTD + sinusoids.first(T)[remaining_BT]

    @property
    def _engine(self) -> CompiledParallel | None:
        return self._packed.engine(self, "float32", self._compiled)

    def memory(self, encoded_BSE: Tensor, mask_BS: Tensor | None) -> SourceStates:
        """Keys and values of encoded sources, by the engine if there is one; the mask is False at padding."""
        engine = self._engine
        return make_memory(self.attend, encoded_BSE, mask_BS, None if engine is None else engine.memory)

    def forward(
        self, inputs_BTD: Tensor, memory: SourceStates, lengths_B: Tensor | None, known: KnownTokens | None = None
    ) -> Tensor:
        """Inputs of rows of `lengths_B` positions (None: all T), and what `memory` made -> features BTD."""
        if known is None:
            read_BTD = inputs_BTD + self.unknown_D
        else:
            seen_BTD = known.embedded_BTD * inputs_BTD.shape[2] ** 0.5  # the same scale as the inputs
            read_BTD = inputs_BTD + torch.where(known.shown_BT.unsqueeze(2), seen_BTD, self.unknown_D)
        if (engine := self._engine) is not None:
            return _predict(engine, read_BTD, inputs_BTD, memory, lengths_B)
        hidden_BTU, _ = self.recurrence(self._drop(read_BTD), lengths_B)
        vector_BTU, _ = self.attend(hidden_BTU, memory)
        features_BTD: Tensor = self.join(self._drop(vector_BTU)) + self.join_inputs(inputs_BTD)
        return features_BTD

    def _drop(self, inputs: Tensor) -> Tensor:
        return drop(inputs, self.dropout, training=self.training)


def _predict(
    engine: CompiledParallel, read_BTD: Tensor, inputs_BTD: Tensor, memory: SourceStates, lengths_B: Tensor | None
) -> Tensor:
    """The features of the branch by the engine; beyond the end of a row they are undefined."""
    R, T, _ = inputs_BTD.shape
    length_R = np.full(R, T) if lengths_B is None else as_array(lengths_B)
    features = engine.predict(
        as_array(read_BTD.contiguous()),
        as_array(inputs_BTD.contiguous()),
        as_array(memory.keys_ASX),
        as_array(memory.values_ASU),
        source_lengths(memory),
        length_R,
    )
    return torch.from_numpy(features)


def choose_revealed(wrong_BT: Tensor, real_BT: Tensor, share: float) -> Tensor:
    """The positions to reveal, drawn at random: in each row as many as `share` of its wrong ones -> bool BT.

    `real_BT` is False at padding. Only real positions are revealed, whether they were wrong or not.
    """
    count_B1 = ((wrong_BT & real_BT).sum(1, keepdim=True) * share).round()
    chance_BT = draw_rows(lambda shape: torch.rand(shape, device=real_BT.device), real_BT.shape)
    chance_BT = chance_BT.masked_fill(~real_BT, 2.0)
    return chance_BT.argsort(1).argsort(1) < count_B1
