"""Fitting the temperature of a mixture by Newton's method.

    loss(β) = mean of log Σ_v m(v)^β - β log m(x)        β = 1/τ, m the mixed distribution, x the token

The loss is convex in β: its derivative is E[log m] - log m(x) and its second derivative Var[log m], both under the
tempered distribution. Each step is one pass over the text, and three or four are enough.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from chainrule.base.arrays import Array
from chainrule.base.devices import device_of
from chainrule.base.modes import evaluating
from chainrule.base.progress import Progress
from chainrule.evaluation.tracks import cut_tracks, token_mask
from chainrule.models.mixture import SCORED_VALUES, Mixture

MAX_TOKENS_TO_FIT = 50_000
"""Maximum number of validation tokens; the temperature is one number, and each pass needs the whole distributions."""
LOWEST, HIGHEST = 0.2, 5.0
"""Limits of the temperature."""
MAX_PASSES = 8
TOLERANCE = 1e-4
"""The search ends when a step changes 1/τ by less."""


class FittedTemperature(NamedTuple):
    """A temperature and the mean -log p of a token in nats, before and after."""

    temperature: float
    nats_before: float
    nats: float
    passes: int


class _Moments(NamedTuple):
    """The loss in nats per token and its first two derivatives by β."""

    nats: float
    slope: float
    curvature: float


def fit_temperature(mixture: Mixture, tokens_N: Array, progress: Progress | None = None) -> FittedTemperature:
    """The temperature under which the tokens are most probable, given the weights of the mixture.

    The mixture keeps its own temperature.
    """
    tokens_N, own = tokens_N[:MAX_TOKENS_TO_FIT], mixture.config
    beta, losses = 1 / own.temperature, dict[float, float]()
    mixture.config = own.model_copy(update={"temperature": 1.0})
    try:
        while beta not in losses and len(losses) < MAX_PASSES:
            found = _measure(mixture, tokens_N, beta, progress)
            losses[beta] = found.nats
            step = found.slope / found.curvature if found.curvature > 0 else 0.0
            if abs(step) < TOLERANCE:
                break
            beta = min(1 / LOWEST, max(1 / HIGHEST, beta - step))
    finally:
        mixture.config = own
    best = min(losses, key=losses.__getitem__)
    return FittedTemperature(round(1 / best, 4), losses[1 / own.temperature], losses[best], len(losses))


def _measure(mixture: Mixture, tokens_N: Array, beta: float, progress: Progress | None) -> _Moments:
    """One pass over the tokens with the temperature 1/β."""
    layout, device = cut_tracks(len(tokens_N), mixture.tracks), device_of(mixture)
    columns = max(1, SCORED_VALUES // (layout.count * mixture.vocab_size))
    sums_3, done = torch.zeros(3, dtype=torch.float64), 0
    with evaluating(mixture):
        state = mixture.start(layout.count)
        for begin, end in layout.chunks(columns):
            tokens_BT = torch.from_numpy(layout.read(tokens_N, begin, end, mixture.eos)).to(device)
            log_probs_BTV, state = mixture.predict_tokens(tokens_BT, state)
            mask_BT = torch.from_numpy(token_mask(layout, begin, end)).to(device)
            sums_3 += _moments(log_probs_BTV[mask_BT], tokens_BT[mask_BT], beta).cpu()
            done += int(mask_BT.sum())
            if progress:
                progress(done, len(tokens_N))
    return _Moments(*(sums_3 / max(1, len(tokens_N))).tolist())


def _moments(log_probs_NV: Tensor, tokens_N: Tensor, beta: float) -> Tensor:
    """The sums of the loss and of its two derivatives over some tokens -> 3, in double precision."""
    given_N = log_probs_NV.gather(1, tokens_N[:, None])[:, 0]
    possible_N = given_N.isfinite()  # a token with p = 0 does not depend on the temperature
    log_probs_NV, given_N = log_probs_NV[possible_N], given_N[possible_N]
    finite_NV = log_probs_NV.masked_fill(log_probs_NV.isinf(), 0)  # p log p is 0 where p is 0
    scaled_NV = log_probs_NV * beta
    total_N = scaled_NV.logsumexp(1)
    probs_NV = (scaled_NV - total_N[:, None]).exp()
    mean_N = (probs_NV * finite_NV).sum(1)
    variance_N = (probs_NV * (finite_NV - mean_N[:, None]).square()).sum(1)
    loss_N, slope_N = total_N - beta * given_N, mean_N - given_N
    return torch.stack([part_N.double().sum() for part_N in (loss_N, slope_N, variance_N)])
