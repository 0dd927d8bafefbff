"""Fitting a mixture: every component scores a text, the options of caches are chosen, and EM finds the weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from pydantic import Field

from chainrule.base.arrays import Array
from chainrule.base.devices import device_of
from chainrule.base.modes import evaluating
from chainrule.base.progress import Progress
from chainrule.config import Section
from chainrule.evaluation.perplexity import CHUNK
from chainrule.evaluation.tracks import cut_tracks, token_mask
from chainrule.experiments.mix_temperature import fit_temperature
from chainrule.models.adaptive_cache import CacheConfig, ContinuousCacheConfig, UnigramCacheConfig
from chainrule.models.mixture import Mixture, MixtureConfig
from chainrule.models.mixture_weights import FittedWeights, fit_weights
from chainrule.types import Vocabulary

CACHES = ("unigram", "continuous")
DECAYS = (0.98, 0.99, 0.995, 0.998, 0.999, 0.9995)
THETAS = (0.005, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0)
MAX_TOKENS_TO_FIT = 2_000_000
"""Maximum number of validation tokens on which weights are fitted; more would make no visible difference."""
TUNING_TOKENS = 40_000
"""Maximum number of validation tokens on which the options of caches are chosen."""

Candidates = list[list[CacheConfig]]
"""The candidates for each cache of a mixture."""


class CacheSettings(Section):
    """Options of caches. Those that are not set are chosen on the validation text."""

    decay: float | None = Field(None, gt=0, le=1)
    theta: float | None = Field(None, gt=0)
    window: int | None = Field(None, ge=1)


class FittedMixture(NamedTuple):
    """A mixture with fitted weights."""

    mixture: Mixture
    weights: FittedWeights
    tokens: int  # on which the weights were fitted


def fit_mixture(
    parts: Sequence[Any],
    vocabulary: Vocabulary,
    candidates: Candidates,
    buckets: bool,
    temperature: bool,
    tokens_N: Array,
    note: Callable[[str], None],
    progress: Progress | None,
) -> FittedMixture:
    """Choose one candidate for each cache, then the weights of all components, so that the tokens are most likely.

    With `temperature`, the temperature of the mixture is fitted last.
    """
    if len(tokens_N) > MAX_TOKENS_TO_FIT:
        note(
            f"the validation text has {len(tokens_N):,} tokens; the weights are fitted on the first "
            f"{MAX_TOKENS_TO_FIT:,}"
        )
    tokens_N = tokens_N[:MAX_TOKENS_TO_FIT]
    caches = choose_caches(parts, vocabulary, candidates, tokens_N[:TUNING_TOKENS], progress)
    for cache in caches:
        note(f"{cache.kind} cache: " + ", ".join(f"{name} {value}" for name, value in cache if name != "kind"))
    config = MixtureConfig(parts=len(parts), caches=caches, buckets=buckets)
    mixture = Mixture(config, vocabulary, parts)
    weights = fit_weights(*score_components(mixture, tokens_N, progress), mixture.bucketing.count)
    fitted = Mixture(config, vocabulary, parts, torch.from_numpy(weights.weights_ZK))
    if temperature:
        found = fit_temperature(fitted, tokens_N, progress)
        fitted.config = config.model_copy(update={"temperature": found.temperature})
        note(f"temperature {found.temperature}: {found.nats:.4f} nats per token, {found.nats_before:.4f} without it")
    return FittedMixture(fitted, weights, len(tokens_N))


# Caches


def cache_candidates(parts: Sequence[Any], kinds: Sequence[str], settings: CacheSettings) -> Candidates:
    """The candidates for each cache: a unigram cache, and a continuous cache of each part that has features."""
    groups: Candidates = []
    if "unigram" in kinds:
        decays = (settings.decay,) if settings.decay else DECAYS
        groups.append([UnigramCacheConfig(decay=decay) for decay in decays])
    if "continuous" in kinds:
        thetas = (settings.theta,) if settings.theta else THETAS
        window = {"window": settings.window} if settings.window else {}
        for number, part in enumerate(parts):
            if part.feature_width is not None:
                groups.append([ContinuousCacheConfig(part=number, theta=theta, **window) for theta in thetas])
    return groups


def choose_caches(
    parts: Sequence[Any], vocabulary: Vocabulary, groups: Candidates, tokens_N: Array, progress: Progress | None
) -> tuple[Any, ...]:
    """Choose from each group the cache that helps most, given the parts and the caches chosen from other groups.

    All candidates are components of one mixture, so the parts read the text only once.
    """
    chosen = [group[0] for group in groups]
    if any(len(group) > 1 for group in groups):
        everyone = [cache for group in groups for cache in group]
        config = MixtureConfig.model_validate({"parts": len(parts), "caches": everyone})
        log_probs_KN = score_components(Mixture(config, vocabulary, parts), tokens_N, progress).log_probs_KN
        row_of = {cache: len(parts) + number for number, cache in enumerate(everyone)}
        for index in [*range(len(groups))] * 2:  # twice: the first groups again, given the choice from the last
            rows = [*range(len(parts)), *(row_of[cache] for other, cache in enumerate(chosen) if other != index)]
            chosen[index] = min(groups[index], key=partial(_nats_with, log_probs_KN, rows, row_of))
    return tuple(chosen)


def _nats_with(log_probs_KN: Array, rows: list[int], row_of: Mapping[CacheConfig, int], cache: CacheConfig) -> float:
    """-log p per token of the best mixture of some components and a cache."""
    return fit_weights(log_probs_KN[[*rows, row_of[cache]]]).nats


# Scores


class ComponentScores(NamedTuple):
    """log p of each token of a text by each component, and the bucket of the token's context."""

    log_probs_KN: Array  # float32
    buckets_N: Array


def score_components(mixture: Mixture, tokens_N: Array, progress: Progress | None = None) -> ComponentScores:
    """Score a text with every component, in as many tracks as an evaluation."""
    layout, device = cut_tracks(len(tokens_N), mixture.tracks), device_of(mixture)
    log_probs, buckets, done = [], [], 0
    with evaluating(mixture):
        state = mixture.start(layout.count)
        for begin, end in layout.chunks(CHUNK):
            tokens_BT = torch.from_numpy(layout.read(tokens_N, begin, end, mixture.eos)).to(device)
            buckets_BT = mixture.find_buckets(tokens_BT, state)
            log_probs_KBT, state = mixture.score_components(tokens_BT, state)
            mask_BT = token_mask(layout, begin, end)
            log_probs.append(log_probs_KBT.cpu().numpy()[:, mask_BT])
            buckets.append(buckets_BT.cpu().numpy()[mask_BT])
            done += int(mask_BT.sum())
            if progress:
                progress(done, len(tokens_N))
    return ComponentScores(np.concatenate(log_probs, 1), np.concatenate(buckets))
