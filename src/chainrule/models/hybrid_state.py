"""The records that pass between the parts of a hybrid: encoded sources, parallel predictions, the decoder's state.

In suffixes L counts the target positions that are prepared ahead; a pass reads T of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from chainrule.layers.attention.source import SourceStates
from chainrule.layers.attention.source_memory import regroup
from chainrule.layers.nonautoregressive.allocation import AllocationSource


class EncodedSource(NamedTuple):
    """A source after the encoder."""

    states_BSE: Tensor
    mask_BS: Tensor | None  # False at padding; None: no padding
    bias_B1S: Tensor | None  # -inf at padding
    last_BE: Tensor
    tokens_B: Tensor  # number of tokens of each source


class ParallelPrediction(NamedTuple):
    """The prediction of the parallel branch for the first L positions of each target."""

    features_ALD: Tensor
    odds_AL: Tensor  # log γ/(1-γ), without the part of a gate that depends on the step; NEVER beyond the length
    lengths_A: Tensor
    table_ALV: Tensor | None  # log p of all tokens; None: the table would be too large


class DecoderMemory(SourceStates):
    """Everything the decoder needs of A sources with W rows each: encoder states, and features of target positions."""

    __slots__ = ("allocation", "joined_ALD", "parallel")

    def __init__(
        self,
        states: SourceStates,
        allocation: AllocationSource,
        joined_ALD: Tensor,
        parallel: ParallelPrediction | None,
        rows: int = 1,
    ) -> None:
        """`joined_ALD` are the aligned features of the first L positions, as the decoder adds them to its own."""
        super().__init__(states.keys_ASX, states.values_ASU, states.bias_A1S, rows)
        self.allocation, self.joined_ALD, self.parallel = allocation, joined_ALD, parallel

    def map_tensors(self, change: Callable[[Tensor], Tensor]) -> DecoderMemory:
        """Apply a change of rows to their sources; sources without rows are removed."""
        source_A, rows = regroup(change, len(self.keys_ASX), self.rows, self.keys_ASX.device)
        if source_A is None:
            return DecoderMemory(self, self.allocation, self.joined_ALD, self.parallel, rows)

        def select(part: Tensor) -> Tensor:
            return part.index_select(0, source_A)

        bias_A1S = None if self.bias_A1S is None else select(self.bias_A1S)
        states = SourceStates(select(self.keys_ASX), select(self.values_ASU), bias_A1S)
        allocation = AllocationSource(select(self.allocation.keys_BSD), select(self.allocation.values_BSD), bias_A1S)
        parallel = None
        if self.parallel is not None:
            parts = (None if part is None else select(part) for part in self.parallel)
            parallel = ParallelPrediction(*parts)  # type: ignore[arg-type]
        return DecoderMemory(states, allocation, select(self.joined_ALD), parallel, rows)


class DecoderState(NamedTuple):
    """The memory, the state of the GRU, and the number of positions read."""

    memory: DecoderMemory
    hidden_RU: Tensor
    position: int


class ParallelSource(NamedTuple):
    """What the parallel branch reads for targets of given lengths: inputs without tokens, and the source."""

    inputs_RLD: Tensor
    states: SourceStates


class BlockState(NamedTuple):
    """A block that is being read by a language model."""

    memory: DecoderMemory
    encoded: EncodedSource
    path_RLU: Tensor  # states of the GRU: before the block, and after each token of it that was read
    parallel: ParallelSource | None = None  # what the parallel branch reads; None: not needed so far

    @property
    def position(self) -> int:
        """The number of tokens of the block that were read."""
        return self.path_RLU.shape[1] - 1


def slice_positions(part_AL: Tensor, rows: int, position: int | Tensor, T: int) -> Tensor:
    """The entries of T positions from `position` on for A sources with `rows` rows each -> RT…

    `position` may differ by row. Positions beyond the last of L have the entry of the last.
    """
    L = part_AL.shape[1]
    if isinstance(position, int):
        if position + T <= L:
            part_AT = part_AL[:, position : position + T]
        else:
            part_AT = part_AL[:, torch.arange(position, position + T, device=part_AL.device).clamp_(max=L - 1)]
        return part_AT if rows == 1 else part_AT.repeat_interleave(rows, 0)
    positions_RT = (position[:, None] + torch.arange(T, device=position.device)).clamp_(max=L - 1)
    source_R = torch.arange(len(position), device=position.device).div_(rows, rounding_mode="floor")
    return part_AL[source_R[:, None], positions_RT]
