"""Mixtures: the share of each component, the reasons of each part, and what each cache has remembered."""

from __future__ import annotations

from functools import singledispatch
from typing import Any

import torch
from torch import Tensor

from chainrule.base.devices import device_of
from chainrule.inference.why.reasons import reasons
from chainrule.inference.why.records import CacheMemory, Reason, Remembered, Share, Shares, Situation
from chainrule.models.adaptive_cache import (
    ContinuousCache,
    ContinuousCacheState,
    UnigramCache,
    UnigramCacheState,
)
from chainrule.models.mixture import Mixture
from chainrule.registry import MODELS


@reasons.register
def _(model: Mixture, situation: Situation) -> list[Reason]:
    read_1T = torch.tensor([situation.before], device=device_of(model))
    _, after = model.prefill(model.start(1), read_1T)
    scored_1T = torch.tensor([[*situation.before[1:], situation.token]], device=read_1T.device)
    log_probs_K11, _ = model.score_components(scored_1T, model.start(1))
    bucket = int(model.find_buckets(scored_1T, model.start(1))[0, -1])
    probs = log_probs_K11[:, 0, -1].double().exp().tolist()
    weights = model.weights[bucket].double().tolist()
    mixed = sum(weight * p for weight, p in zip(weights, probs, strict=True))
    inner = [reasons(part, situation) for part in model.parts]
    for cache, kept in zip(model.caches, after.caches, strict=True):
        inner.append([_memory(cache, kept, None if cache.part is None else after.hidden[cache.part], situation)])
    components = [
        Share(name, weight, p, weight * p / mixed if mixed else 0.0, of_part)
        for name, weight, p, of_part in zip(_names(model), weights, probs, inner, strict=True)
    ]
    return [Shares("mixture", components, mixed, model.config.temperature, bucket)]


def _names(model: Mixture) -> list[str]:
    """The names of the models of the parts, then those of the caches."""
    known = {entry.make: entry.name for entry in MODELS.entries()}
    return [known[type(part)] for part in model.parts] + [f"{cache.config.kind} cache" for cache in model.caches]


@singledispatch
def _memory(cache: Any, kept: Any, hidden_1D: Tensor | None, situation: Situation) -> CacheMemory:
    """What a cache has remembered."""
    raise TypeError(f"{type(cache).__name__} has no memory to show")


@_memory.register
def _(cache: UnigramCache, kept: UnigramCacheState, hidden_1D: Tensor | None, situation: Situation) -> CacheMemory:
    share_V = kept.mass_BV[0] / kept.total_B[0].clamp(min=1e-30)
    best = share_V.topk(min(situation.top, int((share_V > 0).sum())))
    remembered = [
        Remembered(situation.piece(token), weight, None)
        for token, weight in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ]
    return CacheMemory("cache", "unigram", len(situation.before) - 1, remembered)


@_memory.register
def _(
    cache: ContinuousCache, kept: ContinuousCacheState, hidden_1D: Tensor | None, situation: Situation
) -> CacheMemory:
    tokens, remembered = kept.tokens_BL[0].tolist(), list[Remembered]()
    if tokens and hidden_1D is not None:
        weight_L = cache.similarities(hidden_1D, kept)[0]
        best = (weight_L / weight_L.sum()).topk(min(situation.top, len(tokens)))
        remembered = [
            Remembered(situation.piece(tokens[place]), weight, len(tokens) - place)
            for place, weight in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ]
    return CacheMemory("cache", "continuous", len(tokens), remembered)
