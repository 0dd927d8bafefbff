"""The records that pass between the parts of a hybrid: encoded sources, parallel predictions, the decoder's state.

In suffixes L counts the target positions that are prepared ahead; a pass reads T of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from chainrule.engines.decode.hybrid import CompiledHybrid
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


class CompiledSources(NamedTuple):
    """The engine that reads tokens of A sources, and the number of their positions."""

    engine: CompiledHybrid
    count_A: Tensor


class DecoderMemory(SourceStates):
    """Everything the decoder needs of A sources with W rows each: encoder states, and features of target positions.

    With `compiled`, keys and values are as wide as the engine takes them.
    """

    __slots__ = ("allocation", "compiled", "joined_ALD", "parallel")

    def __init__(
        self,
        states: SourceStates,
        allocation: AllocationSource,
        joined_ALD: Tensor,
        parallel: ParallelPrediction | None,
        rows: int = 1,
        compiled: CompiledSources | None = None,
    ) -> None:
        """`joined_ALD` are the aligned features of the first L positions, as the decoder adds them to its own."""
        super().__init__(states.keys_ASX, states.values_ASU, states.bias_A1S, rows)
        self.allocation, self.joined_ALD, self.parallel = allocation, joined_ALD, parallel
        self.compiled = compiled

    def with_positions(self, joined_ALD: Tensor) -> DecoderMemory:
        """The same memory with other positions prepared."""
        return DecoderMemory(self, self.allocation, joined_ALD, self.parallel, self.rows, self.compiled)

    def map_tensors(self, change: Callable[[Tensor], Tensor]) -> DecoderMemory:
        """Apply a change of rows to their sources; sources without rows are removed."""
        source_A, rows = regroup(change, len(self.keys_ASX), self.rows, self.keys_ASX.device)
        if source_A is None:
            return DecoderMemory(self, self.allocation, self.joined_ALD, self.parallel, rows, self.compiled)

        def select(part: Tensor) -> Tensor:
            return part.index_select(0, source_A)

        bias_A1S = None if self.bias_A1S is None else select(self.bias_A1S)
        states = SourceStates(select(self.keys_ASX), select(self.values_ASU), bias_A1S)
        allocation = AllocationSource(
            select(self.allocation.keys_BSD),
            select(self.allocation.values_BSD),
            bias_A1S,
            select(self.allocation.tokens_B),
            self.allocation.engine,
        )
        parallel = None
        if self.parallel is not None:
            parts = (None if part is None else select(part) for part in self.parallel)
            parallel = ParallelPrediction(*parts)  # type: ignore[arg-type]
        compiled = self.compiled
        if compiled is not None:
            compiled = compiled._replace(count_A=select(compiled.count_A))
        return DecoderMemory(states, allocation, select(self.joined_ALD), parallel, rows, compiled)


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


def block_sources(stream_BN: Tensor, first: int, count: int, block: int, context: int) -> tuple[Tensor, Tensor]:
    """The sources of `count` blocks of each text: at most `context` tokens up to and including a block's first input.

    Returns tokens RS and a mask RS, which is False at padding.
    """
    last_W = first + block * torch.arange(count, device=stream_BN.device)
    begin_W = (last_W + 1 - context).clamp(min=0)
    offset_S = torch.arange(int((last_W - begin_W).max()) + 1, device=stream_BN.device)
    position_WS = begin_W[:, None] + offset_S
    mask_WS = position_WS <= last_W[:, None]
    source_BWS = stream_BN[:, torch.where(mask_WS, position_WS, last_W[:, None])]
    return source_BWS.flatten(0, 1), mask_WS.expand(len(stream_BN), -1, -1).flatten(0, 1)
