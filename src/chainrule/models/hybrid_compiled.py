"""The decoding engine in a hybrid: reading tokens by the autoregressive branch, and the words of its output layer."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from chainrule.engines.decode.hybrid import CompiledHybrid, HybridSource, Prediction, Results
from chainrule.layers.compiled import as_array
from chainrule.layers.outputs.mixed import MixedOutput
from chainrule.models.hybrid_state import DecoderMemory, ParallelPrediction

Array = np.ndarray[Any, Any]

TABLE_ENTRIES = 2**24
"""Largest table of log p by the parallel branch, positions times tokens, that is computed before the first step."""


def read_compiled(
    memory: DecoderMemory, hidden_RU: Tensor, position: int | Tensor, tokens_RT: Tensor, wanted: Results
) -> tuple[Tensor, Tensor]:
    """Read T tokens from a position on, which may differ by row.

    Returns log p after the last, RV, log p after each, RTV, or the features after each, RTD; and the states after each,
    RTU.
    """
    (engine, given), (R, T) = _given(memory, hidden_RU, position, tokens_RT), tokens_RT.shape
    results, path_NU = engine.read(*given, wanted)
    found, path_RTU = torch.from_numpy(results), torch.from_numpy(path_NU).view(R, T, -1)
    return (found if wanted == "last" else found.view(R, T, -1)), path_RTU


def check_compiled(
    memory: DecoderMemory, hidden_RU: Tensor, position: int | Tensor, tokens_RT: Tensor
) -> tuple[Tensor, Tensor]:
    """Read T tokens from a position on -> the most probable token after each, RT, and the states after each, RTU.

    After the first one that is not the next token of its row the others are -1.
    """
    engine, given = _given(memory, hidden_RU, position, tokens_RT)
    words_RT, path_NU = engine.check(*given)
    return torch.from_numpy(words_RT), torch.from_numpy(path_NU).view(*tokens_RT.shape, -1)


def _given(
    memory: DecoderMemory, hidden_RU: Tensor, position: int | Tensor, tokens_RT: Tensor
) -> tuple[CompiledHybrid, tuple[Array, Array, HybridSource, Array]]:
    """The engine, and what it reads."""
    assert memory.compiled is not None
    engine, count_A = memory.compiled
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
    position_R = np.full(len(tokens_RT), position) if isinstance(position, int) else as_array(position)
    return engine, (as_array(tokens_RT), as_array(hidden_RU.contiguous()), source, position_R)


def predicts(memory: DecoderMemory) -> bool:
    """Whether the engine computes log p: it has the output layer, and the whole table of the parallel branch if any."""
    if memory.compiled is None or memory.compiled.engine.vocabulary is None:
        return False
    return memory.parallel is None or memory.parallel.table_ALV is not None


def add_table(
    parallel: ParallelPrediction, output: MixedOutput, engine: CompiledHybrid | None = None
) -> ParallelPrediction:
    """The prediction with log p of all tokens at all positions, unless that table is too large."""
    if parallel.odds_AL.numel() * output.size > TABLE_ENTRIES:
        return parallel
    return parallel._replace(table_ALV=log_probs(parallel.features_ALD, output, engine))


def log_probs(features_ALD: Tensor, output: MixedOutput, engine: CompiledHybrid | None) -> Tensor:
    """log p of all tokens by one branch, by the engine if it has the output layer -> ALV."""
    features_ND = features_ALD.flatten(0, 1)
    if engine is None or engine.output is None:
        table_NV: Tensor = output.base.log_probs(features_ND)
    else:
        table_NV = torch.from_numpy(engine.output.log_probs(as_array(features_ND.contiguous())))
    return table_NV.view(*features_ALD.shape[:2], -1)


def best_words(features_RTD: Tensor, output: MixedOutput, engine: CompiledHybrid | None) -> Tensor:
    """The most probable token by one branch, by the engine if it has the output layer -> RT."""
    features_ND = features_RTD.flatten(0, 1)
    if engine is None or engine.output is None:
        best_N = output.scores(features_ND).argmax(1)
    else:
        best_N = torch.from_numpy(engine.output.best(as_array(features_ND.contiguous())))
    return best_N.view(features_RTD.shape[:2])


def best_with_log_probs(
    features_MD: Tensor, output: MixedOutput, engine: CompiledHybrid | None
) -> tuple[Tensor, Tensor]:
    """The most probable token by one branch, M, and its log p, M."""
    if engine is None or engine.output is None:
        log_prob_M, word_M = output.base.log_probs(features_MD).max(1)
        return word_M, log_prob_M
    word_M, log_prob_M = map(torch.from_numpy, engine.output.best_with_log_probs(as_array(features_MD)))
    return word_M, log_prob_M


def second_words(features_MD: Tensor, output: MixedOutput, engine: CompiledHybrid | None) -> tuple[Tensor, Tensor]:
    """The second most probable token by one branch, M, and how much less probable it is than the first, in nats, M."""
    if engine is None or engine.output is None:
        return second_best(output.scores(features_MD))
    word_M, gap_M = engine.output.second_best(as_array(features_MD))
    return torch.from_numpy(word_M), torch.from_numpy(gap_M)


def second_best(scores_MV: Tensor) -> tuple[Tensor, Tensor]:
    """The token with the second highest score, M, and the difference from the highest, M."""
    best_M2, token_M2 = scores_MV.topk(2)
    return token_M2[:, 1], best_M2[:, 0] - best_M2[:, 1]
