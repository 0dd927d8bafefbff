"""Networks: what attention reads, how the gates of a recurrent model stand, and what the branches of a hybrid say."""

from __future__ import annotations

from functools import singledispatch
from typing import Any

import torch
from torch import Tensor

from chainrule.base.devices import device_of
from chainrule.inference.inspect import best_tokens
from chainrule.inference.why.reasons import reasons
from chainrule.inference.why.records import (
    AttentionRow,
    Branches,
    Expected,
    LayerTrace,
    Reason,
    RecurrentTrace,
    Situation,
)
from chainrule.layers.outputs.mixed import MixedOutput
from chainrule.layers.recurrent.stack import LayerPath
from chainrule.models.hybrid_lm import HybridLanguageModel
from chainrule.models.language_model import LanguageModel
from chainrule.models.recurrent import Recurrent

SHOWN = 48
"""Positions of a trace, the last ones."""


@reasons.register
def _(model: LanguageModel, situation: Situation) -> list[Reason]:
    tokens_1T = torch.tensor([situation.before], device=device_of(model))
    _, state = model.prefill(model.start(1), tokens_1T)
    recent_1L = model.recent_tokens(state)
    window_1L = tokens_1T if recent_1L is None else recent_1L  # what it reads of a longer text
    weights = model.attention_weights(window_1L)
    attention = [] if weights is None else [_attention(window_1L, weights, situation)]
    return [*attention, *_features(model.features, model, situation)]


def _attention(window_1L: Tensor, weights: list[Tensor], situation: Situation) -> AttentionRow:
    rows = [layer_BHTT[0, :, -1].double().tolist() for layer_BHTT in weights]
    return AttentionRow("attention", situation.pieces(window_1L[0].tolist()), rows)


@singledispatch
def _features(features: Any, model: LanguageModel, situation: Situation) -> list[Reason]:
    """What is known of a feature layer besides attention."""
    return []


@_features.register
def _(features: Recurrent, model: LanguageModel, situation: Situation) -> list[Reason]:
    tokens_1T = torch.tensor([situation.before], device=device_of(model))
    paths = features.recurrence.trace(model.embedding(tokens_1T))
    pieces = situation.pieces(situation.before[-SHOWN:])
    return [RecurrentTrace("recurrent", features.kind, pieces, [_layer(path) for path in paths])]


def _layer(path: LayerPath) -> LayerTrace:
    states_TBU = path.states_TBU[:, 0]
    size_T = states_TBU[1:].square().mean(1).sqrt()
    change_T = (states_TBU[1:] - states_TBU[:-1]).square().mean(1).sqrt()
    gates = {name: gate_TBU[:, 0].mean(1)[-SHOWN:].tolist() for name, gate_TBU in path.gates.items()}
    return LayerTrace(gates, size_T[-SHOWN:].tolist(), change_T[-SHOWN:].tolist())


@reasons.register
def _(model: HybridLanguageModel, situation: Situation) -> list[Reason]:
    tokens_1T = torch.tensor([situation.before], device=device_of(model))
    packed_1TX, _ = model.read(model.start(1), tokens_1T)
    return branches(model.output, packed_1TX[:, -1], situation)


def branches(output: MixedOutput, packed_1X: Tensor, situation: Situation) -> list[Reason]:
    """The two predictions that packed features hold; nothing if they hold only one."""
    if packed_1X.shape[1] == output.width:
        return []
    first_1D, second_1D, odds_11 = output.unpack(packed_1X)
    both = [output.base.log_probs(part_1D)[0].double().exp() for part_1D in (first_1D, second_1D)]
    ar, nar = (float(probs_V[situation.token]) for probs_V in both)
    best = [_best(probs_V, situation) for probs_V in both]
    return [Branches("hybrid", float(odds_11.double().sigmoid()), ar, nar, *best)]


def _best(probs_V: Tensor, situation: Situation) -> list[Expected]:
    probs = probs_V.cpu().numpy()
    best_K = best_tokens(probs[None], min(situation.top, len(probs)))[0]
    return [Expected(situation.piece(token), float(probs[token])) for token in best_K.tolist()]
