"""The autoregressive branch of a hybrid, read by the decoding engine."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from chainrule.engines.decode.hybrid import CompiledHybrid, HybridSource, Prediction, Results
from chainrule.layers.attention.source import SourceStates
from chainrule.layers.compiled import as_array
from chainrule.models.hybrid_state import DecoderMemory


def pad_states(engine: CompiledHybrid, states: SourceStates) -> SourceStates:
    """Keys and values as wide as the engine takes them, without gaps."""
    more = engine.units - engine.real_units
    keys_ASX, values_ASX = (
        functional.pad(part_ASX, (0, more)) if more else part_ASX.contiguous()
        for part_ASX in (states.keys_ASX, states.values_ASU)
    )
    return SourceStates(keys_ASX, values_ASX, states.bias_A1S, states.rows)


def read_compiled(
    memory: DecoderMemory, hidden_RU: Tensor, position: int | Tensor, tokens_RT: Tensor, wanted: Results
) -> tuple[Tensor, Tensor]:
    """Read T tokens from a position on, which may differ by row.

    Returns log p after the last, RV, log p after each, RTV, or the features after each, RTD; and the states after each,
    RTU.
    """
    assert memory.compiled is not None
    (engine, count_A), (R, T) = memory.compiled, tokens_RT.shape
    prediction = None
    if memory.parallel is not None and memory.parallel.table_ALV is not None:
        odds_AL, table_ALV = memory.parallel.odds_AL, memory.parallel.table_ALV
        prediction = Prediction(as_array(odds_AL.contiguous()), as_array(table_ALV.contiguous()))
    source = HybridSource(
        as_array(memory.keys_ASX),
        as_array(memory.values_ASU),
        as_array(count_A),
        as_array(memory.joined_ALD.contiguous()),
        prediction,
        memory.rows,
    )
    position_R = np.full(R, position) if isinstance(position, int) else as_array(position)
    hidden = as_array(hidden_RU.contiguous())
    results, path_NU = engine.read(as_array(tokens_RT), hidden, source, position_R, wanted)
    found, path_RTU = torch.from_numpy(results), torch.from_numpy(path_NU).view(R, T, -1)
    return (found if wanted == "last" else found.view(R, T, -1)), path_RTU


def predicts(memory: DecoderMemory) -> bool:
    """Whether the engine computes log p: it has the output layer, and the whole table of the parallel branch if any."""
    if memory.compiled is None or memory.compiled.engine.vocabulary is None:
        return False
    return memory.parallel is None or memory.parallel.table_ALV is not None
